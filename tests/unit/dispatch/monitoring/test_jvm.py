from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from arborcast.core.telemetry.jvm import Collections, declare_jvm
from arborcast.core.telemetry.metrics import Registry, merged
from arborcast.dispatch.monitoring.jvm import SparkJvm
from arborcast.engine.monitoring.samples import JvmSample, Scrape, sample_of


def machine() -> Any:
    """A JVM as py4j shows it; it counts how often it was asked for its heap."""
    heap = SimpleNamespace(getUsed=lambda: 50, getCommitted=lambda: 80, getMax=lambda: 100)
    young = SimpleNamespace(getName=lambda: "Copy", getCollectionCount=lambda: 7, getCollectionTime=lambda: 250)
    full = SimpleNamespace(getName=lambda: "Mark", getCollectionCount=lambda: 1, getCollectionTime=lambda: 750)
    factory = Mock()
    factory.getMemoryMXBean.return_value.getHeapMemoryUsage.return_value = heap
    factory.getGarbageCollectorMXBeans.return_value = [young, full]
    factory.getClassLoadingMXBean.return_value.getLoadedClassCount.return_value = 20_000
    factory.getThreadMXBean.return_value.getThreadCount.return_value = 90
    return Mock(java=Mock(lang=Mock(management=Mock(ManagementFactory=factory))))


def asked(jvm: Any) -> int:
    return int(jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage.call_count)


def test_it_is_asked_every_five_seconds_at_most() -> None:
    jvm, now = machine(), [0.0]
    spark = SparkJvm(jvm, lambda: now[0])
    first = spark.read()
    assert first is not None
    assert (first.heap_used, first.collectors["Copy"], first.threads) == (50, Collections(7, 0.25), 90)
    now[0] = 4.9
    assert spark.read() is first
    assert asked(jvm) == 1
    now[0] = 5.0
    spark.read()
    assert asked(jvm) == 2


def test_one_that_is_about_to_end_shows_nothing_and_is_not_asked_again_at_once() -> None:
    jvm = machine()
    jvm.java.lang.management.ManagementFactory.getMemoryMXBean.side_effect = RuntimeError("the gateway is closed")
    spark = SparkJvm(jvm, lambda: 0.0)
    registry = Registry()
    declare_jvm(registry, spark.read)
    assert Scrape.of(registry.text()).names == set()
    assert jvm.java.lang.management.ManagementFactory.getMemoryMXBean.call_count == 1


def test_its_metrics_are_in_the_history() -> None:
    registry = Registry()
    declare_jvm(registry, SparkJvm(machine(), lambda: 0.0).read)
    sample = sample_of(1.0, Scrape.of(merged({"dispatch": registry.text()}, "component")))
    assert sample.jvms == {"dispatch": JvmSample(50, 80, 100, 8, 1.0, 20_000, 90)}
