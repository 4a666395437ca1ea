"""Writers whose clocks are wrong: their records are taken, and stamped by the broker."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import kafka
import pytest

from arborcast.core.eventlog.client import TopicPartition, make_consumer
from arborcast.core.eventlog.topics import ensure_topics, specifications
from arborcast.core.settings import KafkaSettings

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000

# By the writers' clocks Kafka would refuse what is more than an hour ahead, and delete at its next look what is older
# than the log's retention.
WRONG = (2 * HOUR_MS, 24 * 365 * HOUR_MS, -24 * 365 * HOUR_MS)


def test_records_of_all_logs_carry_the_brokers_time(kafka_settings: KafkaSettings) -> None:
    ensure_topics(kafka_settings)
    names = [specification.name for specification in specifications(kafka_settings)]
    before = int(time.time() * 1000)
    producer: Any = kafka.KafkaProducer(bootstrap_servers=kafka_settings.bootstrap_servers)
    with closing(producer):
        for name in names:
            for wrong in WRONG:
                at = int(time.time() * 1000) + wrong
                producer.send(name, b"v", key=b"k", partition=0, timestamp_ms=at).get(timeout=60)
    after = int(time.time() * 1000)

    for name in names:
        stamps = stamps_of(kafka_settings, name)
        assert len(stamps) == len(WRONG), name
        assert all(before <= each <= after for each in stamps), name


def stamps_of(settings: KafkaSettings, name: str) -> list[int]:
    """The time of each record in a log's first partition."""
    partition = TopicPartition(name, 0)
    stamps: list[int] = []
    with closing(make_consumer(settings, wait_ms=100)) as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        consumer.seek(partition, 0)
        deadline = time.monotonic() + 240
        while consumer.position(partition) < end:
            assert time.monotonic() < deadline, f"{name} could not be read to its end"
            stamps += [record.timestamp for record in consumer.poll(timeout_ms=500).get(partition, ())]
    return stamps
