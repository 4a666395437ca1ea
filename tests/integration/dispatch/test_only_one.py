"""A notification for one subscription only, as a new subscriber gets the current message of a topic."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.support.dispatch_job import job_settings, logs, running, subscription
from tests.support.receiver import Received, Receiver
from topic_model import notifications
from topic_model.notifications import Notification
from topic_model.settings import KafkaSettings
from topic_model.topics import TopicPath

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def ids(request: Received) -> str:
    return request.headers["arborcast-notification-id"]


def test_it_is_pushed_to_that_subscription_and_to_no_other(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    settings = job_settings(tmp_path, kafka_settings)
    current = Notification("current", TopicPath("a/b"), b"<x>1</x>", accepted_ms=int(time.time() * 1000))
    with Receiver() as receiver, logs(settings.kafka) as log, running(spark, settings):
        log.subscribe(
            subscription("old", receiver.url("/old"), "a//."),
            subscription("new", receiver.url("/new"), "a//."),
            subscription("elsewhere", receiver.url("/elsewhere"), "c"),
        )
        for only in ("new", "elsewhere"):
            key, value = notifications.encode(msgspec.structs.replace(current, only=only))
            log.raw(value, key)
        receiver.wait_for(1, "/new")
        last = log.notify("a/b")
        assert [ids(request) for request in receiver.wait_for(2, "/new")] == ["current", last]
        assert [ids(request) for request in receiver.wait_for(1, "/old")] == [last]
        assert not receiver.received("/elsewhere"), "it is not subscribed to that topic"
