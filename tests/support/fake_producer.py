"""A fake of kafka-python's producer: records are acknowledged when the test calls for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from kafka.errors import KafkaTimeoutError

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import Producer
from arborcast.core.settings import KafkaSettings


@dataclass
class Sent:
    """A record, and the future of its acknowledgement."""

    topic: str
    partition: int
    key: bytes
    value: bytes
    acknowledge: Callable[[object], object] = lambda _: None
    fail: Callable[[BaseException], object] = lambda _: None

    def add_callback(self, call: Callable[[object], object]) -> None:
        self.acknowledge = call

    def add_errback(self, call: Callable[[BaseException], object]) -> None:
        self.fail = call


class FakeProducer:
    """Refuses the first `refusals` records. `written` is called with each stored record and returns its offset."""

    broken = False

    def __init__(
        self, partitions: int = 1, refusals: int = 0, written: Callable[[Sent], int] = lambda record: 0
    ) -> None:
        self.partitions = partitions
        self.refusals = refusals
        self.taken: list[Sent] = []
        self.open: list[Sent] = []
        self.aborted = False
        self._written = written

    def partitions_for(self, topic: str) -> set[int]:
        return set(range(self.partitions))

    def send(self, topic: str, *, value: bytes, key: bytes, partition: int) -> Sent:
        self.open.append(Sent(topic, partition, key, value))
        return self.open[-1]

    def take(self, count: int = 1_000_000) -> None:
        """Acknowledge the first records."""
        for _ in range(min(count, len(self.open))):
            record = self.open.pop(0)
            if self.refusals:
                self.refusals -= 1
                record.fail(KafkaTimeoutError("away"))
            else:
                self.taken.append(record)
                record.acknowledge(SimpleNamespace(partition=record.partition, offset=self._written(record)))

    def flush(self, timeout: float | None = None) -> None:
        self.take()

    def abort(self) -> None:
        self.aborted = True
        self.open.clear()


def connecting(*producers: Any) -> Callable[[KafkaSettings], Producer]:
    """Connections to these producers, one after the other, then to the last; for None the broker does not answer."""
    remaining = list(producers)

    def connect(_: KafkaSettings) -> Producer:
        producer = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        if producer is None:
            raise InfrastructureError("the Kafka broker does not answer", 1.0)
        return cast(Producer, producer)

    return connect
