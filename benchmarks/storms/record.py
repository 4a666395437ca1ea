"""The record of a storm: messages acknowledged to publishers, and arrivals at receivers.

Written during the storm, one JSON line for each, by processes without access to the engine's logs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from arborcast.topic_model.subscriptions import Reliability


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message that was answered with 202. `at` is the time of its request, `done` that of the answer. `reliable` ones
    must not be dropped."""

    mark: str
    topic: str
    at: float
    done: float
    reliable: bool = False


@dataclass(frozen=True, slots=True)
class Arrival:
    """A push, or an answer to GetMessages, with the marks of its messages in order. `settled` is the time of the
    receiver's final answer, None without one; `refused`: that was a permanent refusal."""

    receiver: str
    at: float
    marks: tuple[str, ...]
    attempt: int
    behaviour: str = ""
    settled: float | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """Parts that were killed at a time, and the time of the next delivered message; None if the next kill was
    earlier."""

    at: float
    parts: tuple[str, ...]
    delivered_again: float | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A subscription: its topics and policy."""

    receiver: str
    topics: frozenset[str]
    strict: bool = False
    pulled: bool = False
    reliability: Reliability = "adaptive"


@dataclass
class Record:
    """The whole record. `accepted` is in the order of the answers within each topic."""

    wanted: list[Wanted] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)


def append(file: Path, arrival: Arrival) -> None:
    """Write an arrival."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(asdict(arrival)) + "\n")


def arrivals(file: Path) -> Iterator[Arrival]:
    """The written arrivals, without an incomplete line at the end."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield arrival_in(line)


def arrival_in(line: str) -> Arrival:
    """The arrival of a line."""
    document = json.loads(line)
    return Arrival(**{**document, "marks": tuple(document["marks"])})
