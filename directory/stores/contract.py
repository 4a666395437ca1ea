"""The contract of a directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from arborcast.directory.entries.changes import Change, Move, Put, Remove
from arborcast.directory.entries.mapping import EntryProblem, Listing, ProblemKind
from arborcast.directory.errors import DirectoryError
from arborcast.topic_model.topics import TopicPath


class Watcher(Protocol):
    """Receives changes, in the directory's thread, one call at a time. Methods must return soon and must not raise."""

    def changed(self, listing: Listing) -> None:
        """Called with the current state after `watch`, after each change and each reconnect."""

    def unavailable(self, error: DirectoryError) -> None:
        """Called if the directory cannot be read; the last listing stays valid until the next `changed`."""


@dataclass(frozen=True)
class Written:
    """The result of a write: the problems of unwritten changes, the directory's state, and the number of changes left
    after a stop."""

    problems: tuple[EntryProblem, ...]
    listing: Listing
    left: int = 0


class Directory(Protocol):
    """An editable topic tree. Thread-safe."""

    @property
    def name(self) -> str:
        """The location of the directory, for messages: a path or a URL with the base DN."""

    def load(self) -> Listing:
        """Read everything. Raises DirectoryError."""

    def write(self, changes: Sequence[Change], seen: Listing, stop: Callable[[], bool] = lambda: False) -> Written:
        """Write the changes; the result has the unwritten ones, each with its reason. `seen` is the listing on which
        they are based; topics edited since are not changed (a CONFLICT problem). Once `stop` is true, a long write
        ends, and the other changes are left. Raises DirectoryError for a failure of the directory; then the changes may
        be partly written, and may be repeated."""

    def watch(self, watcher: Watcher) -> None:
        """Start to report all changes to `watcher`, in a thread of the directory. Call once."""

    def close(self) -> None:
        """Stop watching and close connections. Returns after the end of the thread."""


def conflicts(changes: Sequence[Change], seen: Listing, now: Listing) -> dict[Change, EntryProblem]:
    """The changes of topics edited since `seen`: the edit takes precedence, and the next sync resolves it."""
    if seen is now:
        return {}
    found: dict[Change, EntryProblem] = {}
    for change in changes:
        for path in touched(change):
            before, after = seen.entries.get(path), now.entries.get(path)
            if (before and before.record) != (after and after.record) or path in now.held - seen.held:
                reason = "not written: it was edited in the directory meanwhile"
                found[change] = EntryProblem(ProblemKind.CONFLICT, after.dn if after else path, reason, path)
    return found


def touched(change: Change) -> tuple[TopicPath, ...]:
    """The topics of a change."""
    match change:
        case Put(record):
            return (record.path,)
        case Remove(path):
            return (path,)
        case Move(old, new):
            return (old, new)
