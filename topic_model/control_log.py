"""Writing and following the `control` log: one partition, so one order for everybody.

Both sides keep going when the broker is away for a while: a writer fails its appends with InfrastructureError until the
broker is back, a follower keeps its position. Records are encoded by `topic_model.records`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from kafka import errors

from topic_model import records
from topic_model.errors import InfrastructureError, RecordVersionError
from topic_model.kafka_client import (
    RETRY_AFTER_S,
    Acknowledgement,
    Consumer,
    Producer,
    TopicPartition,
    as_infrastructure_error,
    make_consumer,
    make_producer,
    translated,
)
from topic_model.kafka_topics import ensure_topics
from topic_model.records import ControlRecord
from topic_model.settings import KafkaSettings

# A compacted log is read to its end at start; more per poll costs memory and gains nothing measurable.
_POLL_RECORDS = 5_000

# How long the answer "no broker" is repeated before it is asked for again.
_REFUSAL_S = 1.0


class ControlLog:
    """Appends control records. Safe to use from several threads; connects when first used."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._topic = kafka.topic("control")
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._refusal: InfrastructureError | None = None
        self._refused_until = 0.0

    def ensure_created(self) -> None:
        """Create the Kafka topics of all logs where they are missing; see `kafka_topics.ensure_topics`."""
        ensure_topics(self._kafka)

    def append(self, batch: Sequence[ControlRecord]) -> int:
        """Append records in this order; returns the offset of the last one when all are acknowledged by all replicas.

        Raises InfrastructureError, within about `request_timeout_s` each for connecting and for writing, when not all
        could be acknowledged. Some of them may be in the log then: records hold whole states, so appending them again
        does no harm.
        """
        if not batch:
            raise ValueError("there is nothing to append")
        encoded = [records.encode(record) for record in batch]
        appended = _Appended(len(encoded))
        # Under the lock, so that the records of one call stay together. Whoever holds it may be connecting.
        if not self._lock.acquire(timeout=self._kafka.request_timeout_s):
            raise InfrastructureError("the control log is busy: the Kafka broker does not answer", RETRY_AFTER_S)
        try:
            producer = self._connected()
            with translated("the control log cannot be written"):
                for key, value in encoded:
                    future = producer.send(self._topic, value=value, key=key, partition=0)
                    future.add_callback(appended.acknowledged)
                    future.add_errback(appended.failed)
        finally:
            self._lock.release()
        try:
            # The producer gives up by itself; it only fails to do so while it waits for its producer id.
            return appended.result(self._kafka.request_timeout_s + 1)
        except FutureTimeoutError:
            self._discard(producer)
            raise InfrastructureError(
                f"the control log did not acknowledge within {self._kafka.request_timeout_s:g} s", RETRY_AFTER_S
            ) from None

    def close(self) -> None:
        """Free the connection; a later append opens another."""
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout=1)

    def _connected(self) -> Producer:
        if self._producer is not None:
            return self._producer
        if self._refusal is not None and time.monotonic() < self._refused_until:
            raise InfrastructureError(str(self._refusal), self._refusal.retry_after)
        try:
            self._producer = make_producer(self._kafka)
        except InfrastructureError as error:
            # Those who waited for the lock meanwhile would otherwise each wait for the same broker, one after another.
            self._refusal, self._refused_until = error, time.monotonic() + _REFUSAL_S
            raise
        return self._producer

    def _discard(self, producer: Producer) -> None:
        """A producer that hangs must not write later what we have called failed."""
        with self._lock:
            if self._producer is producer:
                self._producer = None
        producer.abort()


class _Appended:
    """Gathers the acknowledgements of one append; the callbacks run in the producer's thread."""

    def __init__(self, expected: int) -> None:
        self._future: Future[int] = Future()
        self._missing = expected

    def acknowledged(self, acknowledgement: Acknowledgement) -> None:
        self._missing -= 1
        if self._missing == 0 and not self._future.done():
            self._future.set_result(acknowledgement.offset)

    def failed(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(as_infrastructure_error("the control log cannot be written", error))

    def result(self, timeout: float) -> int:
        return self._future.result(timeout)


class ControlFollower:
    """Reads the control log from its beginning, in order, and applies each record once. One thread at a time.

    `apply(record, offset)` is called for every record. When it raises, the position stays before that record.
    `wait_ms` is how long the broker holds a `poll` that finds nothing; a caller of `read_to_end` wants it short (see
    `kafka_client.make_consumer`), one who only polls wants it long.
    """

    def __init__(self, kafka: KafkaSettings, apply: Callable[[ControlRecord, int], None], *, wait_ms: int = 10) -> None:
        self._kafka = kafka
        self._apply = apply
        self._wait_ms = wait_ms
        self._partition = TopicPartition(kafka.topic("control"), 0)
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
        with translated("the end of the control log cannot be found"):
            # One request, about a millisecond, and most of the time the answer is that nothing changed.
            end = consumer.end_offsets([self._partition], timeout_ms=_milliseconds(timeout))[self._partition]
        if end < self.position:
            raise self._lost(f"its end is now {end}")
        while self.position < end:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise InfrastructureError(
                    f"the control log was read up to {self.position} of {end} within {timeout:g} s", RETRY_AFTER_S
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
        with translated("the control log cannot be read"):
            if not consumer.partitions_for_topic(topic):
                raise InfrastructureError(f"Kafka topic {topic} does not exist yet", RETRY_AFTER_S)
            consumer.assign([self._partition])
            if self._position is None:
                timeout_ms = _milliseconds(self._kafka.request_timeout_s)
                first = consumer.beginning_offsets([self._partition], timeout_ms=timeout_ms)
                self._position = first[self._partition]
            consumer.seek(self._partition, self._position)

    def _poll(self, consumer: Consumer, timeout: float) -> int:
        try:
            with translated("the control log cannot be read"):
                polled = consumer.poll(timeout_ms=_milliseconds(timeout))
        except InfrastructureError as error:
            if isinstance(error.__cause__, (errors.OffsetOutOfRangeError, errors.LogTruncationError)):
                raise self._lost(str(error.__cause__)) from error
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

    def _decode(self, key: bytes | None, value: bytes | None, offset: int) -> ControlRecord:
        place = f"offset {offset} of {self._partition.topic}"
        if key is None:
            raise InfrastructureError(f"the record at {place} has no key: something else than Arborcast wrote it")
        try:
            return records.decode(key, value)
        except RecordVersionError as error:
            raise RecordVersionError(f"{error} ({place})") from error
        except InfrastructureError as error:
            raise InfrastructureError(f"{error} ({place})") from error
        except UnicodeDecodeError as error:
            raise InfrastructureError(f"the key of the record at {place} is not UTF-8") from error

    def _lost(self, why: str) -> InfrastructureError:
        return InfrastructureError(
            f"the control log {self._partition.topic} was truncated or created anew: we stand at {self.position}, "
            f"{why}. What was applied may no longer be true: restart this process to read the log from its beginning"
        )


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
