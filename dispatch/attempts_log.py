"""Writing outcomes to the `attempts` log.

A batch counts as done only when its outcomes are acknowledged. While Kafka is away this waits and sends again, because
giving up means that the batch is repeated and every receiver gets everything twice.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from dispatch.attempts import (
    MAX_PER_RECORD,
    Attempt,
    Evaluation,
    Matched,
    encode,
    encode_evaluation,
    partition_of_subscription,
)
from dispatch.durable_writer import DurableWriter
from topic_model.kafka_client import Producer, make_producer
from topic_model.settings import KafkaSettings

# What is not written when a worker dies is done again: so much of a long batch at most.
_FLUSH_S = 0.2
_LOOK_EACH = 64  # attempts


class AttemptsLog:
    """Collects attempts and writes many of them per Kafka record, without making any wait for long. Used by one
    thread."""

    def __init__(self, kafka: KafkaSettings, connect: Callable[[KafkaSettings], Producer] = make_producer) -> None:
        self._writer = DurableWriter(kafka, "attempts", connect)
        self._open: defaultdict[int, list[Attempt]] = defaultdict(list)
        self._added = 0
        self._flushed = time.monotonic()

    def connect(self) -> Producer:
        """The producer; connected when first asked for. Raises InfrastructureError."""
        return self._writer.connect()

    def add(self, attempt: Attempt) -> None:
        """Take an attempt in; full records are sent without waiting. May have to connect first."""
        partition = partition_of_subscription(attempt.subscription, self._writer.partitions)
        pending = self._open[partition]
        pending.append(attempt)
        if len(pending) >= MAX_PER_RECORD:
            self._flush_partition(partition)
        self._added += 1
        if self._added % _LOOK_EACH == 0 and time.monotonic() - self._flushed > _FLUSH_S:
            self._flush()

    def add_matched(self, partition: int, batch: int, control: int, matched: list[Matched]) -> None:
        """Send what a batch has made of a partition's notifications, without waiting."""
        for value in encode_evaluation(Evaluation(partition, batch, control, matched)):
            self._writer.send(partition % self._writer.partitions, value)

    def settle(self, timeout_s: float) -> None:
        """Return when everything taken in is acknowledged; sends again what Kafka refused or did not answer.

        Raises InfrastructureError when that takes longer than `timeout_s`; then nothing is known of what was taken in.
        """
        self._flush()
        self._writer.settle(timeout_s)

    def close(self) -> None:
        """Drop the connection and what is not acknowledged."""
        self._writer.close()
        self._open.clear()

    def _flush(self) -> None:
        for partition in list(self._open):
            self._flush_partition(partition)
        self._flushed = time.monotonic()

    def _flush_partition(self, partition: int) -> None:
        for value in encode(self._open.pop(partition, ())):
            self._writer.send(partition, value)
