"""What a directory is to the rest of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from arborcast.directory.entries.changes import Change, Move, Put, Remove
from arborcast.directory.entries.mapping import EntryProblem, Listing, ProblemKind
from arborcast.directory.errors import DirectoryError
from arborcast.topic_model.topics import TopicPath


class Watcher(Protocol):
    """Hears of changes. Called from the directory's thread, never twice at once; must return soon and not raise."""

    def changed(self, listing: Listing) -> None:
        """All that the directory holds now: soon after `watch` began, after each change, after each reconnect."""

    def away(self, error: DirectoryError) -> None:
        """The directory cannot be read, and why; the listing last given still stands. The next `changed` ends it."""


@dataclass(frozen=True)
class Written:
    """What came of a write: the changes that were not carried out, and what the directory holds now."""

    problems: tuple[EntryProblem, ...]
    listing: Listing


class Directory(Protocol):
    """A topic tree that people can edit. Safe to use from several threads."""

    @property
    def name(self) -> str:
        """Where it is, for messages: a path or a URL with the base DN."""

    def load(self) -> Listing:
        """Read everything now. Raises DirectoryError."""

    def write(self, changes: Sequence[Change], seen: Listing) -> Written:
        """Carry out the changes; what could not be is returned, each with its reason.

        `seen` is the listing on which the changes were decided; a topic that somebody has edited since is left alone
        (a CONFLICT problem). Raises DirectoryError when the directory as a whole is at fault; the changes may then be
        done in part, and may be repeated.
        """

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` of everything from now on, in a thread of the directory's own. Call once."""

    def close(self) -> None:
        """Stop watching and let go of connections. Returns when the thread has ended."""


def conflicts(changes: Sequence[Change], seen: Listing, now: Listing) -> dict[Change, EntryProblem]:
    """The changes whose topics have been edited since `seen`: a person's edit wins, the next sync settles it."""
    if seen is now:
        return {}
    found: dict[Change, EntryProblem] = {}
    for change in changes:
        for path in touched(change):
            before, after = seen.entries.get(path), now.entries.get(path)
            if (before and before.record) != (after and after.record) or path in now.held - seen.held:
                reason = "not written: somebody has edited it in the directory meanwhile"
                found[change] = EntryProblem(ProblemKind.CONFLICT, after.dn if after else path, reason, path)
    return found


def touched(change: Change) -> tuple[TopicPath, ...]:
    """The topics that a change names."""
    match change:
        case Put(record):
            return (record.path,)
        case Remove(path):
            return (path,)
        case Move(old, new):
            return (old, new)
