"""Figures of the job that are read only for a scrape or a page."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql.streaming.query import StreamingQuery

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery.health import Health
from arborcast.dispatch.queues.servers import QueueFigures


@dataclass(frozen=True)
class QueryProgress:
    """The last completed batch: its rows, and the seconds of each of Spark's stages; and the offset before which all is
    settled, by partition."""

    rows: int = 0
    settled: Mapping[int, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)


def progress_of(query: StreamingQuery | None, settled: Mapping[int, int]) -> QueryProgress:
    """The progress of a query that has settled its log up to these offsets. Spark's part is read in one call, without a
    listener, so that a batch has no cost."""
    if query is not None:
        # When the query, Spark or the JVM is ending, py4j raises various exceptions.
        with suppress(Exception):
            found: Any = query._jsq.lastProgress()  # noqa: SLF001  # the public property calls the JVM for each value
            if found is not None:
                return read_progress(str(found.json()), settled)
    return QueryProgress(settled=settled)


def read_progress(text: str, settled: Mapping[int, int]) -> QueryProgress:
    """Parse Spark's JSON."""
    document = json.loads(text)
    stages = {name: milliseconds / 1000 for name, milliseconds in document["durationMs"].items()}
    return QueryProgress(int(document["numInputRows"]), settled, stages)


# More than an hour of readings with an interval of a few seconds; older readings are thinned out.
_MOST_MARKS = 1_000


@dataclass(frozen=True)
class Lag:
    """Unsettled records of a log, and the age of the oldest of them, in seconds."""

    records: int = 0
    seconds: float = 0.0


class LagClock:
    """Stores the log's end at earlier readings: a record beyond it was written later. It reads no record. The seconds
    are a lower bound, with the precision of the interval between two readings."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, Mapping[int, int]]] = deque()

    def measure(self, now: float, ends: Mapping[int, int], settled: Mapping[int, int]) -> Lag:
        """The current lag. `ends`, `settled`: by partition, the offsets of the next record to be written and to
        settle."""
        if self._marks and any(ends.get(each, end) < end for each, end in self._marks[-1][1].items()):
            self._marks.clear()  # the log was created again
        self._marks.append((now, dict(ends)))
        while len(self._marks) > 1 and not _has_unsettled(self._marks[0][1], settled):
            self._marks.popleft()
        if len(self._marks) > _MOST_MARKS:
            self._marks = deque(mark for number, mark in enumerate(self._marks) if number % 2 == 0)
        records = sum(max(0, end - settled.get(partition, end)) for partition, end in ends.items())
        at, marked = self._marks[0]
        return Lag(records, now - at if records and _has_unsettled(marked, settled) else 0.0)


def _has_unsettled(ends: Mapping[int, int], settled: Mapping[int, int]) -> bool:
    return any(end > settled.get(partition, end) for partition, end in ends.items())


class ViewSize(NamedTuple):
    """The workers' view: entries of the base, the time when it was made (seconds since the epoch), entries of the
    overlay, bytes of both."""

    base: int = 0
    made_at: float = 0.0
    overlay: int = 0
    base_bytes: int = 0
    overlay_bytes: int = 0


@dataclass
class Sources:
    """Sources of figures that are read on request. The defaults are those before the job's start."""

    view: Callable[[], ViewSize] = ViewSize
    """The workers' view."""
    waiting: Callable[[], Mapping[str, float]] = dict
    """By kind: `parked`, `due`."""
    redelivery_failures: Callable[[], float] = float
    """Failed sessions of the redelivery since the start."""
    breakers: Callable[[], Mapping[str, float]] = dict
    """Endpoints by the state of their breaker."""
    health: Callable[[], Mapping[str, Health]] = dict
    """Endpoints that are not healthy."""
    pushes: Callable[[], Mapping[str, float]] = dict
    """Pushes in flight: of `batch`, if known, and of `redelivery`."""
    notices: Callable[[], float] = float
    """The number of stored notifications of the engine's own."""
    queues: Callable[[], Sequence[QueueFigures]] = tuple
    """The work queues."""
    erasures: Callable[[], float] = float
    """Erasures that are not done."""
    erased: Callable[[], float] = float
    """Copies removed by erasures."""
    lag: Callable[[], Mapping[str, Lag]] = dict
    """By follower of a log."""
    behind: Callable[[], Mapping[str, float]] = dict
    """By work on tables, the seconds for which it has failed or been behind."""
    progress: Callable[[], Mapping[str, QueryProgress]] = dict
    """By follower of a log."""


# Parallel requests of pages, or several gauges of one page, use one reading.
_FRESH_S = 1.0

# Timeout of a query to Kafka; without an answer the figures of all followers are left out, for a pause: a scrape that
# waits for Kafka each time fails, and the job seems to be gone.
_PATIENCE_S = 1.5
_PAUSE_S = 15.0


class Watched(NamedTuple):
    """A follower of a log, and its progress."""

    log: str
    progress: Callable[[], QueryProgress | None]


class FollowerFigures:
    """The progress and the lag of followers. Spark and Kafka are queried only on request, and at most once a second."""

    def __init__(self, kafka: KafkaSettings, followers: Mapping[str, Watched]) -> None:
        self._followers = followers
        kafka = dataclasses.replace(kafka, request_timeout_s=min(kafka.request_timeout_s, _PATIENCE_S))
        self._logs = {each.log: LogConsumer(kafka, each.log) for each in followers.values()}
        self._clocks = {name: LagClock() for name in followers}
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._read_at = self._asks_at = 0.0
        self._progress: dict[str, QueryProgress] = {}
        self._lag: dict[str, Lag] = {}

    def progress(self) -> Mapping[str, QueryProgress]:
        self._refresh()
        return self._progress

    def lag(self) -> Mapping[str, Lag]:
        self._refresh()
        return self._lag

    def _refresh(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._read_at < _FRESH_S:
                return
            found = {name: followed.progress() for name, followed in self._followers.items()}
            self._progress = {name: progress for name, progress in found.items() if progress is not None}
            # Tables that cannot be read have no positions.
            self._lag = {name: Lag(0, now - self._began) for name in found.keys() - self._progress.keys()}
            for name, progress in self._progress.items():
                # All partitions: an added one has no settled records, and one that Spark does not know yet counts from
                # its beginning.
                ends = self._ends(self._logs[self._followers[name].log])
                if ends:
                    settled = dict.fromkeys(ends, 0) | dict(progress.settled)
                    self._lag[name] = self._clocks[name].measure(now, ends, settled)
            self._read_at = time.monotonic()

    def _ends(self, log: LogConsumer) -> Mapping[int, int]:
        """The offset of the next record, by partition; empty if unknown."""
        if time.monotonic() < self._asks_at:
            return {}
        try:
            return log.ends(_PATIENCE_S)
        except InfrastructureError:
            log.close()
            self._asks_at = time.monotonic() + _PAUSE_S
            return {}
