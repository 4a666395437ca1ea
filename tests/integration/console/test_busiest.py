"""The busiest topics, of a real log."""

from __future__ import annotations

import time

import pytest

from arborcast.admin.messages import Busiest, busiest
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import make_producer
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings

pytestmark = pytest.mark.kafka


def test_topics_of_the_newest_notifications_are_counted(kafka_settings: KafkaSettings) -> None:
    ensure_topics(kafka_settings)
    assert busiest(kafka_settings, 10) == Busiest([])
    began_ms = int(time.time() * 1000)
    producer = make_producer(kafka_settings)
    log = kafka_settings.topic("notifications")
    # All in one partition, of which the newest are looked at.
    sent = [("old", 2_000), ("{urn:x}a/b", 300), ("c", 200)]
    for topic, count in sent:
        for _ in range(count):
            producer.send(log, key=topic.encode(), value=b"x", partition=0)
    producer.flush(timeout=120)
    producer.close(timeout=1)
    found = busiest(kafka_settings, 10)
    assert found == Busiest([("{urn:x}a/b", 300), ("c", 200)], 500, found.since_ms)
    assert began_ms <= found.since_ms <= time.time() * 1000
    assert busiest(kafka_settings, 1).topics == [("{urn:x}a/b", 300)]


def test_without_a_log_the_page_has_a_reason(kafka_settings: KafkaSettings) -> None:
    with pytest.raises(InfrastructureError):
        busiest(kafka_settings, 10)
