"""Pushes, parking and give-ups of a job are limited to the time of its lease (`dispatch.job.lease`).

A job that was suspended for a minute, or disconnected from Kafka, may have been replaced when it continues. Its threads
and workers would push or park overdue messages that the other job repeats. So they first check the time until which the
lease holds: a number in memory that the driver shares with the workers on its host, in a file named in their
environment, at 0.4 us. Workers on other hosts complete their tasks in batches; in real time each has its own lease
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
_POLL_S = 0.02

# One clock for all processes of a host. On Linux it includes suspended time, as the leases of other hosts do.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds on a clock that all processes of this host share."""
    return time.clock_gettime(_CLOCK)


def _inherited() -> memoryview[float] | None:
    file = os.environ.get(FILE, "")
    if not file:
        return None
    try:
        return shared_memory(Path(file)).cast("d")
    except (OSError, ValueError) as error:
        # A newer job has removed it.
        logger.error("this process makes no pushes: the lease file %s cannot be mapped (%s)", file, error)
        return memoryview(bytearray(_BYTES)).cast("d")


_until = _inherited()


class Fence:
    """The driver's side of the lease file. Once it exists, `wait` in this process blocks until `extend` is called."""

    def __init__(self, file: Path) -> None:
        """`file` belongs to this process alone. Files of earlier jobs (same folder, same name before the last -) are
        removed; a remaining worker of such a job has its file mapped already, or may not push."""
        global _until
        for old in file.parent.glob(f"{file.name.rpartition('-')[0]}-*"):
            old.unlink(missing_ok=True)
        self.file = str(file.absolute())
        self._until = _until = new_shared_memory(file, _BYTES).cast("d")

    def extend(self, until: float) -> None:
        """Set the end of the lease, in seconds of `clock`."""
        self._until[0] = until

    def shut(self) -> None:
        """End the lease."""
        self._until[0] = 0.0


@contextmanager
def own() -> Iterator[Callable[[float], None]]:
    """Within the block, `wait` in this process uses a separate lease; the yielded function sets its end."""
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
    """Block until the lease is valid. A job that loses its lease ends its workers, so the wait ends with the process.
    Returns at once in a process outside a job. An exception of `meanwhile` ends the wait."""
    until = _until
    if until is None or clock() < until[0]:
        return
    while clock() >= until[0]:
        meanwhile()
        time.sleep(_POLL_S)
