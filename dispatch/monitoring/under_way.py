"""How many pushes the workers have under way: numbers in memory that they share with the driver, one for each task.

A worker writes its number once per round over its connections, however many pushes that round ends: some 0.1 us. The
driver adds the numbers up when somebody asks. The memory is a file that all have mapped, so it is there only where the
workers run on the driver's host; of a cluster nobody knows the number of this moment, but its average over any time is
the seconds of all pushes in it, divided by its length.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from arborcast.core import liveness
from arborcast.core.files import new_shared_memory, shared_memory

# Tasks of a batch, one for each partition of the log. Of two that share a number one is shown.
_TASKS = 1_024
_BYTES = 4 * _TASKS
_NOTHING = memoryview(bytes(_BYTES)).cast("I")


class UnderWay:
    """The driver's side."""

    def __init__(self, file: Path) -> None:
        """Makes the file anew, with nothing under way: workers of a job that was killed may have the last one still."""
        self.file = str(file.absolute())
        self._numbers = new_shared_memory(file, _BYTES).cast("I")

    def total(self) -> int:
        return sum(self._numbers)

    def clear(self) -> None:
        """After a batch: what a worker that was killed had under way is so no more."""
        self._numbers[:] = _NOTHING


class Shown:
    """A worker's side."""

    def __init__(self, file: str) -> None:
        """`file` empty, or one that is not there: nobody is told."""
        self._numbers: memoryview | None = None
        if file:
            try:
                self._numbers = shared_memory(Path(file)).cast("I")
            except OSError:
                self._numbers = None  # a figure is no reason not to push

    def teller(self, task: int) -> Callable[[int], None]:
        """What is to be told how many pushes a task has under way."""
        numbers, place = self._numbers, task % _TASKS
        if numbers is None:
            return ignore_count

        def tell(under_way: int) -> None:
            numbers[place] = under_way
            liveness.beat()

        return tell


def ignore_count(under_way: int) -> None:
    """For a place where the count is not shown."""
