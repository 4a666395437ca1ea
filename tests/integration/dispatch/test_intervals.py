"""Minimum intervals with the real job: what passes is what would have passed without crashes, shifts and starts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations.audit import audit
from arborcast.dispatch.operations.trace.explain import explain
from arborcast.dispatch.operations.trace.gathering import Gatherer
from arborcast.dispatch.realtime.mode_policy import Mode
from arborcast.topic_model.subscriptions import DeliveryPolicy
from tests.support.dispatch_job import Logs, job_settings, kill_workers, running, subscription
from tests.support.receiver import Receiver
from tests.support.steady_load import TopicsLoad
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# Longer than the time between two messages of a topic on a machine that is busy.
EACH_MS, TOGETHER_MS = 400, 1_000


def some_more(receiver: Receiver, path: str, count: int = 15) -> None:
    receiver.wait_for(len(receiver.received(path)) + count, path)


@pytest.mark.parametrize(
    ("gear", "other"), [pytest.param("realtime", "batch", marks=pytest.mark.long), ("batch", "realtime")]
)
def test_intervals_do_not_depend_on_crashes_changes_of_mode_and_starts(
    spark: SparkSession,
    tmp_path: Path,
    kafka_settings: KafkaSettings,
    log: Logs,
    receiver: Receiver,
    gear: Mode,
    other: Mode,
) -> None:
    settings = job_settings(tmp_path, kafka_settings, gear)
    each = DeliveryPolicy(interval_ms=EACH_MS)
    together = DeliveryPolicy(interval_ms=TOGETHER_MS, interval_per="subscription")
    log.subscribe(
        subscription("all", receiver.url("/all"), "a//.", form="raw"),
        subscription("each", receiver.url("/each"), "a//.", form="raw", policy=each),
        subscription("together", receiver.url("/together"), "a//.", form="raw", policy=together),
        subscription("failing", receiver.url("/status/503"), "a//.", form="raw", policy=each),
    )
    load = TopicsLoad(log)
    with load.running():
        with running(spark, settings) as job:
            some_more(receiver, "/each")
            assert kill_workers()
            some_more(receiver, "/each")
            if gear == "realtime":
                for wanted in (other, gear):
                    job.modes.shift(wanted)
                    some_more(receiver, "/each")
                    assert kill_workers()
                    some_more(receiver, "/each")
        with running(spark, settings):
            some_more(receiver, "/each")
    passing = load.passing(EACH_MS)
    assert len(passing) < len(load.sent)
    with running(spark, settings):
        receiver.wait_for(len(load.sent), "/all")
        wait_until(lambda: passing <= set(receiver.names("/each")), lambda: passing - set(receiver.names("/each")))
        report = audit(settings.kafka, 0, deep=True, patience_s=120)
    assert report.balanced, report.problems
    assert set(receiver.names("/each")) == passing
    assert set(receiver.names("/together")) == load.passing(TOGETHER_MS, kafka_settings.partitions)
    assert report.subscriptions["failing"].matches == len(passing)
    repeated = sum(count - 1 for count in Counter(receiver.names("/all")).values())
    assert repeated < 0.2 * len(load.sent), "what was under way, or had just ended"

    names = [name for name, topic, _ in load.sent if topic == "a/x"]
    left_out = next(name for name in names if name not in passing)
    instead = [name for name in names[: names.index(left_out)] if name in passing][-1]
    gatherer = Gatherer(settings.kafka, settings.tables, settings.home)
    (story,) = explain(gatherer.gather(left_out, "each"), "each").deliveries
    assert story.why.endswith(f"and {instead} was delivered instead")
