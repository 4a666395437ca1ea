"""The last messages and attempts, from real logs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest

from arborcast.admin.messages import Busiest, LastMessages, busiest, last_attempts, last_messages, recent
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import make_producer
from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import Attempt, AttemptsLog
from arborcast.topic_model.records.notifications import Notification, encode
from arborcast.topic_model.topics import TopicPath
from tests.support import table_rows

pytestmark = pytest.mark.kafka

PATIENCE_S = 120.0

A = TopicPath("{urn:x}a/b")


def made(topic: str, number: int, **facts: Any) -> Notification:
    return Notification(f"{topic}-{number}", TopicPath(topic), b"<n>%d</n>" % number, number, **facts)


def write(kafka: KafkaSettings, log: str, notifications: Iterable[Notification], *, taken_back: str = "") -> None:
    producer = make_producer(kafka)
    for each in notifications:
        key, value = encode(each)
        producer.send(kafka.topic(log), key=key, value=value)
    if taken_back:
        producer.send(kafka.topic(log), key=taken_back.encode(), value=None)
    producer.flush(timeout=120)
    producer.close(timeout=1)


def attempt(subscription: str, number: int, response: bytes = b"", push: str = "p") -> Attempt:
    return table_rows.attempt("n", subscription, "parked", number, number=number, push=push, response=response)


def read(kafka: KafkaSettings, path: TopicPath, *, kept: bool = False) -> LastMessages:
    found = last_messages(kafka, path, kept=kept, patience_s=PATIENCE_S)
    assert not found.problem
    return found


def test_the_retained_message_or_the_newest_few(kafka_settings: KafkaSettings) -> None:
    ensure_topics(kafka_settings)
    assert read(kafka_settings, A, kept=True) == LastMessages(complete=True)
    write(kafka_settings, "notifications", [made(A, number) for number in range(8)])
    write(kafka_settings, "notifications", [made(A, 99, only="s1"), *(made("other", number) for number in range(3))])
    newest = read(kafka_settings, A, kept=True)
    assert [each.payload for each in newest.messages] == [f"<n>{number}</n>" for number in (7, 6, 5, 4, 3)]
    assert not newest.messages[0].kept

    write(kafka_settings, "retained", [made(A, 6), made(A, 7), made("other", 1)])
    (kept,) = read(kafka_settings, A, kept=True).messages
    assert (kept.id, kept.at_ms, kept.kept) == (f"{A}-7", 7, True)
    assert len(read(kafka_settings, A).messages) == 5

    write(kafka_settings, "retained", [], taken_back=A)
    assert not read(kafka_settings, A, kept=True).messages[0].kept


def test_a_log_is_read_backwards_and_no_further_than_needed(kafka_settings: KafkaSettings) -> None:
    ensure_topics(kafka_settings)
    flood = [made("flood", number) for number in range(3_000)]
    write(kafka_settings, "retained", [made(A, 1), *flood[:2_000], made("late", 1), *flood[2_000:]])
    early, late = (read(kafka_settings, TopicPath(path), kept=True) for path in (A, "late"))
    assert early.messages[0].id == f"{A}-1"
    assert early.complete
    assert late.messages[0].id == "late-1"
    assert late.looked_at == 1_500


def test_a_long_message_is_cut(kafka_settings: KafkaSettings) -> None:
    assert last_messages(kafka_settings, A, kept=False).problem, "there is no log"
    with pytest.raises(InfrastructureError):
        busiest(kafka_settings, 10)
    ensure_topics(kafka_settings)
    write(kafka_settings, "notifications", [Notification("n", A, b"<n>" + b"x" * 100_000, 1)])
    (long,) = read(kafka_settings, A).messages
    assert len(long.payload) == 2_001


def test_the_newest_notifications_of_all_topics(kafka_settings: KafkaSettings) -> None:
    ensure_topics(kafka_settings)
    assert busiest(kafka_settings, 10) == Busiest([])
    began_ms = int(time.time() * 1000)
    write(kafka_settings, "notifications", [made(f"t{number % 7}", number) for number in range(60)])
    write(kafka_settings, "notifications", [made("t1", 99, only="s1")])
    assert [each.at_ms for each in recent(kafka_settings, 5)] == [59, 58, 57, 56, 55]
    # All in one partition; the newest are searched.
    log = kafka_settings.topic("notifications")
    producer = make_producer(kafka_settings)
    for topic, count in (("old", 2_000), ("{urn:x}a/b", 300), ("c", 199)):
        for _ in range(count):
            producer.send(log, key=topic.encode(), value=b"x", partition=0)
    producer.send(log, key=b"\xff", value=b"x", partition=0)  # by another program
    producer.flush(timeout=120)
    producer.close(timeout=1)
    found = busiest(kafka_settings, 10)
    assert found.topics[:2] == [("{urn:x}a/b", 300), ("c", 199)]
    assert began_ms <= found.since_ms <= time.time() * 1000
    assert busiest(kafka_settings, 1).topics == [("{urn:x}a/b", 300)]


def test_the_last_attempts_of_a_subscription_and_no_others(kafka_settings: KafkaSettings) -> None:
    ensure_topics(kafka_settings)
    with closing(AttemptsLog(kafka_settings)) as log:
        for number in range(60):
            for name in ("s1", "s2"):
                log.add(attempt(name, number, b"y" * 10_000 if number == 59 else b""))
        log.add(attempt("s1", 60, push=""))
        log.settle(120)
    found = last_attempts(kafka_settings, "s1", 3)
    assert [(each.subscription, each.number) for each in found] == [("s1", 59), ("s1", 58), ("s1", 57)]
    assert len(found[0].response) == 2_000
    assert last_attempts(kafka_settings, "none") == []
