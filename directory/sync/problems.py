"""What the sync cannot take over from the directory, or write to it: which entry, why, since when, and what to do. In a
small file of the engine's own, for commands and pages, which are other processes."""

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
"""In the data directory."""

_VERSION = 1

# A directory full of foreign entries shall not fill the disk; all are counted.
_MOST = 1_000

_ADVICE: Final[Mapping[ProblemKind, str]] = {
    ProblemKind.ALIAS: "Put an entry of its own in the place of the alias.",
    ProblemKind.FOREIGN: "Move it out of the topics' part of the directory, or make it an arborcastTopic.",
    ProblemKind.ORPHAN: "Correct the entry above it first, or move it below one that is part of the tree.",
    ProblemKind.MISSING_ATTRIBUTE: "Give the entry the attribute.",
    ProblemKind.ILLEGAL_NAME: "Rename the entry: letters, digits, - _ and . are legal, and a letter or _ begins.",
    ProblemKind.BAD_VALUE: "Correct the attribute in the directory.",
    ProblemKind.DUPLICATE_TOPIC: "Remove one of the two entries, or rename it.",
    ProblemKind.DUPLICATE_CODE: "Give one of the two topics another code.",
    ProblemKind.BELOW_FINAL: "Take `final` from the topic above, or move the entry.",
    ProblemKind.CONFLICT: "Nothing: the edit in the directory is taken over next.",
    ProblemKind.REFUSED: "It is tried again every minute: allow it in the directory, or change the topic.",
}


class SyncProblem(msgspec.Struct, frozen=True):
    """One of them. `dn` is the entry where there is one, else the topic's path."""

    kind: str
    dn: str
    reason: str
    path: str = ""
    since_ms: int = 0

    @property
    def advice(self) -> str:
        """What to do; empty for a kind that a later version knows."""
        return next((text for kind, text in _ADVICE.items() if kind.value == self.kind), "")


class SyncProblems(msgspec.Struct, frozen=True):
    """All of one directory: so many, of which the first are named."""

    v: int = _VERSION
    directory: str = ""
    count: int = 0
    problems: tuple[SyncProblem, ...] = ()

    def now(self, directory: str, found: Iterable[EntryProblem], now_ms: int) -> SyncProblems:
        """These, each since it was seen first."""
        before = self.problems if self.directory == directory else ()
        since = {(each.kind, each.dn, each.reason): each.since_ms for each in before}
        made = [SyncProblem(each.kind.value, each.dn, each.reason, each.path or "") for each in found]
        return SyncProblems(
            directory=directory,
            count=len(made),
            problems=tuple(
                msgspec.structs.replace(each, since_ms=since.get((each.kind, each.dn, each.reason), now_ms))
                for each in made[:_MOST]
            ),
        )


def load_problems(path: Path) -> SyncProblems:
    """What the file says; no problems where it is not there, or cannot be read."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=SyncProblems)
    except FileNotFoundError:
        return SyncProblems()
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("directory.problems-lost %s: %s", path, error)
        return SyncProblems()
    return found if found.v == _VERSION else SyncProblems()


def save_problems(path: Path, problems: SyncProblems) -> None:
    """Replace the file in one step. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not durable: the first run after a start finds them again.
    write_atomically(path, msgspec.json.encode(problems), durable=False)


class ProblemFile:
    """Writes the problems of one directory; without a file it does nothing."""

    def __init__(self, path: Path | None, directory: str) -> None:
        self._path = path
        self._directory = directory
        self._saved = load_problems(path) if path else SyncProblems()

    def save(self, found: Iterable[EntryProblem], now_ms: int) -> None:
        """Write the problems of a run if they differ from the last ones. Raises OSError."""
        problems = self._saved.now(self._directory, found, now_ms)
        if self._path is not None and problems != self._saved:
            save_problems(self._path, problems)
            self._saved = problems
