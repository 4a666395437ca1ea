"""The directory as an LDIF file, with the entries of an LDAP server (usable with `ldapadd -f`).

The file can be edited while the engine runs. So unknown content stays in it, an invalid or incomplete file never
replaces the tree, and a write replaces the file atomically. A file without a line end at its end counts as incomplete:
an editor, a copy or a power failure has cut it, and the missing topics would be removed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from arborcast.core.backoff import Backoff
from arborcast.core.files import Stamp, stamp_of, write_atomically
from arborcast.core.reasons import reason_of
from arborcast.core.threads import Service
from arborcast.directory.entries import ldif
from arborcast.directory.entries.changes import Change, Workspace
from arborcast.directory.entries.dn import Dn, format_dn, parse_dn
from arborcast.directory.entries.entries import Entry, EntrySet
from arborcast.directory.entries.mapping import EntryProblem, Listing, ProblemKind
from arborcast.directory.entries.reader import ListingReader
from arborcast.directory.errors import DirectoryError, LdifError
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores.contract import Watcher, Written, conflicts

_log = logging.getLogger(__name__)

# Editors write a file in several steps. A file that is unchanged for this time counts as complete.
_SETTLE_SECONDS = 0.1
# A smaller file removes topics, unless it is a copy that has stalled. So it must be unchanged for a longer time.
_SMALLER_SETTLE_SECONDS = 2.0
_MODE = 0o640
# Entries in one line of the log.
_MAX_NAMED = 20

_HEADER = (
    "# The topic tree of Arborcast. It can be edited while the engine runs; changes take effect within three seconds.\n"
    "# An LDAP server accepts the same entries: load arborcast.schema there, then ldapadd -f this file.\n"
)

_Key = Dn | int
"""The key of a block: the entry's key, or a number for a block without an entry."""


class FileDirectory:
    """One LDIF file; see `Directory`."""

    def __init__(self, path: Path, settings: DirectorySettings) -> None:
        self._path = path
        self._base = parse_dn(settings.base_dn)
        self._reader = ListingReader(self._base)
        self._poll_seconds = settings.poll_interval_s
        self._lock = threading.RLock()
        self._blocks: dict[_Key, ldif.Block] = {}
        # The last text that was read; None before the first one. Blocks without a later change are the same objects.
        self._last_read: Mapping[_Key, ldif.Block] | None = None
        self._listing = Listing(initialised=False, fresh=True)
        self._duplicates: tuple[EntryProblem, ...] = ()
        self._signature: Stamp | None = None
        # The last file that is no LDIF, the message, and the line. A large one is not parsed again at each look.
        self._unreadable: tuple[Stamp | None, str, int] | None = None
        self._watcher: Watcher | None = None
        # The last report to the watcher: a listing, or a failure with the file's stamp. None before the first one.
        self._reported: Listing | tuple[Stamp | None, str] | None = None
        self._service = Service("topic-file", self._check, backoff=Backoff(self._poll_seconds, self._poll_seconds))

    @property
    def name(self) -> str:
        return str(self._path)

    def load(self) -> Listing:
        """Read the file; a missing file is an empty directory. Raises LdifError, DirectoryError."""
        with self._lock:
            signature = self._stat()
            if self._last_read is not None and signature == self._signature:
                return self._listing
            if self._unreadable is not None and self._unreadable[0] == signature:
                raise LdifError(*self._unreadable[1:])
            try:
                data = self._path.read_bytes() if signature is not None else b""
            except OSError as error:
                raise DirectoryError(f"cannot read {self._path}: {reason_of(error)}", self._poll_seconds) from error
            try:
                if data and not data.endswith(b"\n"):
                    reason = "the last line has no line end, so the file may be incomplete; if it is complete, add one"
                    raise LdifError(reason, data.count(b"\n") + 1)
                blocks, problems = _index(ldif.parse(data))
            except LdifError as error:
                self._unreadable = signature, f"{error.reason} (in {self._path}; the tree is unchanged)", error.line
                raise LdifError(*self._unreadable[1:]) from error
            self._duplicates = problems
            before, self._last_read = self._last_read, blocks
            if before is not None and signature is not None:
                self._warn_of_undone(before, blocks)
            self._store(blocks, signature, fresh=before is None)
            return self._listing

    def write(self, changes: Sequence[Change], seen: Listing, stop: Callable[[], bool] = lambda: False) -> Written:
        """Apply the changes to the file's current content; in one step, so it does not stop."""
        self._await_settled()
        with self._lock:
            now = self.load()
            refused = conflicts(changes, seen, now)
            entries = EntrySet(block.entry for block in self._blocks.values() if block.entry is not None)
            workspace = Workspace(entries, now, self._base)
            problems, _ = workspace.write([c for c in changes if c not in refused])
            # With new keys for moved entries, so that each keeps its position and its comments.
            moved = {before: now for now, before in workspace.moved.items()}
            kept = {key if isinstance(key, int) else moved.get(key, key): each for key, each in self._blocks.items()}
            updated = _updated(kept, entries)
            if updated != self._blocks or not self._path.exists():
                signature = self._replace(ldif.write(_in_file_order(updated)))
                self._store(updated, signature, fresh=False)
            return Written((*refused.values(), *problems), self._listing)

    def watch(self, watcher: Watcher) -> None:
        """Check the file every `poll_interval_s`."""
        self._watcher = watcher
        self._service.start()

    def close(self) -> None:
        self._service.stop(None)

    def _check(self) -> float:
        if self._watcher is None:
            return self._poll_seconds
        try:
            self._await_settled()
            with self._lock:
                listing = self.load()
        except DirectoryError as error:
            # The same failure of the same file is reported once.
            failure = (self._stat_or_none(), str(error))
            if failure != self._reported:
                self._reported = failure
                self._watcher.unavailable(error)
        else:
            if listing is not self._reported:
                seen = isinstance(self._reported, Listing)
                self._watcher.changed(listing if seen else replace(listing, fresh=True))
            self._reported = listing
        return self._poll_seconds

    def _await_settled(self) -> None:
        """Wait until no other process is writing the file, or `close` is called."""
        signature = self._stat()
        while signature != self._signature:
            smaller = signature is not None and self._signature is not None and signature.size < self._signature.size
            stopped = self._service.wait(_SMALLER_SETTLE_SECONDS if smaller else _SETTLE_SECONDS)
            again = self._stat()
            if stopped or again == signature:
                return
            signature = again

    def _store(self, blocks: dict[_Key, ldif.Block], signature: Stamp | None, *, fresh: bool) -> None:
        self._blocks = blocks
        entries = EntrySet(block.entry for block in blocks.values() if block.entry is not None)
        self._listing = self._reader.read(entries, fresh=fresh, also=self._duplicates)
        self._signature = signature

    def _warn_of_undone(self, before: Mapping[_Key, ldif.Block], blocks: Mapping[_Key, ldif.Block]) -> None:
        """Log a warning if this text undoes changes by the engine since the text before: an editor with an old text
        does. It is applied, since it may be deliberate."""
        undone = _undone(before, self._blocks, blocks)
        if undone:
            dns = "; ".join(format_dn(entry.dn) for entry in undone[:_MAX_NAMED])
            _log.warning(
                "directory.undone the new text of %s undoes %d changes that the engine had written to it: %s%s; if the "
                "editor had an old text, load the file again and repeat these changes",
                self._path,
                len(undone),
                dns,
                f"; and {len(undone) - _MAX_NAMED} more" if len(undone) > _MAX_NAMED else "",
            )

    def _stat(self) -> Stamp | None:
        try:
            return stamp_of(os.stat(self._path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DirectoryError(f"cannot read {self._path}: {reason_of(error)}", self._poll_seconds) from error

    def _stat_or_none(self) -> Stamp | None:
        try:
            return self._stat()
        except DirectoryError:
            return None

    def _check_unedited(self) -> None:
        if self._stat() != self._signature:
            raise DirectoryError(f"{self._path} was edited during a write, which is repeated", 0.0)

    def _replace(self, data: bytes) -> Stamp:
        """Replace the file; returns the stamp of the new one, taken before the rename, so that an edit by another
        process right afterwards is detected."""
        # For a symbolic link its target is replaced.
        target = Path(os.path.realpath(self._path))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            mode = target.stat().st_mode & 0o777 if target.exists() else _MODE
            # Checked last: a large draft takes seconds on a slow disk.
            return write_atomically(target, data, mode=mode, check=self._check_unedited)
        except OSError as error:
            raise DirectoryError(f"cannot write {target}: {reason_of(error)}", self._poll_seconds) from error


def _index(blocks: Sequence[ldif.Block]) -> tuple[dict[_Key, ldif.Block], tuple[EntryProblem, ...]]:
    """Blocks by key. Of two entries with the same DN the first counts; the text of the other stays in the file."""
    indexed: dict[_Key, ldif.Block] = {}
    problems: list[EntryProblem] = []
    for number, block in enumerate(blocks):
        key: _Key = number
        if block.entry is not None:
            if block.entry.key in indexed:
                reason = "the file has an earlier entry with this DN; this one is ignored"
                problems.append(EntryProblem(ProblemKind.DUPLICATE_TOPIC, format_dn(block.entry.dn), reason))
                indexed[number] = ldif.Block(block.text, None)
                continue
            key = block.entry.key
        indexed[key] = block
    return indexed, tuple(problems)


def _undone(
    before: Mapping[_Key, ldif.Block], written: Mapping[_Key, ldif.Block], after: Mapping[_Key, ldif.Block]
) -> list[Entry]:
    """The entries that were changed from `before` to `written`, and are in `after` as they were in `before`."""
    undone: list[Entry] = []
    for key in {**before, **written}:
        old, new, now = (blocks[key].entry if key in blocks else None for blocks in (before, written, after))
        changed = new or old
        if changed is not None and old != new and old == now:
            undone.append(changed)
    return undone


def _updated(blocks: Mapping[_Key, ldif.Block], entries: EntrySet) -> dict[_Key, ldif.Block]:
    """The blocks for exactly these entries; the text of unchanged entries and of other blocks stays."""
    updated: dict[_Key, ldif.Block] = {}
    if not blocks:
        updated[-1] = ldif.Block(_HEADER.encode(), None)
    for key, block in blocks.items():
        if isinstance(key, int):
            updated[key] = block
        elif (entry := entries.get(key)) is not None:
            updated[key] = block if block.entry == entry else ldif.render(entry, ldif.comments_of(block.text))
    for entry in entries:
        if entry.key not in updated:
            updated[entry.key] = ldif.render(entry)
    return updated


def _in_file_order(blocks: dict[_Key, ldif.Block]) -> Iterable[ldif.Block]:
    """The blocks in their order, or by depth if a child would precede its parent, which ldapadd would refuse."""
    numbers = {key: number for number, key in enumerate(blocks)}
    if all(isinstance(key, int) or numbers.get(key[1:], -1) < number for key, number in numbers.items()):
        return blocks.values()
    depths = sorted(blocks, key=lambda key: 0 if isinstance(key, int) else len(key))
    return map(blocks.__getitem__, depths)
