"""Triggers while workers are killed: what is published again is what was published."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot.triggers import derived_id
from arborcast.dispatch.operations.audit import audit
from arborcast.dispatch.realtime.mode_policy import Mode
from arborcast.topic_model.records.control import TopicRecord, TriggerRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.broker import notifications_in
from tests.support.dispatch_job import (
    Logs,
    job_settings,
    kill_workers,
    running,
    subscription,
    trigger,
)
from tests.support.receiver import Receiver
from tests.support.steady_load import TopicsLoad
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize("gear", ["realtime", "batch"])
def test_after_kills_it_is_the_same_that_is_published(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings, log: Logs, receiver: Receiver, gear: Mode
) -> None:
    settings = job_settings(tmp_path, kafka_settings, gear)
    log.control(TopicRecord(TopicPath("made")), TopicRecord(TopicPath("last")))
    log.control(TriggerRecord(trigger("one", "a//.", "made")), TriggerRecord(trigger("two", "made", "last", "<y/>")))
    log.subscribe(subscription("last", receiver.url("/last"), "last", form="raw"))
    load = TopicsLoad(log)
    with load.running():
        for kills in (3, 1):
            with running(spark, settings):
                for _ in range(kills):
                    receiver.wait_for(len(receiver.received("/last")) + 15, "/last")
                    kill_workers()
    wanted = [derived(name, accepted_ms) for name, _, accepted_ms in load.sent]
    with running(spark, settings):
        wait_until(
            lambda: set(wanted) <= set(receiver.names("/last")), lambda: len(set(wanted) - set(receiver.names("/last")))
        )
        report = audit(settings.kafka, 0, deep=True, patience_s=120)
    assert report.balanced, report.problems
    assert set(receiver.names("/last")) == set(wanted)
    made = [found for found in notifications_in(settings.kafka) if found.topic == "last"]
    assert {found.id for found in made} == set(wanted), "not one that only a repetition has made"
    assert {(found.hops, found.payload) for found in made} == {(2, b"<y/>")}
    repeated = sum(count - 1 for count in Counter(found.id for found in made).values())
    print(f"\n{gear}: {len(wanted)} were published, {repeated} of them again after a kill")
    for topic in ("a/x", "a/y", "a/z"):
        its = [derived(name, accepted_ms) for name, sent, accepted_ms in load.sent if sent == topic]
        firsts = [name for name in dict.fromkeys(found.id for found in made) if name in set(its)]
        assert firsts == its, "in the order of acceptance"


def derived(name: str, accepted_ms: int) -> str:
    """What the two triggers make of a notification."""
    first = derived_id("one", Notification(name, TopicPath("a"), b"", accepted_ms))
    return derived_id("two", Notification(first, TopicPath("made"), b"", accepted_ms))
