"""From one gear to the other under load, and workers that die in real time: nothing is lost, or out of order."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession

from arborcast.core.eventlog.client import make_producer
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.job.heartbeat import started_at
from arborcast.dispatch.operations.audit import audit
from arborcast.dispatch.realtime.mode_policy import Mode
from arborcast.dispatch.realtime.workers import WorkersHere
from arborcast.dispatch.settings import JobSettings
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.dispatch_job import Logs, RunningJob, job_settings, running, subscription
from tests.support.receiver import Receiver
from tests.support.steady_load import TopicsLoad
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def settings(tmp_path: Path, kafka_settings: KafkaSettings) -> JobSettings:
    """With which nothing but the test shifts."""
    return job_settings(tmp_path, kafka_settings, "realtime")


TOPICS = ("a/x", "a/y", "b")


def ids(receiver: Receiver, path: str) -> list[str]:
    return [each for each in receiver.names(path) if each.startswith("n")]  # without the engine's own


def wait_for(receiver: Receiver, path: str, wanted: int) -> list[str]:
    wait_until(lambda: len(set(ids(receiver, path))) >= wanted, f"{wanted} at {path}")
    return ids(receiver, path)


def some_more(receiver: Receiver, path: str, count: int = 40) -> None:
    receiver.wait_for(len(receiver.received(path)) + count, path)


def assert_each_once_and_in_order(load: TopicsLoad, arrived: list[str]) -> None:
    assert Counter(arrived) == Counter(load.names())
    for topic in TOPICS:
        names = load.names(topic)
        mine = set(names)
        assert [each for each in arrived if each in mine] == names


def subscribe(log: Logs, receiver: Receiver) -> None:
    log.subscribe(
        subscription("all", receiver.url("/all"), "//."),
        subscription("raw", receiver.url("/raw"), "a//.", form="raw"),
        subscription("paused", receiver.url("/paused"), "a//.", paused=True),
        subscription("failing", receiver.url("/status/503"), "b"),
    )


def test_a_shift_loses_nothing_repeats_nothing_and_keeps_the_order(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    subscribe(log, receiver)
    load = TopicsLoad(log, TOPICS)
    to: list[Mode] = ["batch", "realtime", "batch", "realtime"]
    with running(spark, settings) as job:
        with load.running():
            some_more(receiver, "/all")
            assert job.modes.mode == "realtime"
            for gear in to:
                job.modes.shift(gear)
                some_more(receiver, "/all")
                assert job.modes.mode == gear
        arrived = wait_for(receiver, "/all", len(load.sent))
        raw = wait_for(receiver, "/raw", len(load.names("a/x", "a/y")))
        assert receiver.received("/paused") == []
        log.subscribe(subscription("paused", receiver.url("/paused"), "a//."))
        parked = wait_for(receiver, "/paused", len(raw))
        report = audit(settings.kafka, 0, deep=True, order=True, patience_s=120)

    assert_each_once_and_in_order(load, arrived)
    assert len(raw) == len(set(raw))
    for topic in ("a/x", "a/y"):
        mine = load.names(topic)
        assert [each for each in parked if each in set(mine)] == mine, "in order, whatever gear has parked it"
    assert report.balanced, report.problems
    assert report.duplicates == 0


def test_a_worker_that_dies_is_replaced_though_nothing_more_comes(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    subscribe(log, receiver)
    with running(spark, settings) as job:
        log.accept("b")
        receiver.wait_for(1, "/all")
        before = worker_processes(job)
        os.kill(min(before), signal.SIGKILL)
        sent = [log.accept(topic) for topic in TOPICS]
        arrived = wait_for(receiver, "/all", 1 + len(sent))
        wait_until(lambda: len(worker_processes(job)) >= len(before))
        assert min(before) not in worker_processes(job)
        report = audit(settings.kafka, 0, deep=True, order=True, patience_s=120)
    assert set(sent) <= set(arrived)
    assert report.balanced, report.problems


def test_a_partition_that_is_added_is_read(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    """Spark looks for new partitions at the end of a batch, which in real time is days away."""
    log.subscribe(subscription("all", receiver.url("/all"), "b"))
    topic = settings.kafka.topic("notifications")

    def seen(partitions: int) -> bool:
        with closing(make_producer(settings.kafka)) as producer:
            return len(producer.partitions_for(topic)) >= partitions

    with running(spark, settings):
        log.accept("b")
        wait_for(receiver, "/all", 1)
        with closing(KafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap_servers)) as admin:
            admin.create_partitions({topic: 3})
        wait_until(lambda: seen(3), "three partitions")
        with closing(make_producer(settings.kafka)) as producer:
            added = Notification("n-added", TopicPath("b"), b"<x/>", int(time.time() * 1000))
            key, value = notifications.encode(added)
            producer.send(topic, key=key, value=value, partition=2)
            producer.flush()
        arrived = wait_for(receiver, "/all", 2)
    assert arrived[1:] == ["n-added"]


def worker_processes(job: RunningJob) -> set[int]:
    workers = job.modes._realtime.listener._workers
    assert isinstance(workers, WorkersHere)
    return {pid for pid, _ in list(workers._tasks.values()) if started_at(pid)}
