"""What an earlier run of a batch came to, as far as it had been written down when it was cut off.

After a crash Spark repeats the batch. Whatever the `attempts` log tells of it is not pushed again, so that only what
was under way in that moment arrives twice.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing

from dispatch import attempts
from topic_model.errors import InfrastructureError
from topic_model.kafka_client import Consumer, TopicPartition, make_consumer, translated
from topic_model.settings import KafkaSettings

Settled = frozenset[tuple[str, str]]
"""Subscriptions and notifications of which something is known already."""

logger = logging.getLogger(__name__)

# What was written for the batch has a time stamp behind the batch's own, by clocks of several machines.
_CLOCKS_MS = 60_000


def recall(kafka: KafkaSettings, batch: int, planned_ms: int, timeout_s: float) -> Settled:
    """The deliveries of a batch, planned at that time, that have a row in the `attempts` log.

    Raises InfrastructureError when the log cannot be read to its end in time.
    """
    deadline = time.monotonic() + timeout_s
    topic = kafka.topic("attempts")
    found: set[tuple[str, str]] = set()
    with closing(make_consumer(kafka, wait_ms=100)) as consumer, translated("the log of attempts cannot be read"):
        left = _place(consumer, topic, planned_ms - _CLOCKS_MS)
        while left:
            if time.monotonic() > deadline:
                raise InfrastructureError(f"{topic} could not be read to its end within {timeout_s:g} s", 5.0)
            for partition, records in consumer.poll(timeout_ms=200).items():
                for record in records:
                    if record.value is not None:
                        found.update(_of_batch(record.value, batch))
                if partition in left and records and records[-1].offset + 1 >= left[partition]:
                    del left[partition]
            for partition in [each for each, end in left.items() if consumer.position(each) >= end]:
                del left[partition]
    if found:
        logger.info("%d deliveries of batch %d were settled before it was cut off", len(found), batch)
    return frozenset(found)


def _of_batch(value: bytes, batch: int) -> set[tuple[str, str]]:
    return {(each.subscription, each.notification) for each in attempts.decode(value) if each.batch == batch}


def _place(consumer: Consumer, topic: str, since_ms: int) -> dict[TopicPartition, int]:
    """Go to what was written since then; the partitions with something to read, and where they end."""
    numbers = consumer.partitions_for_topic(topic) or ()
    partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
    consumer.assign(partitions)
    ends = consumer.end_offsets(partitions, timeout_ms=30_000)
    first = consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
    left = {}
    for partition in partitions:
        start = first.get(partition)
        consumer.seek(partition, ends[partition] if start is None else start.offset)
        if start is not None and start.offset < ends[partition]:
            left[partition] = ends[partition]
    return left
