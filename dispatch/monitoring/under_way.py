"""The in-flight gauge: numbers in shared memory, one for each task, that workers write and the driver reads.

A worker writes its number once per round over its connections, however many pushes that round ends: some 0.1 us. The
driver sums them for a scrape.

The memory is a mapped file, so the gauge exists only where the workers run on the driver's host. On a cluster the
average over an interval is the seconds of all pushes in it, divided by its length.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from arborcast.core import liveness
from arborcast.core.files import new_shared_memory, shared_memory

# Tasks of a batch, one for each partition of the log. Of two that share a number one counts.
_TASKS = 1_024
_BYTES = 4 * _TASKS
_NOTHING = memoryview(bytes(_BYTES)).cast("I")


class UnderWay:
    """The driver's side."""

    def __init__(self, file: Path) -> None:
        """Creates a new file, with nothing in flight: workers of a killed job may still have the old one mapped."""
        self.file = str(file.absolute())
        self._numbers = new_shared_memory(file, _BYTES).cast("I")

    def total(self) -> int:
        return sum(self._numbers)

    def clear(self) -> None:
        """After a batch: what a worker that was killed had under way is so no more."""
        self._numbers[:] = _NOTHING


class Gauge:
    """A worker's side."""

    def __init__(self, file: str) -> None:
        """An empty `file`, or a missing one: numbers are dropped."""
        self._numbers: memoryview | None = None
        if file:
            try:
                self._numbers = shared_memory(Path(file)).cast("I")
            except OSError:
                self._numbers = None  # a figure is no reason not to push

    def of_task(self, task: int) -> Callable[[int], None]:
        """A function that writes a task's number of pushes in flight."""
        numbers, place = self._numbers, task % _TASKS
        if numbers is None:
            return ignore_count

        def write(under_way: int) -> None:
            numbers[place] = under_way
            liveness.beat()

        return write


def ignore_count(under_way: int) -> None:
    """For a place where the count is not shown."""
