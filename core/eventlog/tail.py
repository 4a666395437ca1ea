"""Following a log of one or many partitions, from where the reader was."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from core.errors import InfrastructureError
from core.eventlog.client import RETRY_AFTER_S, Consumer, ConsumerRecord, TopicPartition, make_consumer, translated
from core.eventlog.settings import KafkaSettings

# Where bytes count: so many of the largest ones are not too many yet.
_RECORDS_AT_ONCE = 64


class Replaced(InfrastructureError):
    """The log ends before our position: it is not the one that we have read."""


class Tail:
    """The records of a log that come after given positions (the next offset, by partition); without one, from the
    log's beginning. Used by one thread. Raises InfrastructureError while the broker is away, Replaced when the log ends
    before what somebody has `seen` of it."""

    def __init__(
        self, kafka: KafkaSettings, name: str, positions: Mapping[int, int], seen: Mapping[int, int] | None = None
    ) -> None:
        self._kafka = kafka
        self._name = name
        self._positions = dict(positions)
        self._seen = positions if seen is None else seen
        self._partitions: list[TopicPartition] = []
        self._consumer: Consumer | None = None

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset of each partition that has been read from."""
        return self._positions

    def read(self, limit: int, limit_bytes: int | None = None) -> Sequence[ConsumerRecord]:
        """What is in the log now and has not been read, about `limit` records or so many bytes at most; in order by
        partition."""
        try:
            with translated(f"the {self._name} log cannot be read"):
                return self._read(limit, limit_bytes)
        except InfrastructureError:
            self.close()
            raise

    def _read(self, limit: int, limit_bytes: int | None) -> list[ConsumerRecord]:
        if self._consumer is not None and len(self._partitions) != len(self._numbers(self._consumer)):
            # Somebody has given the log more of them.
            self.close()
        consumer = self._connected()
        deadline = time.monotonic() + self._kafka.request_timeout_s
        ends = consumer.end_offsets(self._partitions, timeout_ms=int(self._kafka.request_timeout_s * 1000))
        found: list[ConsumerRecord] = []
        size = 0
        while len(found) < limit and any(consumer.position(each) < ends[each] for each in self._partitions):
            at_once = limit if limit_bytes is None else _RECORDS_AT_ONCE
            polled = consumer.poll(timeout_ms=500, max_records=min(at_once, limit - len(found)))
            for records in polled.values():
                found.extend(records)
                size += sum(len(each.value or b"") for each in records) if limit_bytes is not None else 0
            if limit_bytes is not None and size >= limit_bytes:
                break
            if time.monotonic() > deadline:
                if not found:
                    raise InfrastructureError(f"the {self._name} log could not be read in time", RETRY_AFTER_S)
                break
        self._positions = {each.partition: consumer.position(each) for each in self._partitions}
        return found

    def close(self) -> None:
        """Free the connection; a later read opens another."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(autocommit=False, timeout_ms=500)

    def _connected(self) -> Consumer:
        if self._consumer is None:
            consumer = make_consumer(self._kafka, wait_ms=10, max_records=5_000)
            try:
                self._place(consumer)
            except BaseException:
                consumer.close(autocommit=False, timeout_ms=500)
                raise
            self._consumer = consumer
        return self._consumer

    def _place(self, consumer: Consumer) -> None:
        topic = self._kafka.topic(self._name)
        self._partitions = [TopicPartition(topic, number) for number in sorted(self._numbers(consumer))]
        if not self._partitions:
            raise InfrastructureError(f"Kafka topic {topic} does not exist yet", RETRY_AFTER_S)
        timeout_ms = int(self._kafka.request_timeout_s * 1000)
        beginnings = consumer.beginning_offsets(self._partitions, timeout_ms=timeout_ms)
        ends = consumer.end_offsets(self._partitions, timeout_ms=timeout_ms)
        consumer.assign(self._partitions)
        for each in self._partitions:
            if self._seen.get(each.partition, 0) > ends[each]:
                raise Replaced(
                    f"the {self._name} log was made anew: it ends at {ends[each]}, we have read up to "
                    f"{self._seen[each.partition]}"
                )
            position = self._positions.get(each.partition, 0)
            consumer.seek(each, max(position, beginnings[each]))

    def _numbers(self, consumer: Consumer) -> set[int]:
        return consumer.partitions_for_topic(self._kafka.topic(self._name)) or set()
