"""Writers of logs: `DurableWriter` repeats records until Kafka has them, `LogWriter` waits for its append and reports a
failure."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
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

# A producer settles every record within kafka.request_timeout_s; one without a result so long afterwards never will.
_HANGS_AFTER_S = 5.0


# Unacknowledged records are in memory, here and in the producer. With this number of bytes the next one waits for
# Kafka, up to this time.
_MOST_BYTES = 16 * 1024 * 1024
_ROOM_S = 600.0


class _Record(NamedTuple):
    partition: int
    value: bytes | None
    key: bytes | None
    label: str
    sent_at: float


class DurableWriter:
    """Sends records of one log without waiting, up to some megabytes; `settle` waits for all. For one thread.

    Records that Kafka refuses or does not answer are sent again, and may then follow later ones, by another producer:
    after a broker's full disk, kafka-python's may wait for ever for a new epoch, or refuse every record.
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
        self._sick = False  # whether the producer has refused anything, or hangs
        self._handed_at = 0.0  # when the producer got its last record
        self._lock = threading.Lock()
        self.sent = 0
        """The number of the last record."""

    @property
    def partitions(self) -> int:
        """How many partitions the log has. Connects when that has not happened yet; raises InfrastructureError."""
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
        unacknowledged bytes it settles first, and raises as `settle` does."""
        if self._bytes >= _MOST_BYTES:
            self.settle(_ROOM_S)
        self.sent += 1
        with self._lock:
            self._bytes += len(value or b"")
        self._unacknowledged[self.sent] = _Record(partition, value, key, label, self._clock())
        self._send(self.sent)
        return self.sent

    def has(self, number: int) -> bool:
        """Whether a record is in the log."""
        return number not in self._unacknowledged

    def has_all(self, number: int) -> bool:
        """Whether all records up to this one are in the log."""
        with self._lock:
            return next(iter(self._unacknowledged), number + 1) > number

    def is_behind(self, seconds: float) -> bool:
        """Whether a record is unacknowledged for longer than this."""
        if not self._unacknowledged:
            return False
        with self._lock:
            oldest = next(iter(self._unacknowledged.values()), None)
        return oldest is not None and self._clock() - oldest.sent_at > seconds

    def acknowledged(self, number: int, label: str, acknowledgement: Acknowledgement) -> None:
        """A record is in the log. Called in the producer's own thread; for subclasses that want to know."""

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
            # From the last record on: of several writers whose producers hang, the second is not waited for again.
            patience = self._handed_at + self._kafka.request_timeout_s + _HANGS_AFTER_S - self._clock()
            try:
                with translated(f"{self._topic} cannot be written"):
                    self.connect().flush(timeout=max(0.0, min(remaining, patience)))
            except InfrastructureError as error:
                logger.warning("%s; waiting for Kafka", error)
                self._sick = self._sick or remaining > patience
            if self._sick:
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
        """Give up the producer, and have all that it has not written sent again by another."""
        producer, self._producer, self._sick = self._producer, None, False
        if producer is None:
            return  # not even created: its records are noted
        producer.abort()
        with self._lock:
            self._failed = sorted(self._unacknowledged)

    def _send(self, number: int) -> None:
        record = self._unacknowledged.get(number)
        if record is None:
            return  # acknowledged by a producer that was given up
        partition, value, key, *_ = record
        if self._sick or (self._producer is None and self._failed):
            # `settle` connects. Here each record would wait for the connection's time-out, or for a producer that is
            # given up there.
            with self._lock:
                self._failed.append(number)
            return
        try:
            producer = self.connect()
        except InfrastructureError as error:
            self._note_failure(number, error)
            return
        self._handed_at = self._clock()
        try:
            with translated(f"{self._topic} cannot be written"):
                future = producer.send(self._topic, value=value, key=key, partition=partition)
        except InfrastructureError as error:
            self._sick = True
            self._note_failure(number, error)
            return

        def failed(error: BaseException) -> None:
            # Results of an abandoned producer do not count: its records are repeated anyway.
            if producer is self._producer:
                self._sick = True
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
            # Each of them would wait as long, and fail in the same way.
            with self._lock:
                self._failed = failed
            return
        for number in failed:
            self._send(number)


class Appending(NamedTuple):
    """An append under way. `wait` returns the offset of its last record; see `LogWriter.append_encoded`."""

    wait: Callable[[], int]


# Time for which the answer "no broker" is repeated.
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
        """Append keys and values in this order; returns the last one's offset when all replicas have acknowledged all.

        Raises InfrastructureError, within about `request_timeout_s` each for connecting and for writing, when not all
        could be acknowledged. Some of them may be in the log then.
        """
        return self.begin(encoded).wait()

    def begin(self, encoded: Sequence[tuple[bytes, bytes | None]]) -> Appending:
        """As `append_encoded`, without waiting for Kafka, except for a connection. The caller must `wait` for it;
        before that a later append may be in the log without this one."""
        if not encoded:
            raise ValueError("there is nothing to append")
        appended = _Appended(len(encoded), f"the {self.name} log cannot be written")
        # The lock keeps the records of one call together. Its holder may be connecting.
        if not self._lock.acquire(timeout=self._kafka.request_timeout_s):
            raise InfrastructureError(f"the {self.name} log is busy: the Kafka broker does not answer", RETRY_AFTER_S)
        try:
            producer = self._connected()
            with translated(f"the {self.name} log cannot be written"):
                for key, value in encoded:
                    future = producer.send(self._topic, value=value, key=key, partition=0)
                    future.add_callback(appended.acknowledged)
                    future.add_errback(appended.failed)
        finally:
            self._lock.release()
        return Appending(lambda: self._wait(producer, appended))

    def _wait(self, producer: Producer, appended: _Appended) -> int:
        try:
            # The producer gives up by itself; it only fails to do so while it waits for its producer id.
            return appended.result(self._kafka.request_timeout_s + 1)
        except FutureTimeoutError:
            self._discard(producer)
            raise InfrastructureError(
                f"the {self.name} log did not acknowledge within {self._kafka.request_timeout_s:g} s", RETRY_AFTER_S
            ) from None
        except InfrastructureError as error:
            if error.retry_after is not None:
                # After some failures of a broker kafka-python's producer refuses all records, even when the broker is
                # back.
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
            # Callers that waited for the lock would otherwise each wait for the same broker in turn.
            self._refusal, self._refused_until = error, time.monotonic() + _REFUSAL_S
            raise
        return self._producer

    def _discard(self, producer: Producer) -> None:
        """A hanging producer must not write records later that were reported as failed."""
        with self._lock:
            if self._producer is producer:
                self._producer = None
        producer.abort()


class _Appended:
    """Gathers the acknowledgements of one append; the callbacks run in the producer's thread."""

    def __init__(self, expected: int, failure: str) -> None:
        self._future: Future[int] = Future()
        self._missing = expected
        self._failure = failure

    def acknowledged(self, acknowledgement: Acknowledgement) -> None:
        self._missing -= 1
        if self._missing == 0 and not self._future.done():
            self._future.set_result(acknowledgement.offset)

    def failed(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(as_infrastructure_error(self._failure, error))

    def result(self, timeout: float) -> int:
        return self._future.result(timeout)
