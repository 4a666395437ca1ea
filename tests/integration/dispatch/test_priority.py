"""Priorities with the real job over real Kafka and real HTTP."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from core.settings import KafkaSettings
from dispatch.operations.audit.examine import audit
from tests.support.dispatch_job import Logs, Own, RunningJob, job_settings, running
from tests.support.receiver import Receiver
from topic_model.records import notifications
from topic_model.records.notifications import Notification
from topic_model.subscriptions import DeliveryPolicy
from topic_model.topics import TopicPath

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

MANY, FEW = 200, 5


@pytest.fixture(scope="module", params=["realtime", "batch"])
def job(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    kafka: KafkaSettings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningJob]:
    prefixed = dataclasses.replace(kafka, prefix=f"t{uuid.uuid4().hex[:8]}.")
    with running(spark, job_settings(tmp_path_factory.mktemp("job"), prefixed, request.param)) as started:
        yield started


def accepted(own: Own, job_logs: Logs, name: str, priority: int) -> str:
    """One that was accepted now, as the gateway writes it; its id."""
    path = TopicPath(own.topic("a"))
    made = Notification(f"{own.name(name)}", path, b"<x/>", int(time.time() * 1000), priority=priority)
    key, value = notifications.encode(made)
    job_logs.raw(value, key)
    return made.id


def seen(receiver: Receiver, path: str) -> list[str]:
    return [each.headers["arborcast-notification-id"] for each in receiver.received(path)]


def test_what_is_urgent_overtakes_what_waits_behind_a_slow_receiver(
    own: Own, job_logs: Logs, receiver: Receiver
) -> None:
    since_ms = int(time.time() * 1000)
    own.subscribe("slow", receiver.url("/slowly"), "a", form="raw")
    own.subscribe("strict", receiver.url("/strictly"), "a", form="raw", policy=DeliveryPolicy(order="strict"))
    receiver.behave("/slowly", "slow/0.1")
    ordinary = [accepted(own, job_logs, f"ordinary-{number:03}", 0) for number in range(MANY)]
    receiver.wait_for(3, "/slowly")
    urgent = [accepted(own, job_logs, f"urgent-{number}", 5) for number in range(FEW)]

    receiver.wait_for(MANY + FEW, "/slowly")
    slowly = seen(receiver, "/slowly")
    assert sorted(slowly) == sorted([*ordinary, *urgent]), "each of them once"
    assert [each for each in slowly if each in ordinary] == ordinary
    assert [each for each in slowly if each in urgent] == urgent
    assert slowly.index(urgent[-1]) < MANY * 3 // 4, "long before the last of those that were accepted earlier"

    receiver.wait_for(MANY + FEW, "/strictly")
    assert seen(receiver, "/strictly") == [*ordinary, *urgent]
    own.attempts(2 * (MANY + FEW))
    report = audit(own.job.settings.kafka, since_ms, deep=True)
    assert report.balanced, report
