"""Writers of logs: `DurableWriter` repeats records until Kafka has them, `LogWriter` waits for its append and reports a
failure."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from arborcast.core import liveness
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import (
    RETRY_AFTER_S,
    Acknowledgement,
    Producer,
    as_infrastructure_error,
    make_producer,
    producer_for,
    translated,
)
from arborcast.core.settings import KafkaSettings

logger = logging.getLogger(__name__)

RETRY_S = 1.0

# A producer settles every record within kafka.request_timeout_s. One without a result this long afterwards hangs.
_HANGS_AFTER_S = 5.0


# Unacknowledged records are in memory, here and in the producer. Above this number of bytes `send` waits for Kafka, up
# to this time.
_MAX_UNACKNOWLEDGED_BYTES = 16 * 1024 * 1024
_SEND_WAIT_S = 600.0


class _Record(NamedTuple):
    partition: int
    value: bytes | None
    key: bytes | None
    label: str
    sent_at: float


class DurableWriter:
    """Sends records of one log without waiting, up to some megabytes; `settle` waits for all. For one thread.

    Records that Kafka refuses or does not acknowledge are sent again, by another producer, and may then follow later
    ones: after a broker's disk was full, kafka-python's producer may wait for ever for a new epoch, or refuse all
    records.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        connect: Callable[[KafkaSettings], Producer] = make_producer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kafka = kafka
        self._connect = connect
        self._clock = clock
        self._topic = kafka.topic(name)
        self._producer: Producer | None = None
        self._partitions = 0
        # Sent and unacknowledged records, by a growing number; the producer's thread removes entries.
        self._unacknowledged: dict[int, _Record] = {}
        self._bytes = 0  # of these
        self._failed: list[int] = []
        self._producer_failed = False  # refused a record, or hangs
        self._last_send_at = 0.0  # time of the producer's last record
        self._lock = threading.Lock()
        self.sent = 0
        """The number of the last record."""

    @property
    def partitions(self) -> int:
        """The number of partitions of the log. Connects on the first use; raises InfrastructureError."""
        if not self._partitions:
            self.connect()
        return self._partitions

    def connect(self) -> Producer:
        """The producer, connected on the first use. Raises InfrastructureError."""
        if self._producer is None:
            self._producer, (self._partitions,) = producer_for(self._kafka, [self._topic], self._connect)
        return self._producer

    def send(self, partition: int, value: bytes | None, key: bytes | None = None, label: str = "") -> int:
        """Send a record without waiting; returns the number for `has`. `label` is for `acknowledged`. With too many
        unacknowledged bytes it calls `settle` first, which may raise."""
        if self._bytes >= _MAX_UNACKNOWLEDGED_BYTES:
            self.settle(_SEND_WAIT_S)
        self.sent += 1
        with self._lock:
            self._bytes += len(value or b"")
        self._unacknowledged[self.sent] = _Record(partition, value, key, label, self._clock())
        self._send(self.sent)
        return self.sent

    def has(self, number: int) -> bool:
        return number not in self._unacknowledged

    def has_all(self, number: int) -> bool:
        """Whether all records up to this one are in the log."""
        with self._lock:
            return next(iter(self._unacknowledged), number + 1) > number

    def is_behind(self, seconds: float) -> bool:
        """Whether any record is unacknowledged for longer than this."""
        if not self._unacknowledged:
            return False
        with self._lock:
            oldest = next(iter(self._unacknowledged.values()), None)
        return oldest is not None and self._clock() - oldest.sent_at > seconds

    def acknowledged(self, number: int, label: str, acknowledgement: Acknowledgement) -> None:
        """Called in the producer's own thread when a record is in the log; for subclasses."""

    def settle(self, timeout_s: float) -> None:
        """Return when every record is acknowledged; repeats those that Kafka refused or did not answer. Raises
        InfrastructureError after `timeout_s`; then the state of the records is unknown."""
        deadline = time.monotonic() + timeout_s
        while self._unacknowledged:
            liveness.beat()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                count = len(self._unacknowledged)
                self.close()
                raise InfrastructureError(
                    f"Kafka did not take {count} records of {self._topic} within {timeout_s:g} s", 5.0
                )
            # Counted from the last record: with several hanging producers the waits overlap.
            hangs_after = self._last_send_at + self._kafka.request_timeout_s + _HANGS_AFTER_S - self._clock()
            try:
                with translated(f"{self._topic} cannot be written"):
                    self.connect().flush(timeout=max(0.0, min(remaining, hangs_after)))
            except InfrastructureError as error:
                logger.warning("%s; waiting for Kafka", error)
                self._producer_failed = self._producer_failed or remaining > hangs_after
            if self._producer_failed:
                self._replace_producer()
            self._send_failed_again()

    def close(self) -> None:
        """Drop the connection and unacknowledged records."""
        if self._producer is not None:
            self._producer.abort()
            self._producer = None
        with self._lock:
            self._unacknowledged.clear()
            self._failed.clear()
            self._bytes = 0

    def _replace_producer(self) -> None:
        """Abort the producer, and mark its unacknowledged records to be sent again by another."""
        producer, self._producer, self._producer_failed = self._producer, None, False
        if producer is None:
            return  # never connected: its records are in `_failed` already
        producer.abort()
        with self._lock:
            self._failed = sorted(self._unacknowledged)

    def _send(self, number: int) -> None:
        record = self._unacknowledged.get(number)
        if record is None:
            return  # acknowledged by an aborted producer
        partition, value, key, *_ = record
        if self._producer_failed or (self._producer is None and self._failed):
            # `settle` connects. Here each record would wait for the connection's timeout, or for a producer that
            # `settle` aborts.
            with self._lock:
                self._failed.append(number)
            return
        try:
            producer = self.connect()
        except InfrastructureError as error:
            self._note_failure(number, error)
            return
        self._last_send_at = self._clock()
        try:
            with translated(f"{self._topic} cannot be written"):
                future = producer.send(self._topic, value=value, key=key, partition=partition)
        except InfrastructureError as error:
            self._producer_failed = True
            self._note_failure(number, error)
            return

        def failed(error: BaseException) -> None:
            # Results of an aborted producer do not count: its records are repeated anyway.
            if producer is self._producer:
                self._producer_failed = True
                self._note_failure(number, error)

        future.add_callback(lambda acknowledgement: self._note_success(number, acknowledgement))
        future.add_errback(failed)

    def _note_success(self, number: int, acknowledgement: Acknowledgement) -> None:
        record = self._unacknowledged.get(number)
        if record is not None:
            self.acknowledged(number, record.label, acknowledgement)
            with self._lock:
                if self._unacknowledged.pop(number, None) is not None:
                    self._bytes -= len(record.value or b"")

    def _note_failure(self, number: int, error: BaseException) -> None:
        with self._lock:
            if not self._failed:
                logger.warning("%s: records were not taken by Kafka (%s); sending them again", self._topic, error)
            self._failed.append(number)

    def _send_failed_again(self) -> None:
        with self._lock:
            failed, self._failed = self._failed, []
        if not failed:
            return
        time.sleep(RETRY_S)
        try:
            self.connect()
        except InfrastructureError:
            # Each record would wait as long, and fail in the same way.
            with self._lock:
                self._failed = failed
            return
        for number in failed:
            self._send(number)


# Time for which a failed connection is reported without another attempt.
_REFUSAL_S = 1.0


class LogWriter:
    """Appends to a log. Safe to use from several threads; connects when first used."""

    def __init__(self, kafka: KafkaSettings, name: str) -> None:
        self._kafka = kafka
        self.name = name
        self._topic = kafka.topic(name)
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._refusal: InfrastructureError | None = None
        self._refused_until = 0.0

    def append_encoded(self, encoded: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Append keys and values in this order, and wait until all replicas have acknowledged; returns the offset of
        the last record.

        Raises InfrastructureError, within about `request_timeout_s` each for connecting and for writing, if not all
        were acknowledged. Some records may then be in the log.
        """
        return self.begin(encoded)()

    def begin(self, encoded: Sequence[tuple[bytes, bytes | None]]) -> Callable[[], int]:
        """As `append_encoded`, without waiting for Kafka, except for a connection. The caller must call the result to
        wait; until then a later append may be in the log without this one."""
        if not encoded:
            raise ValueError("there is nothing to append")
        what = f"the {self.name} log cannot be written"
        missing = len(encoded)
        appended: Future[int] = Future()

        def acknowledged(acknowledgement: Acknowledgement) -> None:  # in the producer's thread, as `failed`
            nonlocal missing
            missing -= 1
            if missing == 0 and not appended.done():
                appended.set_result(acknowledgement.offset)

        def failed(error: BaseException) -> None:
            if not appended.done():
                appended.set_exception(as_infrastructure_error(what, error))

        # The lock keeps the records of one call together. Its holder may be connecting.
        if not self._lock.acquire(timeout=self._kafka.request_timeout_s):
            raise InfrastructureError(f"the {self.name} log is busy: the Kafka broker does not answer", RETRY_AFTER_S)
        try:
            producer = self._connected()
            with translated(what):
                for key, value in encoded:
                    future = producer.send(self._topic, value=value, key=key, partition=0)
                    future.add_callback(acknowledged)
                    future.add_errback(failed)
        finally:
            self._lock.release()
        return lambda: self._wait(producer, appended)

    def _wait(self, producer: Producer, appended: Future[int]) -> int:
        try:
            # The producer fails by itself in time, except while it waits for its producer id.
            return appended.result(self._kafka.request_timeout_s + 1)
        except TimeoutError:
            self._discard(producer)
            raise InfrastructureError(
                f"the {self.name} log did not acknowledge within {self._kafka.request_timeout_s:g} s", RETRY_AFTER_S
            ) from None
        except InfrastructureError as error:
            if error.retry_after is not None or producer.broken:
                # After some failures of a broker kafka-python's producer refuses all records, even when the broker
                # works again.
                self._discard(producer)
            raise

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
            # Otherwise the callers that wait for the lock would each wait for the same broker in turn.
            self._refusal, self._refused_until = error, time.monotonic() + _REFUSAL_S
            raise
        return self._producer

    def _discard(self, producer: Producer) -> None:
        """A hanging producer must not write records later that were reported as failed."""
        with self._lock:
            if self._producer is producer:
                self._producer = None
        producer.abort()
