"""Writing outcomes to the `attempts` log.

A batch counts as done only when its outcomes are acknowledged. While Kafka is away this waits and sends again, because
giving up means that the batch is repeated and every receiver gets everything twice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from dispatch.attempts import MAX_PER_RECORD, Attempt, encode, partition_of
from topic_model.errors import InfrastructureError
from topic_model.kafka_client import Producer, make_producer, translated
from topic_model.settings import KafkaSettings

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


class AttemptsLog:
    """Collects attempts and writes many of them per Kafka record. Used by one thread."""

    def __init__(self, kafka: KafkaSettings, connect: Callable[[KafkaSettings], Producer] = make_producer) -> None:
        self._kafka = kafka
        self._connect = connect
        self._topic = kafka.topic("attempts")
        self._producer: Producer | None = None
        self._partitions = 0
        self._open: defaultdict[int, list[Attempt]] = defaultdict(list)
        # What is sent and not acknowledged, by an ever growing number; the producer's thread takes entries out.
        self._unacknowledged: dict[int, tuple[int, bytes]] = {}
        self._failed: list[int] = []
        self._lock = threading.Lock()
        self._sent = 0

    def connect(self) -> Producer:
        """The producer; connected when first asked for. Raises InfrastructureError."""
        if self._producer is None:
            producer = self._connect(self._kafka)
            with translated(f"Kafka topic {self._topic} cannot be looked up"):
                self._partitions = len(producer.partitions_for(self._topic))
            self._producer = producer
        return self._producer

    def add(self, attempt: Attempt) -> None:
        """Take an attempt in; full records are sent without waiting. May have to connect first."""
        self.connect()
        partition = partition_of(attempt.subscription, self._partitions)
        pending = self._open[partition]
        pending.append(attempt)
        if len(pending) >= MAX_PER_RECORD:
            self._flush_partition(partition)

    def settle(self, timeout_s: float) -> None:
        """Return when everything taken in is acknowledged; sends again what Kafka refused or did not answer.

        Raises InfrastructureError when that takes longer than `timeout_s`; then nothing is known of what was taken in.
        """
        deadline = time.monotonic() + timeout_s
        for partition in list(self._open):
            self._flush_partition(partition)
        while self._unacknowledged:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                count = len(self._unacknowledged)
                self.close()
                raise InfrastructureError(f"Kafka did not take {count} records of outcomes within {timeout_s:g} s", 5.0)
            try:
                with translated("outcomes cannot be written"):
                    self.connect().flush(timeout=remaining)
            except InfrastructureError as error:
                logger.warning("%s; waiting for Kafka", error)
            self._send_failed_again()

    def close(self) -> None:
        """Drop the connection and what is not acknowledged."""
        if self._producer is not None:
            self._producer.abort()
            self._producer = None
        self._open.clear()
        self._unacknowledged.clear()
        self._failed.clear()

    def _flush_partition(self, partition: int) -> None:
        for value in encode(self._open.pop(partition, ())):
            self._sent += 1
            self._unacknowledged[self._sent] = (partition, value)
            self._send(self._sent)

    def _send(self, number: int) -> None:
        partition, value = self._unacknowledged[number]
        try:
            with translated("outcomes cannot be written"):
                future = self.connect().send(self._topic, value=value, partition=partition)
        except InfrastructureError as error:
            self._note_failure(number, error)
            return
        future.add_callback(lambda _: self._unacknowledged.pop(number, None))
        future.add_errback(lambda error: self._note_failure(number, error))

    def _note_failure(self, number: int, error: BaseException) -> None:
        with self._lock:
            if not self._failed:
                logger.warning("outcomes were not taken by Kafka (%s); sending them again", error)
            self._failed.append(number)

    def _send_failed_again(self) -> None:
        with self._lock:
            failed, self._failed = self._failed, []
        if failed:
            time.sleep(_RETRY_S)
        for number in failed:
            self._send(number)
