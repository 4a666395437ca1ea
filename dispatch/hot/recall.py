"""What an earlier run of a batch came to, as far as it had been written down when it was cut off.

After a crash Spark repeats the batch. Whatever the `attempts` log tells of it is not pushed again, so that only what
was under way in that moment, or just before, arrives twice. No other batch has its number.

The log is read since the batch was planned, which may be long ago when it was repeated often. What others have written
meanwhile, the redelivery above all, is passed over unread; what is left is not more than the batch's own deliveries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from core import liveness
from core.errors import InfrastructureError
from core.eventlog.client import Consumer, ConsumerRecord, TopicPartition, make_consumer, translated
from core.eventlog.settings import KafkaSettings
from dispatch.logs import attempts

Settled = frozenset[tuple[str, str]]
"""Subscriptions and notifications of which something is known already."""

logger = logging.getLogger(__name__)

# What was written for the batch has a time stamp behind the batch's own, by clocks of several machines.
_CLOCKS_MS = 60_000

# How far back the newest batch is looked for, in seconds, before all of the log is read.
_LOOKS_BACK_S = (60, 3_600, 86_400)


def recall(kafka: KafkaSettings, batch: int, planned_ms: int, timeout_s: float) -> Settled:
    """The deliveries of a batch, planned at that time, that have a row in the `attempts` log.

    Raises InfrastructureError when the log cannot be read to its end in time.
    """
    found: set[tuple[str, str]] = set()
    with _opened(kafka, timeout_s) as written_since:
        for record in written_since(planned_ms - _CLOCKS_MS):
            if record.value is not None and attempts.batch_of(record.key) in (batch, None):
                found.update(_of_batch(record.value, batch))
    if found:
        logger.info("%d deliveries of batch %d were settled before it was cut off", len(found), batch)
    return frozenset(found)


def newest_batch(kafka: KafkaSettings, timeout_s: float) -> int:
    """The highest number of a batch that the `attempts` log tells of, NO_BATCH when there is none.

    Raises InfrastructureError when the log cannot be read to its end in time.
    """
    now_ms = int(time.time() * 1000)
    with _opened(kafka, timeout_s) as written_since:
        for since_ms in (*(now_ms - back_s * 1000 for back_s in _LOOKS_BACK_S), 0):
            newest = max(map(_newest, written_since(since_ms)), default=attempts.NO_BATCH)
            if newest != attempts.NO_BATCH:
                break
    return newest


def _newest(record: ConsumerRecord) -> int:
    named = attempts.batch_of(record.key)
    if named is not None or record.value is None:
        return attempts.NO_BATCH if named is None else named
    rows, evaluation = attempts.decode_all(record.value)
    evaluated = evaluation.batch if evaluation is not None else attempts.NO_BATCH
    return max((each.batch for each in rows), default=evaluated)


@contextmanager
def _opened(kafka: KafkaSettings, timeout_s: float) -> Iterator[Callable[[int], Iterator[ConsumerRecord]]]:
    """The log; to be asked for what was written to it from a time (ms since the epoch) until now."""
    deadline = time.monotonic() + timeout_s
    topic = kafka.topic("attempts")

    def written_since(since_ms: int) -> Iterator[ConsumerRecord]:
        left = _place(consumer, topic, since_ms)
        while left:
            liveness.beat()
            if time.monotonic() > deadline:
                raise InfrastructureError(f"{topic} could not be read to its end within {timeout_s:g} s", 5.0)
            for partition, records in consumer.poll(timeout_ms=200).items():
                yield from records
                if partition in left and records and records[-1].offset + 1 >= left[partition]:
                    del left[partition]
            for partition in [each for each, end in left.items() if consumer.position(each) >= end]:
                del left[partition]

    with closing(make_consumer(kafka, wait_ms=100)) as consumer, translated("the log of attempts cannot be read"):
        yield written_since


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
