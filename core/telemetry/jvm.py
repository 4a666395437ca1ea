"""Memory, garbage collection and threads of a Java virtual machine, as metrics with the names of Prometheus' Java
client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from arborcast.core.telemetry.metrics import Labels, Registry


class Collections(NamedTuple):
    """Totals of one garbage collector since the start."""

    runs: int
    seconds: float


@dataclass(frozen=True)
class JvmFigures:
    """Current figures of one virtual machine: heap in bytes, collectors by name, loaded classes, threads."""

    heap_used: int
    heap_committed: int
    heap_max: int
    collectors: Mapping[str, Collections]
    classes: int
    threads: int


def declare_jvm(metrics: Registry, read: Callable[[], JvmFigures | None]) -> None:
    """Declare the metrics of one virtual machine. `read` is called once for each; with None no samples are exported."""

    def shown(of: Callable[[JvmFigures], Mapping[Labels, float]]) -> Callable[[], Mapping[Labels, float]]:
        return lambda: of(now) if (now := read()) is not None else {}

    heap = ("heap",)
    metrics.gauges(
        "jvm_memory_used_bytes", "Heap in use, garbage included.", ("area",), shown(lambda now: {heap: now.heap_used})
    )
    metrics.gauges(
        "jvm_memory_committed_bytes",
        "Heap obtained from the operating system.",
        ("area",),
        shown(lambda now: {heap: now.heap_committed}),
    )
    metrics.gauges("jvm_memory_max_bytes", "Maximum heap.", ("area",), shown(lambda now: {heap: now.heap_max}))
    metrics.counts(
        "jvm_gc_collection_seconds_count",
        "Garbage collections, by collector.",
        ("gc",),
        shown(lambda now: {(name,): done.runs for name, done in now.collectors.items()}),
    )
    metrics.counts(
        "jvm_gc_collection_seconds_sum",
        "Their duration.",
        ("gc",),
        shown(lambda now: {(name,): done.seconds for name, done in now.collectors.items()}),
    )
    metrics.gauges("jvm_classes_currently_loaded", "Loaded classes.", (), shown(lambda now: {(): now.classes}))
    metrics.gauges("jvm_threads_current", "Java threads.", (), shown(lambda now: {(): now.threads}))
