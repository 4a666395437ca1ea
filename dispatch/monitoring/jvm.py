"""Figures of Spark's virtual machine, through py4j."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from arborcast.core.telemetry.jvm import Collections, JvmFigures

# A reading is a dozen calls of 0.3 ms of CPU on both sides: a page with seven figures uses one reading, and frequent
# requests do not load an idle engine.
_FRESH_S = 5.0


class SparkJvm:
    """Read on request, at most every five seconds."""

    def __init__(self, jvm: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """`jvm` is py4j's view of the JVM."""
        self._jvm = jvm
        self._clock = clock
        self._lock = threading.Lock()
        self._beans: _Beans | None = None
        self._read_at: float | None = None
        self._known: JvmFigures | None = None

    def read(self) -> JvmFigures | None:
        """The figures, five seconds old at most; None if the JVM does not answer."""
        with self._lock:
            now = self._clock()
            if self._read_at is None or now - self._read_at >= _FRESH_S:
                self._read_at = now
                try:
                    self._beans = self._beans or _Beans(self._jvm.java.lang.management.ManagementFactory)
                    self._known = self._beans.read()
                except Exception:
                    self._known = None  # Spark or the JVM is ending; py4j raises various exceptions
            return self._known


class _Beans:
    """The JVM's beans, looked up once: they exist as long as the JVM."""

    def __init__(self, factory: Any) -> None:
        self._memory = factory.getMemoryMXBean()
        self._collectors = {str(one.getName()): one for one in factory.getGarbageCollectorMXBeans()}
        self._classes = factory.getClassLoadingMXBean()
        self._threads = factory.getThreadMXBean()

    def read(self) -> JvmFigures:
        heap = self._memory.getHeapMemoryUsage()
        return JvmFigures(
            heap_used=int(heap.getUsed()),
            heap_committed=int(heap.getCommitted()),
            heap_max=int(heap.getMax()),
            collectors={
                name: Collections(int(one.getCollectionCount()), one.getCollectionTime() / 1000)
                for name, one in self._collectors.items()
            },
            classes=int(self._classes.getLoadedClassCount()),
            threads=int(self._threads.getThreadCount()),
        )
