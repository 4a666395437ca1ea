"""From one gear to the other under load, and workers that die in real time: nothing is lost, or out of order."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from core.eventlog.client import partition_of_key
from core.settings import KafkaSettings
from dispatch.job.heartbeat import started_at
from dispatch.operations.audit import audit
from dispatch.realtime.gearbox import Gear
from dispatch.settings import JobSettings
from tests.support.command import wait_until
from tests.support.dispatch_job import Logs, RunningJob, job_settings, kill_workers, running, subscription
from tests.support.receiver import Receiver
from tests.support.steady_load import TopicsLoad

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def settings(tmp_path: Path, kafka_settings: KafkaSettings) -> JobSettings:
    """With which nothing but the test shifts."""
    return job_settings(tmp_path, kafka_settings, "realtime")


TOPICS = ("a/x", "a/y", "b")


def ids(receiver: Receiver, path: str) -> list[str]:
    found = [one.headers["arborcast-notification-id"].split(",") for one in receiver.received(path)]
    return [each for names in found for each in names if each.startswith("n")]  # without the engine's own


def wait_for(receiver: Receiver, path: str, wanted: int) -> list[str]:
    deadline = time.monotonic() + 240
    while len(set(found := ids(receiver, path))) < wanted:
        assert time.monotonic() < deadline, f"{len(set(found))} of {wanted} at {path}"
        time.sleep(0.05)
    return found


def some_more(receiver: Receiver, path: str, count: int = 40) -> None:
    receiver.wait_for(len(receiver.received(path)) + count, path, timeout=240)


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
    to: list[Gear] = ["batch", "realtime", "batch", "realtime"]
    with running(spark, settings) as job:
        with load.running():
            some_more(receiver, "/all")
            assert job.gears.gear == "realtime"
            for gear in to:
                job.gears.shift(gear)
                some_more(receiver, "/all")
                assert job.gears.gear == gear
        arrived = wait_for(receiver, "/all", len(load.sent))
        raw = wait_for(receiver, "/raw", len(load.names("a/x", "a/y")))
        assert receiver.received("/paused") == []
        log.subscribe(subscription("paused", receiver.url("/paused"), "a//."))
        parked = wait_for(receiver, "/paused", len(raw))
        report = audit(settings.kafka, 0, deep=True, patience_s=120)

    assert_each_once_and_in_order(load, arrived)
    assert len(raw) == len(set(raw))
    for topic in ("a/x", "a/y"):
        mine = load.names(topic)
        assert [each for each in parked if each in set(mine)] == mine, "in order, whatever gear has parked it"
    assert report.balanced, report.problems
    assert report.duplicates == 0


def test_a_storm_of_shifts_in_which_workers_die_loses_nothing(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    """Shifts as soon as the last one is done, and workers that die before, in and after them."""
    subscribe(log, receiver)
    load = TopicsLoad(log, TOPICS)
    to: list[Gear] = ["batch", "realtime"]
    killed = 0
    with running(spark, settings) as job:
        with load.running():
            some_more(receiver, "/all")
            for number, wanted in enumerate(to * 4):
                if number % 4 == 1:
                    killed += kill_workers()
                with ThreadPoolExecutor(1) as beside:
                    dying = beside.submit(kill_workers) if number % 4 == 2 else None
                    assert shifted(job, wanted)
                    killed += dying.result() if dying is not None else 0
                if number % 4 == 3:
                    killed += kill_workers()
            some_more(receiver, "/all")
        arrived = wait_for(receiver, "/all", len(load.sent))
        wait_for(receiver, "/raw", len(load.names("a/x", "a/y")))
        report = audit(settings.kafka, 0, deep=True, patience_s=120)

    for topic in TOPICS:
        mine = set(load.names(topic))
        assert list(dict.fromkeys(each for each in arrived if each in mine)) == load.names(topic)
    assert killed
    assert report.balanced, report.problems


def shifted(job: RunningJob, gear: Gear) -> bool:
    """Shift as soon as that may be, and wait until the query runs in this gear; whether it does."""
    deadline = time.monotonic() + 240
    while job.gears.gear != gear and time.monotonic() < deadline:
        job.gears.shift(gear)
        time.sleep(0.05)
    return job.gears.gear == gear


def test_a_job_in_real_time_goes_on_behind_what_is_settled(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    subscribe(log, receiver)
    load = TopicsLoad(log, TOPICS)
    with load.running():
        for _ in range(2):
            with running(spark, settings):
                some_more(receiver, "/all")
    with running(spark, settings):
        arrived = wait_for(receiver, "/all", len(load.sent))
    assert_each_once_and_in_order(load, arrived)


def test_a_worker_that_dies_is_replaced_though_nothing_more_comes(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    subscribe(log, receiver)
    with running(spark, settings) as job:
        log.accept("b")
        receiver.wait_for(1, "/all", timeout=120)
        before = worker_processes(job)
        os.kill(min(before), signal.SIGKILL)
        sent = [log.accept(topic) for topic in TOPICS]
        arrived = wait_for(receiver, "/all", 1 + len(sent))
        deadline = time.monotonic() + 120
        while len(after := worker_processes(job)) < len(before):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert min(before) not in after
        report = audit(settings.kafka, 0, deep=True, patience_s=120)
    assert set(sent) <= set(arrived)
    assert report.balanced, report.problems


def worker_processes(job: RunningJob) -> set[int]:
    return {pid for pid in job.gears.worker_processes() if started_at(pid)}


@pytest.mark.long
@pytest.mark.parametrize("gear", ["realtime", "batch"])
def test_a_receiver_that_answers_slowly_gets_each_message_once(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings, log: Logs, receiver: Receiver, gear: Gear
) -> None:
    """A push that takes twice `retry.batch_wait_s` is not made a second time, and the others do not wait for it."""
    settings = job_settings(tmp_path, kafka_settings, gear, total_timeout_s=60.0)
    log.subscribe(
        subscription("slow", receiver.url("/slow/4"), "a//.", form="raw"),
        subscription("quick", receiver.url("/quick"), "a//.", form="raw"),
    )
    with running(spark, settings):
        sent = [log.accept("a/x")]
        receiver.wait_for(1, "/slow/4", timeout=120)
        sent += [log.accept("a/x") for _ in range(4)]
        quick = wait_for(receiver, "/quick", len(sent))
        slow_meanwhile = ids(receiver, "/slow/4")
        slow = wait_for(receiver, "/slow/4", len(sent))
        after = log.accept("a/x")
        wait_for(receiver, "/slow/4", len(sent) + 1)
        report = audit(settings.kafka, 0, deep=True, patience_s=120)

    assert quick == sent
    assert slow == sent
    assert ids(receiver, "/slow/4") == [*sent, after]
    if gear == "realtime":
        assert len(slow_meanwhile) < len(sent)
    assert report.balanced, report.problems
    assert report.duplicates == 0


@pytest.mark.long
@pytest.mark.parametrize("gear", ["realtime", "batch"])
def test_a_notification_for_many_reaches_each_once_and_another_topic_passes_it(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings, log: Logs, receiver: Receiver, gear: Gear
) -> None:
    settings = job_settings(tmp_path, kafka_settings, gear, total_timeout_s=60.0)
    # In one partition, so that one worker has both.
    partition, *others = [
        partition_of_key(topic.encode(), kafka_settings.partitions)
        for topic in ("many", *(f"other{number}" for number in range(100)))
    ]
    other = f"other{others.index(partition)}"
    many = [f"/many/{number}" for number in range(3_000)]
    log.subscribe(
        *(subscription(path[1:], receiver.url(path), "many", form="raw") for path in many),
        subscription("other", receiver.url("/other"), other, form="raw"),
    )
    with running(spark, settings):
        warm = log.accept(other)
        wait_for(receiver, "/other", 1)
        before = len(receiver.requests)
        sent = log.notify_many(["many", "many", other])
        wait_for(receiver, "/other", 2)
        passed = len(receiver.requests) - before
        wait_until(lambda: len(receiver.requests) >= before + 2 * len(many) + 1, 240, "that all have it")
        report = audit(settings.kafka, 0, deep=True, patience_s=120)

    arrived = defaultdict(list)
    for request in receiver.requests:
        arrived[request.path].append(request.headers["arborcast-notification-id"])
    assert arrived.pop("/other") == [warm, sent[2]]
    assert arrived == dict.fromkeys(many, sent[:2])
    if gear == "realtime":  # else it may be in the next batch
        assert passed < len(many)
    assert report.balanced, report.problems
    assert report.duplicates == 0
