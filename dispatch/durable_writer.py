"""Writing what must not be lost: records that are sent again until Kafka has them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from dispatch import pulse
from topic_model.errors import InfrastructureError
from topic_model.kafka_client import Acknowledgement, Producer, make_producer, producer_for, translated
from topic_model.settings import KafkaSettings

logger = logging.getLogger(__name__)

RETRY_S = 1.0

# A producer settles every record within kafka.request_timeout_s; one that has not so long after that never will.
_HANGS_AFTER_S = 5.0


class _Record(NamedTuple):
    partition: int
    value: bytes | None
    key: bytes | None
    label: str


class DurableWriter:
    """Sends records of one log without waiting; `settle` waits for all of them. Used by one thread.

    What Kafka refuses or does not answer is sent again, and may then come behind what was sent after it. That is done
    by another producer: after a broker whose disk was full, kafka-python's may wait for ever for a new epoch, or refuse
    every record at once, though the broker is well again.
    """

    def __init__(
        self, kafka: KafkaSettings, name: str, connect: Callable[[KafkaSettings], Producer] = make_producer
    ) -> None:
        self._kafka = kafka
        self._connect = connect
        self._topic = kafka.topic(name)
        self._producer: Producer | None = None
        self._partitions = 0
        # What is sent and not acknowledged, by an ever growing number; the producer's thread takes entries out.
        self._unacknowledged: dict[int, _Record] = {}
        self._failed: list[int] = []
        self._sick = False  # whether the producer has refused anything, or hangs
        self._lock = threading.Lock()
        self._sent = 0

    @property
    def partitions(self) -> int:
        """How many partitions the log has. Connects when that has not happened yet; raises InfrastructureError."""
        self.connect()
        return self._partitions

    def connect(self) -> Producer:
        """The producer; connected when first asked for. Raises InfrastructureError."""
        if self._producer is None:
            self._producer, (self._partitions,) = producer_for(self._kafka, [self._topic], self._connect)
        return self._producer

    def send(self, partition: int, value: bytes | None, key: bytes | None = None, label: str = "") -> int:
        """Send a record without waiting; the number that `has` asks for. `label` is for `acknowledged`."""
        self._sent += 1
        self._unacknowledged[self._sent] = _Record(partition, value, key, label)
        self._send(self._sent)
        return self._sent

    def has(self, number: int) -> bool:
        """Whether a record is in the log."""
        return number not in self._unacknowledged

    def acknowledged(self, number: int, label: str, acknowledgement: Acknowledgement) -> None:
        """A record is in the log. Called in the producer's own thread; for subclasses that want to know."""

    def settle(self, timeout_s: float) -> None:
        """Return when everything sent is acknowledged; sends again what Kafka refused or did not answer.

        Raises InfrastructureError when that takes longer than `timeout_s`; then nothing is known of what was sent.
        """
        deadline = time.monotonic() + timeout_s
        while self._unacknowledged:
            pulse.beat()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                count = len(self._unacknowledged)
                self.close()
                raise InfrastructureError(
                    f"Kafka did not take {count} records of {self._topic} within {timeout_s:g} s", 5.0
                )
            patience = self._kafka.request_timeout_s + _HANGS_AFTER_S
            try:
                with translated(f"{self._topic} cannot be written"):
                    self.connect().flush(timeout=min(remaining, patience))
            except InfrastructureError as error:
                logger.warning("%s; waiting for Kafka", error)
                self._sick = self._sick or remaining > patience
            if self._sick:
                self._begin_anew()
            self._send_failed_again()

    def close(self) -> None:
        """Drop the connection and what is not acknowledged."""
        if self._producer is not None:
            self._producer.abort()
            self._producer = None
        self._unacknowledged.clear()
        self._failed.clear()

    def _begin_anew(self) -> None:
        """Give up the producer, and have all that it has not written sent again by another."""
        producer, self._producer, self._sick = self._producer, None, False
        if producer is None:
            return  # it could not even be made: what was to be sent is noted
        producer.abort()
        with self._lock:
            self._failed = sorted(self._unacknowledged)

    def _send(self, number: int) -> None:
        partition, value, key, _ = self._unacknowledged[number]
        try:
            producer = self.connect()
        except InfrastructureError as error:
            self._note_failure(number, error)
            return
        try:
            with translated(f"{self._topic} cannot be written"):
                future = producer.send(self._topic, value=value, key=key, partition=partition)
        except InfrastructureError as error:
            self._sick = True
            self._note_failure(number, error)
            return

        def failed(error: BaseException) -> None:
            # What becomes of those of one that was given up does not count: they are sent again anyway.
            if producer is self._producer:
                self._sick = True
                self._note_failure(number, error)

        future.add_callback(lambda acknowledgement: self._note_success(number, acknowledgement))
        future.add_errback(failed)

    def _note_success(self, number: int, acknowledgement: Acknowledgement) -> None:
        record = self._unacknowledged.get(number)
        if record is not None:
            self.acknowledged(number, record.label, acknowledgement)
            self._unacknowledged.pop(number, None)

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
            # Each of them would find it out anew, and wait as long.
            with self._lock:
                self._failed = failed
            return
        for number in failed:
            if number in self._unacknowledged:
                self._send(number)
