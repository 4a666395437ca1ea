"""What was accepted before this gateway started: the end of the notifications log, read for its fingerprints."""

from __future__ import annotations

import logging
import time
from contextlib import closing

from ingest.repeats import RepeatMemory, steady_now
from topic_model import notifications
from topic_model.kafka_client import Consumer, TopicPartition, make_consumer, translated
from topic_model.settings import KafkaSettings

logger = logging.getLogger(__name__)

# Of each partition, however much the window holds: a start must not take long, and the table holds no more anyway.
_MOST_RECORDS = 50_000

_POLL_MS = 200


def remember_history(kafka: KafkaSettings, memory: RepeatMemory, window_s: float) -> int:
    """Put into `memory` what the last `window_s` seconds of the log hold; returns how many requests.

    Only requests of which all notifications are found count: of one that was cut off by a crash nobody was told that
    it is stored. Raises InfrastructureError.
    """
    since_s = time.time() - window_s
    topic = kafka.topic("notifications")
    found: dict[bytes, int] = {}
    complete = 0
    with closing(make_consumer(kafka, wait_ms=10)) as consumer, translated(f"the end of {topic} cannot be read"):
        missing = _seek(consumer, topic, since_s)
        while missing:
            for partition, records in consumer.poll(timeout_ms=_POLL_MS).items():
                for record in records:
                    each = notifications.decode(record.value or b"")
                    if each.request and not each.only and each.accepted_ms >= since_s * 1000:
                        found[each.request] = found.get(each.request, 0) + 1
                        if found[each.request] == each.request_size:
                            complete += 1
                            age_s = max(time.time() - each.accepted_ms / 1000, 0.0)
                            if not memory.knows(each.request, steady_now()):
                                memory.add(each.request, steady_now() - age_s)
                    if record.offset >= missing.get(partition, -1):
                        missing.pop(partition, None)
            # Records that a compaction or a transaction left out leave gaps at the end.
            missing = {partition: last for partition, last in missing.items() if consumer.position(partition) <= last}
    if complete:
        logger.info("%d requests of the last %g s are remembered", complete, window_s)
    return complete


def _seek(consumer: Consumer, topic: str, since_s: float) -> dict[TopicPartition, int]:
    """Go to where reading begins; returns the last offset to read of each partition that holds anything."""
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    consumer.assign(partitions)
    ends = consumer.end_offsets(partitions)
    begins = consumer.beginning_offsets(partitions)
    by_time = consumer.offsets_for_times(dict.fromkeys(partitions, int(since_s * 1000)))
    missing = {}
    for partition in partitions:
        at = by_time.get(partition)
        start = ends[partition] if at is None else max(at.offset, begins[partition], ends[partition] - _MOST_RECORDS)
        consumer.seek(partition, start)
        if start < ends[partition]:
            missing[partition] = ends[partition] - 1
    return missing
