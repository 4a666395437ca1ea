"""Reading a log: its beginning and end, and records from a position. The base of all readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka import errors

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import (
    RETRY_AFTER_S,
    Consumer,
    ConsumerRecord,
    TopicPartition,
    make_consumer,
    translated,
)
from arborcast.core.settings import KafkaSettings

# Time for which a broker holds an empty fetch by default.
WAIT_MS = 10

# More records per poll cost memory and gain nothing measurable.
MAX_RECORDS = 5_000


class Discontinued(InfrastructureError):
    """The log does not continue at this position: records were deleted, or it is another log."""


class Replaced(Discontinued):
    """The log ends before our position, so it was created again."""


class LogConsumer:
    """Reads a log. Connects on the first use, and again after `close`, which requires another `seek`. For one thread.
    Offsets are by partition. All methods raise InfrastructureError if Kafka does not answer or the log does not exist.

    `wait_ms` is the time for which the broker holds an empty poll, and so the possible delay of any other answer (see
    `core.eventlog.client.make_consumer`).
    """

    def __init__(
        self, kafka: KafkaSettings, name: str, *, wait_ms: int = WAIT_MS, max_records: int = MAX_RECORDS
    ) -> None:
        self.kafka = kafka
        self.name = name
        self.topic = kafka.topic(name)
        self._wait_ms = wait_ms
        self._max_records = max_records
        self._consumer: Consumer | None = None
        self._assigned: list[TopicPartition] = []

    @property
    def placed(self) -> bool:
        """Whether the current connection has a position."""
        return bool(self._assigned)

    def partitions(self) -> list[int]:
        with translated(f"the {self.name} log cannot be read"):
            numbers = self._connected().partitions_for_topic(self.topic)
        if not numbers:
            raise InfrastructureError(f"Kafka topic {self.topic} does not exist yet", RETRY_AFTER_S)
        return sorted(numbers)

    def topic_id(self) -> str:
        """The id of the Kafka topic, which differs in each cluster and after each creation; empty if the broker has no
        ids."""
        self.partitions()
        return self._connected().topic_id(self.topic)

    def beginnings(self, timeout_s: float | None = None) -> dict[int, int]:
        """The first existing offset."""
        partitions = self._all()
        with translated(f"the beginning of the {self.name} log cannot be found"):
            found = self._connected().beginning_offsets(partitions, timeout_ms=self._timeout_ms(timeout_s))
        return {each.partition: found[each] for each in partitions}

    def ends(self, timeout_s: float | None = None) -> dict[int, int]:
        """The offset after the last record."""
        partitions = self._all()
        with translated(f"the end of the {self.name} log cannot be found"):
            found = self._connected().end_offsets(partitions, timeout_ms=self._timeout_ms(timeout_s))
        return {each.partition: found[each] for each in partitions}

    def end(self, timeout_s: float | None = None) -> int:
        """That of a log with one partition."""
        (end,) = self.ends(timeout_s).values()
        return end

    def at(self, ms: int) -> dict[int, int]:
        """The first offset written at this time or later; without one, the end of the log."""
        ends = self.ends()
        with translated(f"a time in the {self.name} log cannot be found"):
            found = self._connected().offsets_for_times(dict.fromkeys(self._all(), max(0, ms)))
        first = {each.partition: at for each, at in found.items()}
        return {number: end if (at := first.get(number)) is None else at.offset for number, end in ends.items()}

    def seek(self, positions: Mapping[int, int]) -> None:
        """Set the positions of the next poll; other partitions are not read."""
        with translated(f"the {self.name} log cannot be read"):
            consumer = self._connected()
            self._assigned = [TopicPartition(self.topic, number) for number in sorted(positions)]
            consumer.assign(self._assigned)
            for each in self._assigned:
                consumer.seek(each, positions[each.partition])

    def positions(self) -> dict[int, int]:
        """The offset of the next poll. At the end of a compacted log, or one with transactions, it may be beyond the
        last record, since offsets can be missing."""
        with translated(f"the {self.name} log cannot be read"):
            consumer = self._connected()
            return {each.partition: consumer.position(each) for each in self._assigned}

    def unread(self) -> int:
        """The number of offsets before the end of the log, according to the last answers of the broker: no request."""
        with translated(f"the {self.name} log cannot be read"):
            consumer = self._connected()
            lags = ((consumer.highwater(each) or 0) - consumer.position(each) for each in self._assigned)
            return sum(lag for lag in lags if lag > 0)

    def poll(self, timeout_s: float, max_records: int | None = None) -> dict[int, Sequence[ConsumerRecord]]:
        """Wait up to this time for records. While the broker is down, it returns no records and raises no error. Raises
        Discontinued if the log no longer has this position."""
        with translated(f"the {self.name} log cannot be read"):
            try:
                polled = self._connected().poll(timeout_ms=milliseconds(timeout_s), max_records=max_records)
            except (errors.OffsetOutOfRangeError, errors.LogTruncationError) as error:
                raise Discontinued(f"the {self.name} log cannot be read: {error}", RETRY_AFTER_S) from error
        return {partition.partition: records for partition, records in polled.items()}

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._assigned = []
        if consumer is not None:
            consumer.close(autocommit=False, timeout_ms=500)

    def _all(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in self.partitions()]

    def _timeout_ms(self, timeout_s: float | None) -> int:
        return milliseconds(self.kafka.request_timeout_s if timeout_s is None else timeout_s)

    def _connected(self) -> Consumer:
        if self._consumer is None:
            self._consumer = make_consumer(self.kafka, wait_ms=self._wait_ms, max_records=self._max_records)
        return self._consumer


def milliseconds(seconds: float) -> int:
    """The unit of kafka-python: at least one for a wait, since zero does not wait."""
    return max(int(seconds > 0), int(seconds * 1000))
