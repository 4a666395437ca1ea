"""Pushes, parking and give-ups of a job are limited to the time of its lease (`dispatch.job.lease`).

A job that was suspended for a minute, or disconnected from Kafka, may have been replaced when it continues. Its threads
and workers would push or park overdue messages that the other job repeats. So they first check the time until which the
lease holds: a number in memory that the driver shares with the workers on its host, in a file named in their
environment, at 0.4 us. Workers on other hosts complete their tasks in batches; in real time each has a lease of its own
(`dispatch.realtime.worker_lease`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from arborcast.core import liveness
from arborcast.core.files import new_shared_memory, shared_memory

logger = logging.getLogger(__name__)

FILE = "ARBORCAST_LEASE_FILE"
"""The variable that names the file to workers."""

_BYTES = 8
_LOOK_S = 0.02

# Of all processes of a host, and on Linux it goes on while the machine sleeps: the others' patience does so, too.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds, the same for all processes of this host."""
    return time.clock_gettime(_CLOCK)


def _inherited() -> memoryview[float] | None:
    file = os.environ.get(FILE, "")
    if not file:
        return None
    try:
        return shared_memory(Path(file)).cast("d")
    except (OSError, ValueError) as error:
        # Another job has been here since, and has removed it.
        logger.error("no push begins here: %s cannot be mapped (%s)", file, error)
        return memoryview(bytearray(_BYTES)).cast("d")


_until = _inherited()


class Fence:
    """The driver's side. From now on `wait` of this process waits for `extend`."""

    def __init__(self, file: Path) -> None:
        """`file` is of this process alone. Those of earlier jobs, in the same folder with the same name before the last
        -, are removed: a remaining worker has it mapped, or may not push."""
        global _until
        for old in file.parent.glob(f"{file.name.rpartition('-')[0]}-*"):
            old.unlink(missing_ok=True)
        self.file = str(file.absolute())
        self._until = _until = new_shared_memory(file, _BYTES).cast("d")

    def extend(self, until: float) -> None:
        """The lease holds until then (of `clock`)."""
        self._until[0] = until

    def shut(self) -> None:
        """It does not hold any more."""
        self._until[0] = 0.0


@contextmanager
def own() -> Iterator[Callable[[float], None]]:
    """Within the block, `wait` of this process uses a time of its own, set through the yielded function."""
    global _until
    before, _until = _until, memoryview(bytearray(_BYTES)).cast("d")
    mine = _until

    def extend(until: float) -> None:
        mine[0] = until

    try:
        yield extend
    finally:
        _until = before


def wait(meanwhile: Callable[[], None] = liveness.beat) -> None:
    """Returns while the lease holds, and else when it does again. A job that has lost it ends, and its workers with
    it. In a process that is part of no job it returns at once. What `meanwhile` raises ends the wait."""
    until = _until
    if until is None or clock() < until[0]:
        return
    while clock() >= until[0]:
        meanwhile()
        time.sleep(_LOOK_S)
