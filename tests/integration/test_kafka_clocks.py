"""Writers whose clocks are wrong: their records are taken, and stamped by the broker."""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from typing import Any

import kafka
import pytest

from arborcast.core.eventlog.topics import ensure_topics, specifications
from arborcast.core.settings import KafkaSettings
from tests.support.broker import records_in

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

    unprefixed = dataclasses.replace(kafka_settings, prefix="")
    for name in names:
        stamps = [record.timestamp for record in records_in(unprefixed, name)]
        assert len(stamps) == len(WRONG), name
        assert all(before <= each <= after for each in stamps), name
