"""Logs of one partition, so of one order for everybody: appending to one, following it, looking records up.

All three keep going when the broker is away for a while: a writer fails its appends with InfrastructureError until the
broker is back, a follower keeps its position. What the records mean is the business of whoever uses this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from kafka import errors

from core.errors import InfrastructureError, RecordVersionError
from core.eventlog.client import (
    RETRY_AFTER_S,
    Consumer,
    TopicPartition,
    make_consumer,
    translated,
)
from core.eventlog.settings import KafkaSettings

Record = TypeVar("Record")

# More per poll costs memory and gains nothing measurable.
_POLL_RECORDS = 5_000


class LogFollower(Generic[Record]):
    """Reads a log from its beginning, in order, and applies each record once. One thread at a time.

    `apply(record, offset)` is called for every record. When it raises, the position stays before that record. `decode`
    turns a key and a value into a record, or raises InfrastructureError. `wait_ms` is how long the broker holds a
    `poll` that finds nothing; a caller of `read_to_end` wants it short (see `kafka_client.make_consumer`), one who only
    polls wants it long. `forgetful` says that the log's beginning moves: what it no longer has is passed over.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        decode: Callable[[bytes, bytes | None], Record],
        apply: Callable[[Record, int], None],
        *,
        wait_ms: int = 10,
        forgetful: bool = False,
    ) -> None:
        self._kafka = kafka
        self._name = name
        self._read = decode
        self._apply = apply
        self._wait_ms = wait_ms
        self._forgetful = forgetful
        self._partition = TopicPartition(kafka.topic(name), 0)
        self._consumer: Consumer | None = None
        self._position: int | None = None

    @property
    def position(self) -> int:
        """Offset of the next record to apply; 0 before the first read."""
        return self._position or 0

    def read_to_end(self, timeout: float) -> int:
        """Apply all records that are in the log now; returns the position, which is at least the log's end.

        Raises InfrastructureError when Kafka is away or the end is not reached within `timeout` seconds (what was
        read until then is applied), RecordVersionError for a record that a newer Arborcast wrote.
        """
        deadline = time.monotonic() + timeout
        consumer = self._connected()
        with translated(f"the end of the {self._name} log cannot be found"):
            # One request, about a millisecond, and most of the time the answer is that nothing changed.
            end = consumer.end_offsets([self._partition], timeout_ms=_milliseconds(timeout))[self._partition]
        if end < self.position:
            raise self._lost(f"its end is now {end}")
        while self.position < end:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise InfrastructureError(
                    f"the {self._name} log was read up to {self.position} of {end} within {timeout:g} s", RETRY_AFTER_S
                )
            self._poll(consumer, min(remaining, 1.0))
        return self.position

    def poll(self, timeout: float) -> int:
        """Apply what comes within `timeout` seconds, returning as soon as something came; returns the number applied.

        While the broker is away nothing comes; that is not an error here.
        """
        return self._poll(self._connected(), timeout)

    def close(self) -> None:
        """Free the connection."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(autocommit=False, timeout_ms=500)

    def _connected(self) -> Consumer:
        if self._consumer is None:
            consumer = make_consumer(self._kafka, wait_ms=self._wait_ms, max_records=_POLL_RECORDS)
            try:
                self._place(consumer)
            except BaseException:
                consumer.close(autocommit=False, timeout_ms=500)
                raise
            self._consumer = consumer
        return self._consumer

    def _place(self, consumer: Consumer) -> None:
        topic = self._partition.topic
        with translated(f"the {self._name} log cannot be read"):
            if not consumer.partitions_for_topic(topic):
                raise InfrastructureError(f"Kafka topic {topic} does not exist yet", RETRY_AFTER_S)
            consumer.assign([self._partition])
            if self._position is None:
                self._position = self._beginning(consumer)
            consumer.seek(self._partition, self._position)

    def _beginning(self, consumer: Consumer) -> int:
        timeout_ms = _milliseconds(self._kafka.request_timeout_s)
        return consumer.beginning_offsets([self._partition], timeout_ms=timeout_ms)[self._partition]

    def _poll(self, consumer: Consumer, timeout: float) -> int:
        try:
            with translated(f"the {self._name} log cannot be read"):
                polled = consumer.poll(timeout_ms=_milliseconds(timeout))
        except InfrastructureError as error:
            if isinstance(error.__cause__, (errors.OffsetOutOfRangeError, errors.LogTruncationError)):
                self._pass_over_or_raise(consumer, self._lost(str(error.__cause__)))
                return 0
            raise
        applied = 0
        for record in polled.get(self._partition, ()):
            try:
                self._apply(self._decode(record.key, record.value, record.offset), record.offset)
            except BaseException:
                # What was polled and not applied would be skipped by the next poll.
                consumer.seek(self._partition, self.position)
                raise
            self._position = record.offset + 1
            applied += 1
        return applied

    def _pass_over_or_raise(self, consumer: Consumer, lost: InfrastructureError) -> None:
        """Go on at the log's beginning where it may have moved beyond our position."""
        with translated(f"the beginning of the {self._name} log cannot be found"):
            beginning = self._beginning(consumer)
        if not self._forgetful or beginning <= self.position:
            raise lost
        self._position = beginning
        consumer.seek(self._partition, beginning)

    def _decode(self, key: bytes | None, value: bytes | None, offset: int) -> Record:
        place = f"offset {offset} of {self._partition.topic}"
        if key is None:
            raise InfrastructureError(f"the record at {place} has no key: something else than Arborcast wrote it")
        try:
            return self._read(key, value)
        except RecordVersionError as error:
            raise RecordVersionError(f"{error} ({place})") from error
        except InfrastructureError as error:
            raise InfrastructureError(f"{error} ({place})") from error
        except UnicodeDecodeError as error:
            raise InfrastructureError(f"the key of the record at {place} is not UTF-8") from error

    def _lost(self, why: str) -> InfrastructureError:
        return InfrastructureError(
            f"the {self._name} log {self._partition.topic} was truncated or created anew: we stand at {self.position}, "
            f"{why}. What was applied may no longer be true: restart this process to read the log from its beginning"
        )


class LogReader:
    """Looks up single records of a log by their offsets. One thread at a time."""

    def __init__(self, kafka: KafkaSettings, name: str) -> None:
        self._kafka = kafka
        self._name = name
        self._partition = TopicPartition(kafka.topic(name), 0)
        self._consumer: Consumer | None = None

    def read(self, offsets: Iterable[int]) -> dict[int, bytes]:
        """The values at these offsets, without those that the log no longer has (or that have none).

        Raises InfrastructureError when they cannot be had within `request_timeout_s`.
        """
        wanted = sorted(set(offsets))
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + self._kafka.request_timeout_s
        try:
            consumer = self._connected()
            with translated(f"the {self._name} log cannot be read"):
                while wanted:
                    if time.monotonic() > deadline:
                        raise InfrastructureError(f"the {self._name} log could not be read in time", RETRY_AFTER_S)
                    wanted = self._fetch(consumer, wanted, found)
        except InfrastructureError:
            self.close()
            raise
        return found

    def close(self) -> None:
        """Free the connection."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(autocommit=False, timeout_ms=500)

    def _fetch(self, consumer: Consumer, wanted: list[int], found: dict[int, bytes]) -> list[int]:
        """Read on from the first of those wanted; returns those that are still to be looked for."""
        consumer.seek(self._partition, wanted[0])
        try:
            polled = consumer.poll(timeout_ms=500).get(self._partition, ())
        except errors.OffsetOutOfRangeError:
            # Only now it is asked where the log begins: nearly always it has all that somebody points to.
            beginning = consumer.beginning_offsets([self._partition], timeout_ms=5_000)[self._partition]
            if beginning <= wanted[0]:
                raise
            return [offset for offset in wanted if offset >= beginning]
        if not polled:
            return wanted
        looked_for = set(wanted)
        for record in polled:
            if record.offset in looked_for and record.value is not None:
                found[record.offset] = record.value
        return [offset for offset in wanted if offset > polled[-1].offset]

    def _connected(self) -> Consumer:
        if self._consumer is None:
            self._consumer = make_consumer(self._kafka, wait_ms=10)
            self._consumer.assign([self._partition])
        return self._consumer


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
