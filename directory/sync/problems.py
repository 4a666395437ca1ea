"""Problems of the sync, with their entries, reasons, times and advice: invalid edits of the directory, and refused
writes. In a small file in the data directory, for commands and pages, which are other processes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from arborcast.core.files import write_atomically
from arborcast.directory.entries.mapping import EntryProblem, ProblemKind

_log = logging.getLogger(__name__)

FILE: Final = "directory-problems.json"
"""The name of the file in the data directory."""

_VERSION = 1

# A directory with many foreign entries must not fill the disk; further problems are only counted.
_MAX_PROBLEMS = 1_000

_ADVICE: Final[Mapping[ProblemKind, str]] = {
    ProblemKind.ALIAS: "Replace the alias by an ordinary entry.",
    ProblemKind.FOREIGN: "Move the entry out of the topic tree, or make it an arborcastTopic.",
    ProblemKind.ORPHAN: "Correct the entry above it first, or move it below an entry of the tree.",
    ProblemKind.MISSING_ATTRIBUTE: "Add the attribute to the entry.",
    ProblemKind.ILLEGAL_NAME: "Rename the entry: letters, digits, - _ and . are allowed, a letter or _ at the start.",
    ProblemKind.BAD_VALUE: "Correct the attribute in the directory.",
    ProblemKind.DUPLICATE_TOPIC: "Remove one of the two entries, or rename it.",
    ProblemKind.DUPLICATE_CODE: "Give one of the two topics another code.",
    ProblemKind.BELOW_FINAL: "Remove `final` from the topic above, or move the entry.",
    ProblemKind.CONFLICT: "No action is required: the edit in the directory is imported next.",
    ProblemKind.REFUSED: "The write is repeated every minute: allow it in the directory, or change the topic.",
}


class SyncProblem(msgspec.Struct, frozen=True):
    """One problem. `dn` is the entry, or the topic's path without an entry."""

    kind: str
    dn: str
    reason: str
    path: str = ""
    since_ms: int = 0

    @property
    def advice(self) -> str:
        """The advice for the operator; empty for an unknown kind, of a later version."""
        return next((text for kind, text in _ADVICE.items() if kind.value == self.kind), "")


class SyncProblems(msgspec.Struct, frozen=True):
    """The problems of one directory: their number, and the first ones."""

    v: int = _VERSION
    directory: str = ""
    count: int = 0
    problems: tuple[SyncProblem, ...] = ()

    def now(self, directory: str, found: Iterable[EntryProblem], now_ms: int) -> SyncProblems:
        """The found problems, each with the time of its first occurrence."""
        before = self.problems if self.directory == directory else ()
        since = {(each.kind, each.dn, each.reason): each.since_ms for each in before}
        named = [((each.kind.value, each.dn, each.reason), each.path or "") for each in found]
        problems = [SyncProblem(*what, path, since.get(what, now_ms)) for what, path in named[:_MAX_PROBLEMS]]
        return SyncProblems(directory=directory, count=len(named), problems=tuple(problems))


def load_problems(path: Path) -> SyncProblems:
    """The problems in the file; none if it is missing or unreadable."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=SyncProblems)
    except FileNotFoundError:
        return SyncProblems()
    except (OSError, ValueError) as error:  # not JSON, or not UTF-8
        _log.warning("directory.problems-lost %s: %s", path, error)
        return SyncProblems()
    return found if found.v == _VERSION else SyncProblems()


class ProblemFile:
    """Writes the problems of one directory."""

    def __init__(self, path: Path, directory: str) -> None:
        self._path = path
        self._directory = directory
        self._saved = load_problems(path)

    def save(self, found: Iterable[EntryProblem], now_ms: int) -> None:
        """Write the problems of a run if they differ from the last ones. Raises OSError."""
        problems = self._saved.now(self._directory, found, now_ms)
        if problems != self._saved:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Not durable: the first run after a start finds the problems again.
            write_atomically(self._path, msgspec.json.encode(problems), durable=False)
            self._saved = problems
