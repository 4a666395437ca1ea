"""Pushes by requests-futures instead of libcurl, in both gears: real Kafka, real Spark, real HTTP, real Delta."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from arborcast.dispatch.settings import JobSettings
from tests.support.dispatch_job import IN_BOTH_GEARS, Own, RunningJob, running
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.kafka, pytest.mark.spark, IN_BOTH_GEARS]


@pytest.fixture(scope="module")
def job(spark: SparkSession, module_settings: JobSettings) -> Iterator[RunningJob]:
    push = dataclasses.replace(module_settings.push, transport="futures")
    with running(spark, dataclasses.replace(module_settings, push=push)) as started:
        yield started


def test_notifications_arrive_once_and_in_order(own: Own, receiver: Receiver) -> None:
    own.subscribe("s", receiver.url("/s"), "a//.", form="raw")
    sent = {topic: [own.notify(topic) for _ in range(20)] for topic in ("a/x", "a/y")}
    pushes = receiver.wait_for(40, "/s")

    arrived = receiver.names("/s")
    for topic, names in sent.items():
        assert [each for each in arrived if each in names] == names, topic
    assert {each.headers.get("accept-encoding") for each in pushes} == {"identity"}, "libcurl sends no such header"
    assert len({each.connection for each in pushes}) < 40, "connections are kept"
