"""Where the job's metrics look when somebody asks: Spark for the progress of queries, Kafka for the ends of logs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from kafka import TopicPartition
from pyspark.sql.streaming.query import StreamingQuery

from dispatch.monitoring.lag import Lag, LagClock
from dispatch.monitoring.progress import Progress, progress_of
from dispatch.monitoring.sources import ViewSize
from topic_model.errors import InfrastructureError
from topic_model.kafka_client import Consumer, make_consumer, translated
from topic_model.settings import KafkaSettings

# Two pages asked for at once, or five gauges of one page, are answered from one look.
_FRESH_S = 1.0
_PATIENCE_MS = 2_000


class HasQuery(Protocol):
    """Somebody who keeps a query running."""

    @property
    def query(self) -> StreamingQuery | None:
        """The query as last started."""


class HasSize(Protocol):
    """The view of the workers."""

    @property
    def size(self) -> ViewSize:
        """How big it is."""


class Watched(NamedTuple):
    """Somebody who follows a log, and how far that is."""

    log: str
    progress: Callable[[], Progress | None]


def watched_query(log: str, keeper: HasQuery) -> Watched:
    """A query and the log that it reads."""
    return Watched(log, lambda: progress_of(keeper.query))


class JobSources:
    """See `sources.Sources`. Nothing is asked of Spark or Kafka more than once a second, or by itself."""

    def __init__(
        self,
        kafka: KafkaSettings,
        followers: Mapping[str, Watched],
        view: HasSize,
        waiting: Callable[[], Mapping[str, float]] = dict,
        breakers: Callable[[], Mapping[str, float]] = dict,
        pushes: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._followers = followers
        self._view = view
        self._ends = _Ends(kafka)
        self._clocks = {name: LagClock() for name in followers}
        self._lock = threading.Lock()
        self._looked = 0.0
        self._progress: dict[str, Progress] = {}
        self._lag: dict[str, Lag] = {}
        self.waiting = waiting
        self.breakers = breakers
        self.pushes = pushes

    def progress(self) -> Mapping[str, Progress]:
        self._look()
        return self._progress

    def lag(self) -> Mapping[str, Lag]:
        self._look()
        return self._lag

    def view(self) -> ViewSize:
        return self._view.size

    def _look(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._looked < _FRESH_S:
                return
            found = {name: watched.progress() for name, watched in self._followers.items()}
            self._progress = {name: progress for name, progress in found.items() if progress is not None}
            self._lag = {}
            for name, progress in self._progress.items():
                # Their number: a partition that was added has nothing settled, and one that Spark does not know yet
                # counts from its beginning.
                ends = self._ends.of(self._followers[name].log)
                if ends:
                    settled = dict.fromkeys(ends, 0) | dict(progress.settled)
                    self._lag[name] = self._clocks[name].look(now, ends, settled)
            self._looked = time.monotonic()


class _Ends:
    """Where logs end. A broker that is away costs two seconds at most, and its figures are left out."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._consumer: Consumer | None = None

    def of(self, log: str) -> Mapping[int, int]:
        """The offset of the next record, by partition; empty when nobody can say."""
        topic = self._kafka.topic(log)
        try:
            with translated(f"Kafka topic {topic} cannot be asked for its end"):
                if self._consumer is None:
                    self._consumer = make_consumer(self._kafka, wait_ms=10)
                partitions = [TopicPartition(topic, each) for each in self._consumer.partitions_for_topic(topic) or ()]
                ends = self._consumer.end_offsets(partitions, timeout_ms=_PATIENCE_MS)
        except InfrastructureError:
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                consumer.close(autocommit=False, timeout_ms=0)
            return {}
        return {partition.partition: end for partition, end in ends.items()}
