"""From one gear to the other under load, and workers that die in real time: nothing is lost, or out of order."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import make_producer, partition_of_key
from arborcast.core.eventlog.scan import LogScan
from arborcast.core.eventlog.topics import PROGRESS_LOG
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot import recovered
from arborcast.dispatch.job.heartbeat import started_at
from arborcast.dispatch.logs.attempts import NOTHING, decode
from arborcast.dispatch.operations.audit import audit
from arborcast.dispatch.realtime.driver import WorkerUpdates
from arborcast.dispatch.realtime.messages import read_progress
from arborcast.dispatch.realtime.mode_controller import ModeController
from arborcast.dispatch.realtime.mode_policy import Mode
from arborcast.dispatch.realtime.workers import WorkersHere
from arborcast.dispatch.settings import JobSettings
from arborcast.engine.embedded.kafka_broker import KafkaBroker
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference
from arborcast.topic_model.topics import TopicPath
from tests.support.broker import records_in, settings_for
from tests.support.dispatch_job import Logs, RunningJob, job_settings, kill_workers, logs, running, subscription
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


@pytest.mark.long
def test_a_storm_of_shifts_in_which_workers_die_loses_nothing(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    """Shifts as soon as the last one is done, and workers that die before, in and after them."""
    subscribe(log, receiver)
    load = TopicsLoad(log, TOPICS)
    to: list[Mode] = ["batch", "realtime"]
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
        report = audit(settings.kafka, 0, deep=True, order=True, patience_s=120)

    for topic in TOPICS:
        mine = set(load.names(topic))
        assert list(dict.fromkeys(each for each in arrived if each in mine)) == load.names(topic)
    assert killed
    assert report.balanced, report.problems


def shifted(job: RunningJob, gear: Mode) -> bool:
    """Shift as soon as that may be, and wait until the query runs in this gear; whether it does."""

    def shift() -> bool:
        job.modes.shift(gear)
        return job.modes.mode == gear

    return job.modes.mode == gear or wait_until(shift, f"it runs in {gear}", every_s=0.05)


@pytest.mark.long
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


def test_a_start_after_an_orderly_stop_recalls_nothing_though_a_partition_was_idle(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "arborcast.dispatch.realtime")
    log.subscribe(subscription("all", receiver.url("/all"), "b"))
    with running(spark, settings):
        log.notify_many(["b"] * 1_000)
        wait_for(receiver, "/all", 1_000)
    known = read_progress(settings.kafka)
    assert {number: each.clean for number, each in known.items()} == {0: True, 1: True}
    assert {number: each.position for number, each in known.items()} == ends_of(settings.kafka, "notifications")
    log.notify_many(["b"] * 5)
    with running(spark, settings):
        arrived = wait_for(receiver, "/all", 1_005)
    assert len(arrived) == 1_005
    assert "were settled before the workers were cut off" not in caplog.text


@pytest.mark.long
def test_what_batches_have_done_does_not_come_again_in_real_time(
    spark: SparkSession, tmp_path: Path, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    batches = job_settings(tmp_path, settings.kafka, "batch")
    log.subscribe(subscription("all", receiver.url("/all"), "b"))
    sent: list[str] = []

    def send(count: int) -> None:
        """Each has a batch of its own."""
        for _ in range(count):
            sent.append(log.accept("b"))
            wait_for(receiver, "/all", len(sent))

    with running(spark, batches):
        send(1)
    with running(spark, settings) as job:
        send(1)
        assert job.modes.mode == "realtime", "one batch was done"
    with running(spark, batches):
        send(3)
    with running(spark, settings):
        send(1)
    with running(spark, batches):
        send(3)
    with running(spark, batches) as job:
        assert shifted(job, "realtime")
        send(1)
    assert ids(receiver, "/all") == sent


@pytest.mark.long
def test_a_shift_whose_start_fails_repeats_nothing(
    spark: SparkSession,
    tmp_path: Path,
    settings: JobSettings,
    log: Logs,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = job_settings(tmp_path, settings.kafka, "batch")
    log.subscribe(subscription("all", receiver.url("/all"), "b"))
    sent: list[str] = []

    def send(count: int) -> None:
        for _ in range(count):
            sent.append(log.accept("b"))
            wait_for(receiver, "/all", len(sent))

    with running(spark, settings):
        send(1)
    with running(spark, batches) as job:
        send(3)
        # Kafka is away for a moment.
        start, failures = WorkerUpdates.start, [InfrastructureError("away")]

        def fail_once(feeder: WorkerUpdates) -> None:
            if failures:
                raise failures.pop()
            start(feeder)

        monkeypatch.setattr(WorkerUpdates, "start", fail_once)
        assert shifted(job, "realtime")
        send(1)
        assert not failures
        # The cluster loses its slots, and the job is stopped before the first batch of the new checkpoint.
        assert shifted(job, "batch")
        send(3)
        slots = iter([True, False])
        monkeypatch.setattr(ModeController, "_has_slots", lambda gears: next(slots, False))
        job.modes.shift("realtime")
        commits = tmp_path / "checkpoints" / "push" / "commits"
        wait_until(lambda: not commits.exists() or not any(commits.iterdir()))
    monkeypatch.undo()
    with running(spark, settings):
        send(1)
    assert ids(receiver, "/all") == sent


@pytest.mark.long
def test_a_restart_with_many_large_subscriptions_goes_on_in_real_time(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    """Made and renewed; together their changes are larger than a record."""
    parameters = ('<t:Token xmlns:t="urn:t">' + "x" * 60_000 + "</t:Token>",)
    consumer = EndpointReference(receiver.url("/large"), parameters)
    made = [
        msgspec.structs.replace(subscription(f"s{number}", "", "a", form="raw"), consumer=consumer)
        for number in range(160)
    ]
    log.subscribe(*made)
    until_ms = int(time.time() * 1000) + 3_600_000
    log.subscribe(*[msgspec.structs.replace(each, terminates_ms=until_ms) for each in made])
    for run in (1, 2):
        with running(spark, settings) as job:
            log.accept("a")
            receiver.wait_for(run * len(made), "/large")
            assert job.modes.mode == "realtime"


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


@pytest.mark.long
def test_what_has_a_row_does_not_come_again_however_long_an_older_message_is_under_way(
    spark: SparkSession, settings: JobSettings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovered, "_CLOCKS_MS", 0)  # as if these seconds were minutes
    kafka = dataclasses.replace(settings.kafka, partitions=1)
    push = dataclasses.replace(settings.push, total_timeout_s=120.0)
    retry = dataclasses.replace(settings.retry, batch_wait_s=120.0)
    receiver.behave("/held", "hang")
    with logs(kafka) as log:
        log.subscribe(
            subscription("held", receiver.url("/held"), "b", form="raw"),
            subscription("all", receiver.url("/all"), "b", form="raw"),
        )
        with running(spark, dataclasses.replace(settings, kafka=kafka, push=push, retry=retry)) as job:
            sent = [log.accept("b") for _ in range(20)]
            wait_for(receiver, "/all", len(sent))
            wait_until(lambda: rows_of(kafka, "all") >= len(sent))
            before = ends_of(kafka, PROGRESS_LOG)[0]
            wait_until(lambda: ends_of(kafka, PROGRESS_LOG)[0] >= before + 3)
            receiver.behave("/held", "")
            assert kill_workers()
            sent.append(log.accept("b"))
            wait_for(receiver, "/held", len(sent))
            assert wait_for(receiver, "/all", len(sent)) == sent
            assert job.modes.mode == "realtime"


def rows_of(kafka: KafkaSettings, subscription_id: str) -> int:
    """How many rows a subscription has in the log."""
    rows = [each for record in records_in(kafka, "attempts") for each in decode(record.value or NOTHING)]
    return sum(each.subscription == subscription_id for each in rows)


def ends_of(kafka: KafkaSettings, log: str) -> dict[int, int]:
    with LogScan(kafka, log) as opened:
        return opened.ends()


@pytest.mark.long
def test_kafka_that_is_away_when_a_worker_parks_for_the_first_time_ends_no_worker(
    spark: SparkSession, own_broker: KafkaBroker, tmp_path: Path, receiver: Receiver
) -> None:
    kafka = settings_for(own_broker)
    with logs(kafka) as log, running(spark, job_settings(tmp_path, kafka, "realtime")) as job:
        log.subscribe(subscription("hang", receiver.url("/hang"), "a", form="raw"))
        log.accept("a")
        receiver.wait_for(1, "/hang")
        before = worker_processes(job)
        own_broker.kill()
        time.sleep(8)  # longer than a push may take
        receiver.behave("/hang", "status/202")
        own_broker.start()
        with logs(kafka) as after:
            after.position = log.position
            after.accept("a", again="n2")
        wait_for(receiver, "/hang", 2)
        receiver.wait_for(3, "/hang")  # the one that hung, and both
        assert worker_processes(job) == before
        report = audit(kafka, 0, deep=True, order=True, patience_s=120)
    assert report.balanced, report.problems
    assert report.duplicates == 0


def worker_processes(job: RunningJob) -> set[int]:
    workers = job.modes._realtime.listener._workers
    assert isinstance(workers, WorkersHere)
    return {pid for pid, _ in workers._tasks.values() if started_at(pid)}


@pytest.mark.long
@pytest.mark.parametrize("gear", ["realtime", "batch"])
def test_a_receiver_that_answers_slowly_gets_each_message_once(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings, log: Logs, receiver: Receiver, gear: Mode
) -> None:
    """A push that takes twice `retry.batch_wait_s` is not made a second time, and the others do not wait for it."""
    settings = job_settings(tmp_path, kafka_settings, gear, total_timeout_s=60.0)
    log.subscribe(
        subscription("slow", receiver.url("/slow/4"), "a//.", form="raw"),
        subscription("quick", receiver.url("/quick"), "a//.", form="raw"),
    )
    with running(spark, settings):
        sent = [log.accept("a/x")]
        receiver.wait_for(1, "/slow/4")
        sent += [log.accept("a/x") for _ in range(4)]
        quick = wait_for(receiver, "/quick", len(sent))
        slow_meanwhile = ids(receiver, "/slow/4")
        slow = wait_for(receiver, "/slow/4", len(sent))
        after = log.accept("a/x")
        wait_for(receiver, "/slow/4", len(sent) + 1)
        report = audit(settings.kafka, 0, deep=True, order=True, patience_s=120)

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
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings, log: Logs, receiver: Receiver, gear: Mode
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
        wait_until(lambda: len(receiver.requests) >= before + 2 * len(many) + 1, "that all have it")
        report = audit(settings.kafka, 0, deep=True, order=True, patience_s=120)

    arrived = defaultdict(list)
    for request in receiver.requests:
        arrived[request.path].append(request.headers["arborcast-notification-id"])
    assert arrived.pop("/other") == [warm, sent[2]]
    assert arrived == dict.fromkeys(many, sent[:2])
    if gear == "realtime":  # else it may be in the next batch
        assert passed < len(many)
    assert report.balanced, report.problems
    assert report.duplicates == 0
