"""The directory as an LDAP server: read page by page, followed through syncrepl, or polled where there is none.

Watching is one thread that never gives up: it connects, reads everything, follows the changes, and begins again with a
back-off when the server goes. What it has read stays valid meanwhile. Writing uses a connection of its own.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from arborcast.core.backoff import Backoff
from arborcast.core.threads import Service
from arborcast.directory.entries.changes import (
    AddEntry,
    CannotPlan,
    Change,
    DeleteEntry,
    Edit,
    ModifyEntry,
    RenameEntry,
    Workspace,
    in_writing_order,
    renamed_entry,
)
from arborcast.directory.entries.dn import Dn, format_dn, parse_dn
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

# The first retry comes at once (a restarted server is back in a tenth of a second), later ones spare a struggling one.
_BACKOFF = Backoff(0.1, 10.0)
# A refusal needs a person. Knocking more often could lock the account where the server counts wrong passwords.
_REFUSED_RETRY_SECONDS = 60.0
# Changes often come in flocks (ldapadd of a file): they are gathered until it is quiet for so long, but not longer
# than the second figure, and then reported at once.
_QUIET_SECONDS, _GATHER_SECONDS = 0.02, 0.3
# How long a write waits for the events of the one before. They come within milliseconds or, after a reconnect, never.
_ECHO_SECONDS = 1.0
# How soon the thread notices that it shall end while nothing happens.
_IDLE_SECONDS = 0.25
# Polling everything must not become the server's main occupation: after a read it rests this many times as long.
_POLL_REST = 4


class LdapDirectory:
    """One base in an LDAP server. See `Directory` for what the methods promise; nothing is touched before the first."""

    def __init__(self, settings: DirectorySettings) -> None:
        self._settings = settings
        self._base = parse_dn(settings.base_dn)
        self._reader = ListingReader(self._base)
        # Guards the mirror and the listing. The writer holds it during its requests, so that the follower cannot take
        # an event from before a write for a change after it.
        self._lock = threading.RLock()
        # Keys of entries that we have written and whose event is outstanding. The next write waits for them: an event
        # of ours after a later write of ours would look like an edit by another client.
        self._echoes: set[Dn] = set()
        self._echoed = threading.Condition(self._lock)
        self._streaming = False
        self._mirror: Mirror | None = None
        self._listing = Listing(initialised=False, fresh=True)
        self._stale = False
        self._writer: LdapSession | None = None
        self._watcher: Watcher | None = None
        self._failures = 0  # in a row
        self._service = Service("topic-ldap", self._watch, backoff=_BACKOFF)
        self._can_stream = True

    @property
    def name(self) -> str:
        return f"{self._settings.url} {self._settings.base_dn}"

    def load(self) -> Listing:
        """Read everything with a connection of its own."""
        session = LdapSession(self._settings)
        try:
            mirror, listing = self._read(session, ListingReader(self._base))
        finally:
            session.close()
        with self._lock:
            if self._watcher is None:
                self._take(mirror, listing)
        return listing

    def write(self, changes: Sequence[Change], seen: Listing) -> Written:
        """Carry out the changes, one request per edited entry."""
        with self._lock:
            self._echoed.wait_for(lambda: not self._echoes, _ECHO_SECONDS)
            session = self._writing_session()
            try:
                if self._mirror is None:
                    self._take(*self._read(session, self._reader))
                now = self._current()
                refused = conflicts(changes, seen, now)
                problems = list(refused.values())
                workspace = Workspace(self._entries(), now, self._base)
                for change in in_writing_order([c for c in changes if c not in refused]):
                    problem = self._write_one(session, workspace, change)
                    if problem is not None:
                        problems.append(problem)
                return Written(tuple(problems), self._current())
            except DirectoryError:
                session.close()
                self._writer = None
                raise

    def _write_one(self, session: LdapSession, workspace: Workspace, change: Change) -> EntryProblem | None:
        try:
            edits = workspace.plan(change)
        except CannotPlan as error:
            return error.problem
        for edit in edits:
            try:
                _carry_out(session, edit)
            except (EntryRefused, NoSuchEntry) as error:
                # Added or removed by another client in between: the watch will report it.
                conflict = isinstance(error, NoSuchEntry) or error.exists
                kind = ProblemKind.CONFLICT if conflict else ProblemKind.REFUSED
                return EntryProblem(kind, format_dn(edit.entry.dn), str(error), touched(change)[-1])
            workspace.done(edit)
            self._stale = True
            if self._streaming:
                self._echoes.add(renamed_entry(edit).key if isinstance(edit, RenameEntry) else edit.entry.key)
        return None

    def watch(self, watcher: Watcher) -> None:
        """Follow the server in a thread."""
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
        # A connection that has been idle may have been closed by the server; asking is one round trip.
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
        """A full read; a base that is not there is an empty directory."""
        try:
            mirror = Mirror(session.read_tree(self._base))
        except NoSuchEntry:
            mirror = Mirror()
        return mirror, reader.read(mirror.entries, fresh=True)

    def _take(self, mirror: Mirror, listing: Listing) -> Listing:
        self._mirror, self._stale = mirror, False
        return self._publish(listing)

    def _publish(self, listing: Listing) -> Listing:
        self._listing = replace(listing, version=self._listing.version + 1)
        return self._listing

    def _entries(self) -> EntrySet:
        return self._mirror.entries if self._mirror is not None else EntrySet()

    def _current(self) -> Listing:
        """The listing of the mirror as it is; under the lock."""
        if self._stale:
            self._publish(self._reader.read(self._entries()))
            self._stale = False
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
            _log.warning("directory.polling %s; looking every %s s", error, self._settings.poll_interval_s)
        except DirectoryError as error:
            # A connection that has lasted counts as a fresh start.
            self._failures = 1 if time.monotonic() - started > _BACKOFF.longest_s else self._failures + 1
            watcher.away(error)
            return _pause(error, self._failures)
        except Exception as error:
            # A mistake of ours must not end the watch in silence: it is reported like a server that is away.
            watcher.away(DirectoryError(f"watching {self.name} failed: {error!r}"))
            raise
        return 0.0

    def _follow(self, session: LdapSession, watcher: Watcher) -> None:
        """Read everything, then report changes until the connection ends (DirectoryError) or we are closing."""
        while not self._service.stopping:
            # The point in the server's history is asked for before the read, so that nothing falls between.
            csn = session.context_csn(self._base)
            with self._lock:
                mirror, listing = self._read(session, self._reader)
                listing = self._take(mirror, listing)
            watcher.changed(listing)
            if listing.initialised and csn and self._can_stream:
                self._stream(session, mirror, cookie_at(csn), watcher)
            else:
                self._poll(session, watcher, awaits_base=not listing.initialised)

    def _stream(self, session: LdapSession, mirror: Mirror, cookie: bytes, watcher: Watcher) -> None:
        session.start_stream(self._base, cookie)
        self._streaming = True
        try:
            self._take_in(session, mirror, watcher)
        finally:
            with self._lock:
                self._streaming = False
                self._echoes.clear()
                self._echoed.notify_all()

    def _take_in(self, session: LdapSession, mirror: Mirror, watcher: Watcher) -> None:
        gathering_since: float | None = None
        while not self._service.stopping:
            try:
                message = session.receive(_IDLE_SECONDS if gathering_since is None else _QUIET_SECONDS)
            except NoSuchEntry:
                raise ReloadNeeded from None
            now = time.monotonic()
            if message is not None:
                with self._lock:
                    if isinstance(message, EntryChanged):
                        changed = mirror.apply(message.entry, message.state, message.has_children)
                        self._echoes.discard(message.entry.key)
                        self._echoed.notify_all()
                    else:
                        changed = mirror.inform(message)
                    self._stale |= changed
                if changed and gathering_since is None:
                    gathering_since = now
            if gathering_since is not None and (message is None or now - gathering_since > _GATHER_SECONDS):
                gathering_since = None
                with self._lock:
                    listing = self._current()
                watcher.changed(listing)
                if not listing.initialised:
                    raise ReloadNeeded  # a stream below a base that is gone stays silent when the base comes back

    def _poll(self, session: LdapSession, watcher: Watcher, *, awaits_base: bool) -> None:
        """Read everything regularly and compare; returns when a missing base has appeared.

        Not only when the contextCSN has moved: a server that does not offer syncrepl does not keep it up either, though
        one from earlier times may still stand there.
        """
        pause = self._settings.poll_interval_s
        while not self._service.wait(pause):
            started = time.monotonic()
            with self._lock:
                before = self._current()
                mirror, listing = self._read(session, self._reader)
                listing = self._take(mirror, replace(listing, fresh=False))
            pause = max(self._settings.poll_interval_s, _POLL_REST * (time.monotonic() - started))
            if (listing.entries, listing.problems) != (before.entries, before.problems):
                watcher.changed(listing)
            if listing.initialised and awaits_base:
                return


def _carry_out(session: LdapSession, edit: Edit) -> None:
    match edit:
        case AddEntry(entry):
            session.add(entry)
        case ModifyEntry(entry, attributes):
            session.modify(entry.dn, attributes)
        case DeleteEntry(entry):
            session.delete(entry.dn)
        case RenameEntry(entry, rdn, parent):
            session.rename(entry.dn, rdn, parent)


def _pause(error: DirectoryError, failures: int) -> float:
    """How long to wait before the next try, in seconds; spread, so that many engines do not knock together."""
    if isinstance(error, DirectoryRefused):
        return _REFUSED_RETRY_SECONDS
    return _BACKOFF.after(failures) * random.uniform(0.75, 1.25)  # noqa: S311 - not for secrets
