"""The directory of the topics: its differences from the control log."""

from __future__ import annotations

from pathlib import Path

import msgspec

from arborcast.directory.sync.problems import FILE, load_problems


class DirectoryProblem(msgspec.Struct, frozen=True):
    """An entry or a topic that cannot be synchronized, with advice. `entry` is the path of a topic without an entry."""

    entry: str
    topic: str
    since_ms: int
    kind: str
    reason: str
    advice: str


class ProblemList(msgspec.Struct, frozen=True):
    """The problems of a directory: their number, and the first of them."""

    directory: str
    count: int
    problems: tuple[DirectoryProblem, ...]


def problems(home: Path) -> ProblemList:
    """The differences between the topics and their directory, recorded by the gateway in the data directory."""
    found = load_problems(home / FILE)
    named = (
        DirectoryProblem(each.dn, each.path, each.since_ms, each.kind, each.reason, each.advice)
        for each in found.problems
    )
    return ProblemList(found.directory, found.count, tuple(named))
