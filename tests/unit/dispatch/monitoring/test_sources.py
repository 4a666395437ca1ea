"""Further sources of the job's figures: its JVM, lag, Spark's progress, pushes of other processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.core.telemetry.jvm import declare_jvm
from arborcast.core.telemetry.metrics import Registry, merged
from arborcast.dispatch.monitoring import sources
from arborcast.dispatch.monitoring.in_flight_gauge import Gauge, InFlightGauge, ignore_count
from arborcast.dispatch.monitoring.jvm import SparkJvm
from arborcast.dispatch.monitoring.sources import (
    FollowerFigures,
    Lag,
    LagClock,
    QueryProgress,
    Watched,
    progress_of,
    read_progress,
)
from arborcast.engine.monitoring.samples import JvmSample, Scrape, sample_of


def jvm_factory() -> Any:
    """The ManagementFactory of a JVM, as py4j presents it."""
    heap = Mock(**{"getUsed.return_value": 50, "getCommitted.return_value": 80, "getMax.return_value": 100})
    factory = Mock()
    factory.getMemoryMXBean.return_value.getHeapMemoryUsage.return_value = heap
    factory.getGarbageCollectorMXBeans.return_value = [
        Mock(**{f"{method}.return_value": value for method, value in each.items()})
        for each in (
            {"getName": "Copy", "getCollectionCount": 7, "getCollectionTime": 250},
            {"getName": "Mark", "getCollectionCount": 1, "getCollectionTime": 750},
        )
    ]
    factory.getClassLoadingMXBean.return_value.getLoadedClassCount.return_value = 20_000
    factory.getThreadMXBean.return_value.getThreadCount.return_value = 90
    return factory


def spark_jvm(factory: Any, now: list[float]) -> SparkJvm:
    return SparkJvm(Mock(java=Mock(lang=Mock(management=Mock(ManagementFactory=factory)))), lambda: now[0])


def test_the_jvm_is_read_every_five_seconds_at_most() -> None:
    factory, now = jvm_factory(), [0.0]
    spark, registry = spark_jvm(factory, now), Registry()
    first = spark.read()
    for now[0], reads in ((4.9, 1), (5.0, 2)):
        assert (spark.read() is first) == (reads == 1)
        assert factory.getMemoryMXBean().getHeapMemoryUsage.call_count == reads
    declare_jvm(registry, spark.read)
    sample = sample_of(1.0, Scrape.of(merged({"dispatch": registry.text()}, "component")))
    assert sample.jvms == {"dispatch": JvmSample(50, 80, 100, 8, 1.0, 20_000, 90)}


def test_a_closed_jvm_has_no_figures() -> None:
    factory, registry = jvm_factory(), Registry()
    factory.getMemoryMXBean.side_effect = RuntimeError("the gateway is closed")
    declare_jvm(registry, spark_jvm(factory, [0.0]).read)
    assert Scrape.of(registry.text()).names == set()
    assert factory.getMemoryMXBean.call_count == 1


def test_seconds_of_lag_count_from_its_first_measurement() -> None:
    clock = LagClock()
    clock.measure(100, {0: 5}, {0: 5})
    # At 130 records 5 to 7 are settled: record 8 was appended between the measurements at 110 and 120.
    for now, end, position, lag in ((110, 8, 5, Lag(3, 0)), (120, 9, 5, Lag(4, 10)), (130, 9, 8, Lag(1, 10))):
        assert clock.measure(now, {0: end}, {0: position}) == lag
    assert clock.measure(140, {0: 9}, {0: 9}) == Lag(0, 0)
    assert clock.measure(150, {0: 10}, {0: 9}) == Lag(1, 0)

    clock = LagClock()
    clock.measure(100, {0: 1_000}, {0: 990})
    for now in (5_000, 5_010):
        assert clock.measure(now, {0: 6}, {0: 5}) == Lag(1, now - 5_000), "the log was created again"

    clock = LagClock()
    for second in range(3_000):
        lag = clock.measure(second, {0: second + 1}, {0: 0})
    assert lag == Lag(3_000, 2_999)
    assert len(clock._marks) <= 1_001, "memory is bounded"


def test_a_follower_without_a_position_lags_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that cannot be read since the start: otherwise nothing has a lag, and no alert fires."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sources, "LogConsumer", Mock(return_value=Mock(**{"ends.return_value": {0: 7}})))
    progress: list[QueryProgress | None] = [None]
    followers = FollowerFigures(KafkaSettings(), {"record": Watched("attempts", lambda: progress[0])})
    now[0] += 400
    assert (followers.lag(), followers.progress()) == ({"record": Lag(0, 400)}, {})
    progress[0] = QueryProgress(settled={0: 5})
    now[0] += 10
    assert followers.lag() == {"record": Lag(2, 0)}


def test_scrapes_do_not_wait_for_kafka_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, log = [100.0], Mock(**{"ends.side_effect": InfrastructureError("no answer")})
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sources, "LogConsumer", Mock(return_value=log))
    watched = {name: Watched(name, lambda: QueryProgress(settled={0: 5})) for name in ("attempts", "notifications")}
    followers = FollowerFigures(KafkaSettings(), watched)
    asked = []
    for now[0] in (100.0, 105.0, 110.0, 116.0, 120.0):
        assert followers.lag() == {}
        asked.append(log.ends.call_count)
    assert asked == [1, 1, 1, 2, 2]
    log.ends.side_effect = lambda _timeout: {0: 7}
    now[0] = 140.0
    assert followers.lag().keys() == watched.keys()


def test_the_progress_of_a_query() -> None:
    text, settled = json.dumps({"numInputRows": 12, "durationMs": {"addBatch": 250, "queryPlanning": 4}}), {0: 5, 1: 9}
    assert read_progress(text, settled) == QueryProgress(12, settled, {"addBatch": 0.25, "queryPlanning": 0.004})
    for query in (None, Mock(**{"_jsq.lastProgress.side_effect": RuntimeError("the gateway is closed")})):
        assert progress_of(query, settled) == QueryProgress(0, settled)


def test_pushes_in_flight_in_another_process(tmp_path: Path) -> None:
    driver = InFlightGauge(tmp_path / "run" / "pushes")
    Gauge(driver.file).of_task(3)(5)
    worker = (
        "import sys, os; from arborcast.dispatch.monitoring.in_flight_gauge import Gauge;"
        " Gauge(sys.argv[1]).of_task(1_000_004)(70_000); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", worker, driver.file], check=False)
    assert driver.total() == 70_005

    Gauge(driver.file).of_task(3)(0)
    assert driver.total() == 70_000
    # A killed worker does not decrement its count: the end of the batch clears it.
    driver.clear()
    assert driver.total() == 0


def test_workers_of_a_killed_job_do_not_count_for_its_successor(tmp_path: Path) -> None:
    file = tmp_path / "pushes"
    orphan = Gauge(InFlightGauge(file).file)
    successor = InFlightGauge(file)
    orphan.of_task(0)(9)
    assert successor.total() == 0


def test_a_worker_without_a_gauge_does_not_count(tmp_path: Path) -> None:
    assert Gauge("").of_task(0) is ignore_count
    assert Gauge(str(tmp_path / "none")).of_task(0) is ignore_count
