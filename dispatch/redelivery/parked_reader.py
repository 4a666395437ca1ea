"""Reading the `parked` log on from where a file has come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kafka import errors

from core.errors import InfrastructureError
from core.eventlog.client import Consumer, ConsumerRecord, TopicPartition, make_consumer, translated
from core.eventlog.settings import KafkaSettings
from dispatch.logs.parked import roomy

# A poll with nothing to read ends by then, whatever was asked for.
_WAIT_MS = 250


class Discontinued(InfrastructureError):
    """The log does not go on where we were: what was folded is of another one, or too old."""


class ParkedReading:
    """Used by one thread. Connects when first used; everything raises InfrastructureError."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._topic = kafka.topic("parked")
        self._timeout_ms = int(kafka.request_timeout_s * 1000)
        self._consumer: Consumer | None = None
        self._partitions: list[TopicPartition] = []
        self.positions: dict[int, int] = {}

    def begin(self, known: Mapping[int, int]) -> None:
        """Go on at these positions; raises Discontinued when they are not of this log."""
        consumer = self._open()
        with translated("the log of parked deliveries cannot be read"):
            numbers = sorted(consumer.partitions_for_topic(self._topic) or ())
            self._partitions = [TopicPartition(self._topic, number) for number in numbers]
            if not self._partitions:
                raise InfrastructureError(f"Kafka topic {self._topic} does not exist yet", 1.0)
            consumer.assign(self._partitions)
            first = consumer.beginning_offsets(self._partitions, timeout_ms=self._timeout_ms)
        ends = self.ends()
        if any(known.get(partition, 0) > end for partition, end in ends.items()):
            raise Discontinued("the log of parked deliveries was created anew, what was known is of the old one")
        for each in self._partitions:
            self.positions[each.partition] = max(known.get(each.partition, 0), first[each])
            consumer.seek(each, self.positions[each.partition])

    def ends(self) -> dict[int, int]:
        """Where each partition ends now."""
        with translated("the end of the log of parked deliveries cannot be found"):
            ends = self._open().end_offsets(self._partitions, timeout_ms=self._timeout_ms)
        return {each.partition: end for each, end in ends.items()}

    def reached(self, ends: Mapping[int, int]) -> bool:
        """Whether everything before these offsets was read."""
        return all(self.positions[partition] >= end for partition, end in ends.items())

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Sequence[ConsumerRecord]]]:
        """What comes within this time, by partition; each counts as read when the next is asked for."""
        try:
            with translated("the log of parked deliveries cannot be read"):
                polled = self._open().poll(timeout_ms=int(timeout_s * 1000))
        except InfrastructureError as error:
            if isinstance(error.__cause__, (errors.OffsetOutOfRangeError, errors.LogTruncationError)):
                raise Discontinued(str(error)) from error
            raise
        for each, records in polled.items():
            if records:
                yield each.partition, records
                self.positions[each.partition] = records[-1].offset + 1

    def close(self) -> None:
        """Free the connection."""
        if self._consumer is not None:
            self._consumer.close(autocommit=False, timeout_ms=500)

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = make_consumer(roomy(self._kafka), wait_ms=_WAIT_MS)
        return self._consumer
