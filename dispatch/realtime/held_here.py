"""Which lanes a task must not push past."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from arborcast.dispatch.realtime.messages import Diverted


class HeldHere:
    """The lanes that this task must not push past: those of which the driver says so, and those in which it has parked
    something itself that the driver has not said to be tried."""

    def __init__(self, parked: Container[str], forget: Callable[[Mapping[int, int]], None]) -> None:
        """`parked` has the lanes in which something was parked here, until `forget` is told that it was read."""
        self._parked = parked
        self._forget = forget
        self._told: set[str] = set()
        self._read: dict[int, int] = {}

    def __contains__(self, lane: object) -> bool:
        return lane in self._told or lane in self._parked

    def begin(self) -> None:
        """The driver begins anew."""
        self._told.clear()

    def hear(self, diverted: Diverted) -> None:
        """What it says of lanes; it was true when it had read the log of parked deliveries so far."""
        self._told -= diverted.freed
        self._told |= diverted.held
        self._read.update(diverted.read)
        self._forget(diverted.read)

    def knows(self, parked: Mapping[int, int]) -> bool:
        """Whether the driver had read the log of parked deliveries to these offsets when it spoke: what the task before
        this one has parked is not to be overtaken either."""
        return all(self._read.get(partition, 0) >= end for partition, end in parked.items())
