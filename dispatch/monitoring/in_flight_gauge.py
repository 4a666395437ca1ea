"""The in-flight gauge: numbers in shared memory, one for each task, written by workers and read by the driver.

A worker writes its number once per round over its connections, whatever the number of pushes: some 0.1 us. The driver
sums the numbers for a scrape.

The memory is a mapped file, so the gauge exists only where the workers run on the driver's host. On a cluster the
average over an interval is the seconds of all pushes in it, divided by its length.

The last number is 1 while the job stops, for the tasks of batches, which have no other connection with the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from arborcast.core import liveness
from arborcast.core.files import new_shared_memory, shared_memory

# Tasks of a batch, one for each partition of the log. If two share a number, one of them counts.
_TASKS = 1_024
_BYTES = 4 * (_TASKS + 1)
_NOTHING = memoryview(bytes(4 * _TASKS)).cast("I")


class InFlightGauge:
    """The driver's side."""

    def __init__(self, file: Path) -> None:
        """Creates a new file, with nothing in flight: workers of a killed job may still have the old one mapped."""
        self.file = str(file.absolute())
        self._numbers = new_shared_memory(file, _BYTES).cast("I")

    def total(self) -> int:
        return sum(self._numbers[:_TASKS])

    def clear(self) -> None:
        """After a batch: a killed worker has no pushes in flight any more."""
        self._numbers[:_TASKS] = _NOTHING

    def show_stop(self, stops: bool) -> None:
        """Whether the job stops, for the tasks of batches."""
        self._numbers[_TASKS] = stops


class Gauge:
    """A worker's side."""

    def __init__(self, file: str) -> None:
        """With an empty or missing `file` numbers are dropped."""
        self._numbers: memoryview | None = None
        if file:
            try:
                self._numbers = shared_memory(Path(file)).cast("I")
            except OSError:
                self._numbers = None  # a missing figure must not stop pushes

    @property
    def stops(self) -> bool:
        """Whether the job stops."""
        return self._numbers is not None and self._numbers[_TASKS] > 0

    def of_task(self, task: int) -> Callable[[int], None]:
        """A function that writes a task's number of pushes in flight."""
        numbers, place = self._numbers, task % _TASKS
        if numbers is None:
            return ignore_count

        def write(number: int) -> None:
            numbers[place] = number
            liveness.beat()

        return write


def ignore_count(number: int) -> None:
    """For callers without a gauge."""
