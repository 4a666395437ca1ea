"""The directory as an LDAP server: read page by page, followed through syncrepl, or polled without it.

One thread watches: it connects, reads everything, follows the changes, and reconnects with a back-off after a failure;
the last listing stays valid. Writes use another connection.
"""

from __future__ import annotations

import logging
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace

from arborcast.core.backoff import Backoff
from arborcast.core.threads import Service
from arborcast.directory.entries.changes import CannotWrite, Change, Edit, RenameEntry, Workspace, renamed_entry
from arborcast.directory.entries.dn import Dn, format_dn, format_rdn, parse_dn
from arborcast.directory.entries.entries import EntrySet
from arborcast.directory.entries.mapping import EntryProblem, Listing, ProblemKind
from arborcast.directory.entries.reader import ListingReader
from arborcast.directory.errors import DirectoryError, DirectoryRefused
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.contract import Watcher, Written, conflicts, touched
from arborcast.directory.stores.ldap_client import EntryChanged, EntryRefused, LdapSession, WatchNotSupported
from arborcast.directory.stores.ldap_connection import NoSuchEntry
from arborcast.directory.stores.syncrepl import Mirror, ReloadNeeded, cookie_at

_log = logging.getLogger(__name__)

# The first retry is immediate (a server restarts in a tenth of a second), later ones spare an overloaded server.
_BACKOFF = Backoff(0.1, 10.0)
# A refusal requires an operator. More attempts could lock the account if the server counts wrong passwords.
_REFUSED_RETRY_SECONDS = 60.0
# Changes often come in bursts (ldapadd of a file). They are collected until none comes for the first time, at most for
# the second time, and reported together.
_QUIET_SECONDS, _GATHER_SECONDS = 0.02, 0.3
# The maximum wait of a write for the next of the events of the previous one. They come within milliseconds of each
# other or, after a reconnect, never.
_ECHO_SECONDS = 1.0
# The interval of checks for `close` while there are no changes.
_IDLE_SECONDS = 0.25
# The pause after a listing is at least this many times its duration: that of a million topics takes seconds, and longer
# if the server is polled.
_REST = 4


class LdapDirectory:
    """One base in an LDAP server; see `Directory`. Connects on the first call."""

    def __init__(self, settings: DirectorySettings) -> None:
        self._settings = settings
        self._base = parse_dn(settings.base_dn)
        self._reader = ListingReader(self._base)
        # Guards the mirror and the listing. The writer holds it during its requests, so that the watching thread does
        # not apply an event from before a write as a change after it.
        self._lock = threading.RLock()
        # Keys of written entries with outstanding events. The next write waits for them: after it, such an event would
        # look like an edit by another client.
        self._echoes: set[Dn] = set()
        self._echoed = threading.Condition(self._lock)
        self._streaming = False
        self._mirror: Mirror | None = None
        self._listing: Listing | None = None  # of the mirror; None after a change
        self._writer: LdapSession | None = None
        self._watcher: Watcher | None = None
        self._failures = 0  # consecutive ones
        self._service = Service("topic-ldap", self._watch, backoff=_BACKOFF)
        self._can_stream = True

    @property
    def name(self) -> str:
        return f"{self._settings.url} {self._settings.base_dn}"

    def load(self) -> Listing:
        """Read everything over a separate connection."""
        with closing(LdapSession(self._settings)) as session:
            mirror, listing = self._read(session, ListingReader(self._base))
        with self._lock:
            if self._watcher is None:
                self._mirror, self._listing = mirror, listing
        return listing

    def write(self, changes: Sequence[Change], seen: Listing, stop: Callable[[], bool] = lambda: False) -> Written:
        """Write the changes, one request per edited entry: 100,000 take minutes."""
        with self._lock:
            while self._echoes and self._echoed.wait(_ECHO_SECONDS):
                pass
            session = self._writing_session()
            try:
                if self._mirror is None:
                    self._mirror, self._listing = self._read(session, self._reader)
                now = self._current()
                refused = conflicts(changes, seen, now)
                workspace = Workspace(self._entries(), now, self._base)

                def carry_out(edit: Edit, change: Change) -> None:
                    _carry_out(session, workspace, edit, change)
                    self._listing = None
                    if self._streaming:
                        self._echoes.add(_key_after(edit))

                problems, left = workspace.write([c for c in changes if c not in refused], carry_out, stop)
                return Written((*refused.values(), *problems), self._current(), left)
            except DirectoryError:
                session.close()
                self._writer = None
                raise

    def watch(self, watcher: Watcher) -> None:
        """Start the thread that follows the server."""
        self._watcher = watcher
        self._service.start()

    def close(self) -> None:
        """End the thread and both connections."""
        self._service.stop(None)
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _writing_session(self) -> LdapSession:
        # The server may have closed an idle connection; this test is one round trip.
        if self._writer is not None:
            try:
                self._writer.context_csn(self._base[-1:])
            except DirectoryError:
                self._writer.close()
                self._writer = None
        if self._writer is None:
            self._writer = LdapSession(self._settings)
        return self._writer

    def _read(self, session: LdapSession, reader: ListingReader) -> tuple[Mirror, Listing]:
        """A full read; a missing base is an empty directory."""
        try:
            mirror = Mirror(session.read_tree(self._base))
        except NoSuchEntry:
            mirror = Mirror()
        return mirror, reader.read(mirror.entries, fresh=True)

    def _entries(self) -> EntrySet:
        return self._mirror.entries if self._mirror is not None else EntrySet()

    def _current(self) -> Listing:
        """The listing of the current mirror; with the lock held."""
        if self._listing is None:
            self._listing = self._reader.read(self._entries())
        return self._listing

    def _watch(self) -> float | None:
        watcher = self._watcher
        if watcher is None:
            return None
        started = time.monotonic()
        try:
            with closing(LdapSession(self._settings)) as session:
                self._follow(session, watcher)
        except ReloadNeeded:
            self._failures = 0
        except WatchNotSupported as error:
            self._can_stream = False
            _log.warning("directory.polling %s; polling every %s s", error, self._settings.poll_interval_s)
        except DirectoryError as error:
            # After a long connection the count of failures restarts.
            self._failures = 1 if time.monotonic() - started > _BACKOFF.longest_s else self._failures + 1
            watcher.unavailable(error)
            return _REFUSED_RETRY_SECONDS if isinstance(error, DirectoryRefused) else _BACKOFF.jittered(self._failures)
        except Exception as error:
            # A bug must not end the watch silently: it is reported as an unavailable server.
            watcher.unavailable(DirectoryError(f"watching {self.name} failed: {error!r}"))
            raise
        return 0.0

    def _follow(self, session: LdapSession, watcher: Watcher) -> None:
        """Read everything, then report changes until the connection ends (DirectoryError) or `close` is called."""
        while not self._service.stopping:
            # The CSN is requested before the read, so that no change is missed in between.
            csn = session.context_csn(self._base)
            with self._lock:
                self._mirror, self._listing = mirror, listing = self._read(session, self._reader)
            watcher.changed(listing)
            if listing.initialised and csn and self._can_stream:
                self._stream(session, mirror, cookie_at(csn), watcher)
            else:
                self._poll(session, watcher, awaits_base=not listing.initialised)

    def _stream(self, session: LdapSession, mirror: Mirror, cookie: bytes, watcher: Watcher) -> None:
        session.start_stream(self._base, cookie)
        self._streaming = True
        try:
            self._apply_stream(session, mirror, watcher)
        finally:
            with self._lock:
                self._streaming = False
                self._echoes.clear()
                self._echoed.notify_all()

    def _apply_stream(self, session: LdapSession, mirror: Mirror, watcher: Watcher) -> None:
        gathering_since: float | None = None
        rest_until = 0.0
        while not self._service.stopping:
            try:
                message = session.receive(_IDLE_SECONDS if gathering_since is None else _QUIET_SECONDS)
            except NoSuchEntry:
                raise ReloadNeeded from None
            now = time.monotonic()
            if message is not None:
                with self._lock:
                    if isinstance(message, EntryChanged):
                        changed = mirror.apply(message.entry, message.state, message.uuid, message.has_children)
                        if message.entry.key in self._echoes:
                            self._echoes.remove(message.entry.key)
                            self._echoed.notify_all()
                    else:
                        changed = mirror.inform(message)
                    if changed:
                        self._listing = None
                if changed and gathering_since is None:
                    gathering_since = now
            gathered = gathering_since is not None and (message is None or now - gathering_since > _GATHER_SECONDS)
            if gathered and now >= rest_until:
                gathering_since = None
                with self._lock:
                    listing = self._current()
                watcher.changed(listing)
                rest_until = now + (1 + _REST) * (time.monotonic() - now)
                if not listing.initialised:
                    raise ReloadNeeded  # the stream of a deleted base has no event when the base is added again

    def _poll(self, session: LdapSession, watcher: Watcher, *, awaits_base: bool) -> None:
        """Read everything regularly and compare; returns once a missing base exists.

        The contextCSN is not used: a server without syncrepl does not update it, though an old value may exist.
        """
        pause = self._settings.poll_interval_s
        while not self._service.wait(pause):
            started = time.monotonic()
            with self._lock:
                before = self._current()
                self._mirror, listing = self._read(session, self._reader)
                self._listing = listing = replace(listing, fresh=False)
            pause = max(self._settings.poll_interval_s, _REST * (time.monotonic() - started))
            if (listing.entries, listing.problems) != (before.entries, before.problems):
                watcher.changed(listing)
            if listing.initialised and awaits_base:
                return


def _key_after(edit: Edit) -> Dn:
    return renamed_entry(edit).key if isinstance(edit, RenameEntry) else edit.entry.key


def _same_for_servers(key: Dn, siblings: Iterable[Dn]) -> Dn | None:
    """Another entry that servers do not distinguish from this one: they compare normalised strings (RFC 4518)."""
    name = unicodedata.normalize("NFKC", format_rdn(key[0]))
    same = (each for each in siblings if unicodedata.normalize("NFKC", format_rdn(each[0])) == name)
    return next((each for each in same if each != key), None)


def _carry_out(session: LdapSession, workspace: Workspace, edit: Edit, change: Change) -> None:
    try:
        session.carry_out(edit)
    except (EntryRefused, NoSuchEntry) as error:
        # Another client has added or removed it; the watch will report that.
        conflict = isinstance(error, NoSuchEntry) or error.exists
        kind, reason = ProblemKind.CONFLICT if conflict else ProblemKind.REFUSED, str(error)
        key = _key_after(edit)
        twin = _same_for_servers(key, workspace.entries.children(key[1:])) if conflict else None
        if twin is not None:
            kind = ProblemKind.REFUSED
            reason = f"{format_dn(twin)} has the same name in other Unicode characters: rename one of the two"
        raise CannotWrite(EntryProblem(kind, format_dn(edit.entry.dn), reason, touched(change)[-1])) from error
