"""What a Java virtual machine uses inside, as metrics under the names that Prometheus' own Java client gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from arborcast.core.telemetry.metrics import Labels, Registry


class Collections(NamedTuple):
    """What one garbage collector has done since the start."""

    runs: int
    seconds: float


@dataclass(frozen=True)
class JvmFigures:
    """One virtual machine now: its heap in bytes, its collectors by their names, its classes, its threads."""

    heap_used: int
    heap_committed: int
    heap_max: int
    collectors: Mapping[str, Collections]
    classes: int
    threads: int


def declare_jvm(metrics: Registry, read: Callable[[], JvmFigures | None]) -> None:
    """Metrics of one virtual machine. `read` is called once for each of them; None shows nothing."""

    def shown(of: Callable[[JvmFigures], Mapping[Labels, float]]) -> Callable[[], Mapping[Labels, float]]:
        return lambda: of(now) if (now := read()) is not None else {}

    heap = ("heap",)
    metrics.gauges(
        "jvm_memory_used_bytes",
        "Heap in use, garbage included.",
        ("area",),
        shown(lambda now: {heap: now.heap_used}),
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
    metrics.gauges(
        "jvm_threads_current",
        "Java threads.",
        (),
        shown(lambda now: {(): now.threads}),
    )
