"""Changes of mode, crashes and starts under load: nothing is lost or reordered, and minimum intervals are kept."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import make_producer
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot import stream
from arborcast.dispatch.job.heartbeat import started_at
from arborcast.dispatch.operations.audit import audit
from arborcast.dispatch.operations.trace.explain import explain
from arborcast.dispatch.operations.trace.gathering import Gatherer
from arborcast.dispatch.realtime.mode_policy import Mode
from arborcast.dispatch.realtime.workers import LocalWorkers
from arborcast.dispatch.settings import JobSettings
from arborcast.dispatch.tables import NOTIFICATIONS
from arborcast.topic_model.records import notifications
from arborcast.topic_model.subscriptions import DeliveryPolicy
from tests.support import make
from tests.support.broker import add_partitions
from tests.support.dispatch_job import (
    Logs,
    RunningJob,
    job_settings,
    kill_workers,
    running,
    subscription,
    wait_for_rows,
)
from tests.support.held_port import HeldPort
from tests.support.receiver import NOTIFICATION_ID, Received, Receiver
from tests.support.steady_load import TopicsLoad
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def settings(tmp_path: Path, kafka_settings: KafkaSettings) -> JobSettings:
    """Settings with which only the test changes mode."""
    return job_settings(tmp_path, kafka_settings, "realtime")


TOPICS = ("a/x", "a/y", "b")


def ids(receiver: Receiver, path: str) -> list[str]:
    return [each for each in receiver.names(path) if each.startswith("n")]  # without messages of the engine


def wait_for(receiver: Receiver, path: str, wanted: int) -> list[str]:
    wait_until(lambda: len(set(ids(receiver, path))) >= wanted, f"{wanted} at {path}")
    return ids(receiver, path)


def some_more(receiver: Receiver, path: str, count: int) -> None:
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


def test_a_mode_change_under_load_keeps_all_once_and_in_order(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver
) -> None:
    subscribe(log, receiver)
    load = TopicsLoad(log, TOPICS)
    to: list[Mode] = ["batch", "realtime"]
    with running(spark, settings) as job:
        with load.running():
            some_more(receiver, "/all", 20)
            assert job.modes.mode == "realtime"
            for mode in to:
                job.modes.shift(mode)
                some_more(receiver, "/all", 20)
                assert job.modes.mode == mode
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
        assert [each for each in parked if each in set(mine)] == mine, "in order, parked by either mode"
    assert report.balanced, report.problems
    assert report.duplicates == 0


def test_a_dead_worker_is_replaced_without_further_messages(
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


def test_an_added_partition_is_read(
    spark: SparkSession, settings: JobSettings, log: Logs, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark looks for new partitions at the end of a batch, which in real time is days away."""
    monkeypatch.setattr("arborcast.core.eventlog.client._METADATA_AGE_ONE_BROKER_MS", 500)
    log.subscribe(subscription("all", receiver.url("/all"), "b"))
    with running(spark, settings):
        log.accept("b")
        wait_for(receiver, "/all", 1)
        add_partitions(settings.kafka, "notifications", 3)
        with closing(make_producer(settings.kafka)) as producer:
            key, value = notifications.encode(make.notification("n-added", "b", accepted_ms=int(time.time() * 1000)))
            producer.send(settings.kafka.topic("notifications"), key=key, value=value, partition=2)
            producer.flush()
        arrived = wait_for(receiver, "/all", 2)
        wait_for_rows(settings, NOTIFICATIONS, lambda rows: "n-added" in {row["notification"] for row in rows})
    assert arrived[1:] == ["n-added"]


def worker_processes(job: RunningJob) -> set[int]:
    workers = job.modes._realtime.listener._workers
    assert isinstance(workers, LocalWorkers)
    return {pid for pid, _ in list(workers._tasks.values()) if started_at(pid)}


COUNT = 40
# Limits of deliveries, so that the backlog takes eight of two subscriptions.
A_ROUND = 10


def test_a_change_of_a_subscription_applies_in_the_next_round(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings, log: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rounds are no longer with fast pushes.
    for name, value in (("_FIRST", A_ROUND), ("_FEWEST", A_ROUND), ("_MOST_GROWTH", 1.0)):
        monkeypatch.setattr(stream, name, value)
    arrived: dict[str, list[str]] = {"/stays": [], "/ends": []}

    def end(request: Received) -> None:
        """End it before the answer to the first push, without which no round can end."""
        if request.path == "/ends" and not arrived["/ends"]:
            log.end("ends")
        arrived[request.path] += request.headers[NOTIFICATION_ID].split(",")

    with Receiver(on_received=end) as receiver:
        log.subscribe(*(subscription(name, receiver.url(f"/{name}"), "a/b") for name in ("stays", "ends")))
        sent = log.notify_many(["a/b"] * COUNT)
        with running(spark, job_settings(tmp_path, kafka_settings, "batch")):
            wait_until(lambda: sent[-1] in arrived["/stays"], arrived)

    assert arrived["/stays"] == sent, "each once and in order, through all rounds"
    assert arrived["/ends"] == sent[: len(arrived["/ends"])]
    assert 1 <= len(arrived["/ends"]) <= A_ROUND


def test_a_start_without_kafka_fails_with_a_reason(spark: SparkSession, tmp_path: Path) -> None:
    held = HeldPort()
    nowhere = KafkaSettings(bootstrap_servers=f"127.0.0.1:{held.number}", request_timeout_s=1.0)

    with pytest.raises(InfrastructureError, match="Kafka"), running(spark, job_settings(tmp_path, nowhere)):
        pytest.fail("the job reported ready")


# Longer than the time between two messages of a topic on a busy machine.
EACH_MS, TOGETHER_MS = 400, 1_000


@pytest.mark.parametrize(
    ("mode", "other"), [pytest.param("realtime", "batch", marks=pytest.mark.long), ("batch", "realtime")]
)
def test_intervals_do_not_depend_on_crashes_changes_of_mode_and_starts(
    spark: SparkSession,
    tmp_path: Path,
    kafka_settings: KafkaSettings,
    log: Logs,
    receiver: Receiver,
    mode: Mode,
    other: Mode,
) -> None:
    settings = job_settings(tmp_path, kafka_settings, mode)
    each = DeliveryPolicy(interval_ms=EACH_MS)
    together = DeliveryPolicy(interval_ms=TOGETHER_MS, interval_per="subscription")
    log.subscribe(
        subscription("all", receiver.url("/all"), "a//.", form="raw"),
        subscription("each", receiver.url("/each"), "a//.", form="raw", policy=each),
        subscription("together", receiver.url("/together"), "a//.", form="raw", policy=together),
        subscription("failing", receiver.url("/status/503"), "a//.", form="raw", policy=each),
    )
    load = TopicsLoad(log)
    with ExitStack() as loading:
        loading.enter_context(load.running())
        with running(spark, settings) as job:
            some_more(receiver, "/each", 15)
            assert kill_workers()
            some_more(receiver, "/each", 15)
            if mode == "realtime":
                for wanted in (other, mode):
                    job.modes.shift(wanted)
                    some_more(receiver, "/each", 15)
                    assert kill_workers()
                    some_more(receiver, "/each", 15)
        with running(spark, settings):
            some_more(receiver, "/each", 15)
            loading.close()
            passing = load.passing(EACH_MS)
            assert len(passing) < len(load.sent)
            receiver.wait_for(len(load.sent), "/all")
            wait_until(lambda: passing <= set(receiver.names("/each")), lambda: passing - set(receiver.names("/each")))
            report = audit(settings.kafka, 0, deep=True, patience_s=120)
    assert report.balanced, report.problems
    assert set(receiver.names("/each")) == passing
    assert set(receiver.names("/together")) == load.passing(TOGETHER_MS, kafka_settings.partitions)
    assert report.subscriptions["failing"].matches == len(passing)
    repeated = sum(count - 1 for count in Counter(receiver.names("/all")).values())
    assert repeated < 0.2 * len(load.sent), "only pushes in flight or just ended are repeated"

    names = [name for name, topic, _ in load.sent if topic == "a/x"]
    left_out = next(name for name in names if name not in passing)
    instead = [name for name in names[: names.index(left_out)] if name in passing][-1]
    gatherer = Gatherer(settings.kafka, settings.tables, settings.home)
    (explanation,) = explain(gatherer.gather(left_out, "each"), "each").deliveries
    assert explanation.why.endswith(f"and {instead} was delivered instead")
