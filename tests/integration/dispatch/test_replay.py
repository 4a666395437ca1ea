"""A replay through the whole job: real Kafka, real Spark, a real receiver, and the audit at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.admin.control_log import read_table
from arborcast.admin.filters import TopicTest
from arborcast.admin.replay import plan
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations.audit import audit
from arborcast.dispatch.operations.replay import Replay, ReplayRefused, ReplaySpan
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.subscriptions import DeliveryPolicy, XPathFilter
from arborcast.topic_model.topics import TopicPath
from tests.support.broker import notifications_in
from tests.support.dispatch_job import job_settings, logs, running, subscription
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until


def span(since_ms: int, topic: Callable[[TopicPath], bool] = lambda _: True) -> ReplaySpan:
    return ReplaySpan(since_ms, int(time.time() * 1000) + 1, topic)


def make(kafka: KafkaSettings, subscription_id: str, asked: ReplaySpan) -> Replay:
    return Replay(kafka, read_table(kafka), subscription_id, asked)


@pytest.mark.kafka
@pytest.mark.spark
def test_one_subscription_gets_it_again_with_its_label_and_all_balances(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    settings = job_settings(tmp_path, kafka_settings)
    since_ms = int(time.time() * 1000)
    with Receiver() as receiver, logs(settings.kafka) as log, running(spark, settings):
        log.subscribe(subscription("one", receiver.url("/one"), "a//."), subscription("two", receiver.url("/two"), "a"))
        first = [log.notify("a"), log.notify("a/b")]
        receiver.wait_for(1, "/two")
        replay = make(kafka_settings, "one", span(since_ms))
        assert replay.send(replay.find(10)) == 2

        def labels() -> list[tuple[str, str]]:
            requests = [each.headers for each in receiver.received("/one")]
            pairs = [
                zip(h["arborcast-notification-id"].split(","), h["arborcast-replay"].split(","), strict=True)
                for h in requests
                if "arborcast-replay" in h
            ]
            return sorted(pair for each in pairs for pair in each if pair[1] != "-")

        wait_until(lambda: len(labels()) >= 2)
        assert labels() == [(each, replay.id) for each in sorted(first)]
        report = audit(kafka_settings, since_ms, deep=True, patience_s=120)
        assert report.balanced, report.problems
        assert (report.notifications, report.matches, report.totals.delivered) == (4, 5, 5)
        assert report.duplicates == 0, "a replay is a delivery of its own"
        assert not [each for each in receiver.received("/two") if "arborcast-replay" in each.headers]

        # A replay is not replayed: what it brought stands in the log as itself.
        assert len(make(kafka_settings, "one", span(since_ms)).find(10)) == 2


@pytest.mark.kafka
def test_a_replay_finds_current_matches_up_to_the_limit(kafka_settings: KafkaSettings) -> None:
    since_ms = int(time.time() * 1000)
    with logs(kafka_settings) as log:
        only_big = (XPathFilter(XPATH_1, "/x/@big"),)
        log.subscribe(
            subscription("all", "http://r/", "//."),
            subscription("big", "http://r/", "//.", content=only_big),
            subscription("pulled", "http://r/", "a", pull_point="p1"),
            subscription("idle", "http://r/", "a", form="legacy", paused=True),
            subscription("over", "http://r/", "a", terminates_ms=since_ms),
        )
        for number in range(5):
            log.notify("a" if number else "c", b'<x big="1"/>' if number < 2 else b"<x/>")
        log.raw(b"\xc1", b"a")

    assert len(make(kafka_settings, "all", span(since_ms)).find(10)) == 5
    assert len(make(kafka_settings, "all", span(since_ms)).find(3)) == 4, "one more shows that there are more"
    assert len(make(kafka_settings, "big", span(since_ms)).find(10)) == 2
    assert len(make(kafka_settings, "big", span(since_ms, lambda path: path == "c")).find(10)) == 1
    assert make(kafka_settings, "all", span(int(time.time() * 1000) + 1)).find(10) == []
    for refused, why in {"pulled": "pull point", "idle": "paused", "over": "over", "nobody": "no subscription"}.items():
        with pytest.raises(ReplayRefused, match=why):
            make(kafka_settings, refused, span(since_ms))


@pytest.mark.kafka
def test_a_timely_subscription_gets_the_whole_replay(kafka_settings: KafkaSettings) -> None:
    since_ms = int(time.time() * 1000)
    with logs(kafka_settings) as log:
        timely = DeliveryPolicy(reliability="timely")
        log.subscribe(
            subscription("timely", "http://r/", "a", policy=timely), subscription("adaptive", "http://r/", "a")
        )
        log.notify("a")
    for name in ("timely", "adaptive"):
        replay = make(kafka_settings, name, span(since_ms))
        assert replay.send(replay.find(10)) == 1
    assert {each.only: each.reliable for each in notifications_in(kafka_settings)} == {
        "": False,
        "timely": True,
        "adaptive": False,
    }


@pytest.mark.kafka
def test_a_plan_names_the_messages_and_refuses_more_than_the_limit(kafka_settings: KafkaSettings) -> None:
    since_ms = int(time.time() * 1000) - 1
    with logs(kafka_settings) as log:
        log.subscribe(subscription("one", "http://r/", "//."))
        for topic in ("a", "a/b", "c"):
            log.notify(topic)
    planned = plan(kafka_settings, "one", since_ms, None, TopicTest("a//."), 2)
    assert len(planned.places) == 2
    assert planned.since_ms == since_ms < planned.until_ms
    with pytest.raises(ReplayRefused, match="more than 2 notifications match"):
        plan(kafka_settings, "one", since_ms, None, TopicTest(), 2)
    assert planned.send() == 2
