"""Clocks that differ from the broker's."""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import kafka
import pytest

from arborcast.core.eventlog.topics import ensure_topics, specifications
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.federation import takeover
from arborcast.ingest.state import repeats
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Peer, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.broker import notifications_in, records_in

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000

# With the writers' clocks Kafka would refuse records more than an hour ahead, and soon delete records older than the
# log's retention.
WRONG = (2 * HOUR_MS, 24 * 365 * HOUR_MS, -24 * 365 * HOUR_MS)


def test_records_of_all_logs_carry_the_brokers_time(kafka_settings: KafkaSettings) -> None:
    ensure_topics(kafka_settings)
    names = [specification.name for specification in specifications(kafka_settings)]
    before = int(time.time() * 1000)
    producer: Any = kafka.KafkaProducer(bootstrap_servers=kafka_settings.bootstrap_servers)
    with closing(producer):
        sent = [
            producer.send(name, b"v", key=b"k", partition=0, timestamp_ms=before + wrong)
            for name in names
            for wrong in WRONG
        ]
        for each in sent:
            each.get(timeout=60)
    after = int(time.time() * 1000)

    unprefixed = dataclasses.replace(kafka_settings, prefix="")
    for name in names:
        stamps = [record.timestamp for record in records_in(unprefixed, name)]
        assert len(stamps) == len(WRONG), name
        assert all(before <= each <= after for each in stamps), name


def test_gateways_read_back_with_a_clock_ahead_of_the_brokers(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_topics(kafka_settings)
    ahead_s = time.time() + 50.0
    accepted = Notification("n1", TopicPath("a"), b"<x/>", int((ahead_s - 1.0) * 1000))
    with closing(LogWriter(kafka_settings, "notifications")) as log:
        log.append_encoded([notifications.encode(accepted)])
    monkeypatch.setattr(repeats, "time", SimpleNamespace(time=lambda: ahead_s, monotonic=time.monotonic))
    assert [each.id for each, _ in repeats.accepted_lately(kafka_settings, 10.0)] == ["n1"]
    link = Subscription("l", EndpointReference("http://h/"), peer=Peer("e/one", "two"))
    assert takeover.send_again(kafka_settings, [link], ahead_s - 10.0, 0) == 1
    assert [each.only for each in notifications_in(kafka_settings)] == ["", "l"]
