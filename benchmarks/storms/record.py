"""The outside record of a storm: what was acknowledged to publishers and what arrived at receivers, nothing else.

It is written while the storm lasts, one JSON line per fact, by processes that know nothing of the engine's own books.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from arborcast.topic_model.subscriptions import Reliability


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message that got its 202. `at` is when its request was sent, `done` when the answer was there. `reliable` says
    that nobody was to lose it for the sake of time."""

    mark: str
    topic: str
    at: float
    done: float
    reliable: bool = False


@dataclass(frozen=True, slots=True)
class Arrival:
    """A push, or an answer to GetMessages: the marks of the messages in it, in order. `settled` is when the receiver
    had answered that it takes them, or refuses them for good, and `refused` which of both; None when it did neither."""

    receiver: str
    at: float
    marks: tuple[str, ...]
    attempt: int
    behaviour: str = ""
    settled: float | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """Parts that were killed at a moment, and when deliveries were back; None when the next kill came before that."""

    at: float
    parts: tuple[str, ...]
    accepted_again: float | None = None
    delivered_again: float | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A subscription as the outside knows it: which topics it wants, and how."""

    receiver: str
    topics: frozenset[str]
    strict: bool = False
    pulled: bool = False
    reliability: Reliability = "adaptive"


@dataclass
class Record:
    """All of it. `accepted` is in the order of the answers within each topic."""

    wanted: list[Wanted] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)


def append(file: Path, arrival: Arrival) -> None:
    """Write one arrival down."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(asdict(arrival)) + "\n")


def arrivals(file: Path) -> Iterator[Arrival]:
    """What was written; a line that is being written is left out."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield arrival_in(line)


def arrival_in(line: str) -> Arrival:
    """The arrival of a line."""
    document = json.loads(line)
    return Arrival(**{**document, "marks": tuple(document["marks"])})
