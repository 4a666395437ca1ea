"""Writing outcomes to the `attempts` log.

A batch counts as done only when its outcomes are acknowledged. While Kafka is away this waits and sends again, because
giving up means that the batch is repeated and every receiver gets everything twice.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable

from dispatch.attempts import (
    NO_BATCH,
    RECORD_BYTES,
    Attempt,
    Evaluation,
    Matched,
    encode_evaluation,
    join,
    key_of,
    pack,
    partition_of_subscription,
)
from dispatch.durable_writer import DurableWriter
from topic_model.kafka_client import Producer, make_producer
from topic_model.settings import KafkaSettings

# What is not written when a worker dies is done again: so much, beside what was under way.
WRITE_S = 0.1

# What Kafka has not acknowledged within this time is late: it is away, or has too much to do.
BEHIND_S = 0.5


class AttemptsLog:
    """Collects attempts and writes many of them per Kafka record, without making any wait for long. Used by one
    thread. No record holds attempts of two batches, and its key says of which they are."""

    def __init__(
        self,
        kafka: KafkaSettings,
        connect: Callable[[KafkaSettings], Producer] = make_producer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = DurableWriter(kafka, "attempts", connect)
        self._clock = clock
        self._batch = NO_BATCH
        self._open: defaultdict[int, list[bytes]] = defaultdict(list)  # packed attempts, by partition
        self._sizes: defaultdict[int, int] = defaultdict(int)
        self._written_at = clock()
        self._sent: deque[tuple[int, float]] = deque()  # the number of a record, and when it was sent

    def connect(self) -> Producer:
        """The producer; connected when first asked for. Raises InfrastructureError."""
        return self._writer.connect()

    def add(self, attempt: Attempt) -> None:
        """Take an attempt in; full records are sent without waiting. May have to connect first."""
        if attempt.batch != self._batch:
            self._write()
            self._batch = attempt.batch
        partition = partition_of_subscription(attempt.subscription, self._writer.partitions)
        packed = pack(attempt)
        self._open[partition].append(packed)
        self._sizes[partition] += len(packed)
        if self._sizes[partition] >= RECORD_BYTES:
            self._write_partition(partition)

    def add_matched(self, partition: int, batch: int, control: int, matched: list[Matched]) -> None:
        """Send what a batch has made of a partition's notifications, without waiting."""
        for value in encode_evaluation(Evaluation(partition, batch, control, matched)):
            self._send(partition % self._writer.partitions, value, batch)

    def write_due(self) -> None:
        """Send what was taken in, without waiting, when nothing was sent for a while. To be called often."""
        if self._open and self._clock() - self._written_at >= WRITE_S:
            self._write()

    def behind(self) -> bool:
        """Whether Kafka is late with acknowledging something."""
        while self._sent and self._writer.has(self._sent[0][0]):
            self._sent.popleft()
        return bool(self._sent) and self._clock() - self._sent[0][1] > BEHIND_S

    def settle(self, timeout_s: float) -> None:
        """Return when everything taken in is acknowledged; sends again what Kafka refused or did not answer.

        Raises InfrastructureError when that takes longer than `timeout_s`; then nothing is known of what was taken in.
        """
        self._write()
        self._writer.settle(timeout_s)
        self._sent.clear()

    def close(self) -> None:
        """Drop the connection and what is not acknowledged."""
        self._writer.close()
        self._open.clear()
        self._sizes.clear()
        self._sent.clear()

    def _write(self) -> None:
        for partition in list(self._open):
            self._write_partition(partition)
        self._written_at = self._clock()

    def _write_partition(self, partition: int) -> None:
        del self._sizes[partition]
        self._send(partition, join(self._open.pop(partition)), self._batch)

    def _send(self, partition: int, value: bytes, batch: int) -> None:
        self._sent.append((self._writer.send(partition, value, key_of(batch)), self._clock()))
