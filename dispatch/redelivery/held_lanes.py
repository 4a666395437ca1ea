"""Which lanes have something parked that was never tried, so that no batch pushes past it. Shared by threads.

A lane is held as soon as a batch reports that it has parked something of it. It is so until the redelivery has read the
`parked` log as far as the last batch reached for this lane, and has made the first attempt of all it found. That is
decided at the beginning of a batch, when no other one runs, so nothing can be parked in between and be overtaken. What
waits to be tried again holds nothing: it has had its turn.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.accumulators import AccumulatorParam

from arborcast.dispatch.delivery.health import Sign


@dataclass
class PartitionReport:
    """`reach` is how far each lane with something untried in it reaches into the `parked` log (partition, offset);
    `signs` what was seen of endpoints, where the driver does not take it for granted; `gone` the subscriptions whose
    receivers have ended them, `costly` those whose conditions cost more than they may. `repeated` says that a worker
    died before this one, and its report with it. `notifications` were matched, and came to so many `deliveries`,
    without those that were `thinned` for a minimum interval; `passed` is what counts for these next, by partition. By
    subscription and topic, where there is a deadline, `matched` is when the last one was accepted. `rest` says that
    there are more, for the next round: those behind the offsets `done`, by partition."""

    reach: dict[str, tuple[int, int]] = field(default_factory=dict)
    signs: list[tuple[str, Sign]] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    costly: set[str] = field(default_factory=set)
    repeated: bool = False
    notifications: int = 0
    deliveries: int = 0
    thinned: int = 0
    passed: dict[int, dict[tuple[str, str], int]] = field(default_factory=dict)
    matched: dict[tuple[str, str], int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    rest: bool = False


class Reports(AccumulatorParam[list[PartitionReport]]):
    """An accumulator that collects. Reports of a task that failed do not arrive. It travels together with the task's
    end, so it costs a batch nothing of its own.
    """

    def zero(self, value: list[PartitionReport]) -> list[PartitionReport]:
        return []

    def addInPlace(self, value1: list[PartitionReport], value2: Sequence[PartitionReport]) -> list[PartitionReport]:
        value1.extend(value2)
        return value1


class HeldLanes:
    """Brings together what batches have parked and what the redelivery has finished. Nothing else knows which lanes are
    held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reach: dict[tuple[str, int], int] = {}
        self._found: set[str] = set()
        # Of an earlier session of the redelivery, until the present one has read the log to its end.
        self._found_before: set[str] = set()
        self._applied: dict[int, int] = {}

    def parked(self, reach: Mapping[str, tuple[int, int]]) -> None:
        """Some task of a batch has parked deliveries of these lanes, up to this partition and offset of the log."""
        with self._lock:
            for lane, (partition, offset) in reach.items():
                # Several tasks may have parked for one lane, and report in any order.
                self._reach[lane, partition] = max(self._reach.get((lane, partition), offset), offset)

    def begin_session(self) -> None:
        """A redelivery begins that knows nothing of what an earlier one has found."""
        with self._lock:
            self._found_before |= self._found
            self._found.clear()

    def found(self, lane: str) -> None:
        """The redelivery has an untried delivery of this lane. Must be called before `applied`."""
        with self._lock:
            self._found.add(lane)

    def is_found(self, lane: str) -> bool:
        """Whether this session of the redelivery has an untried delivery of the lane. To be asked by its thread."""
        return lane in self._found

    def applied(self, partition: int, position: int) -> None:
        """The redelivery knows all that is before this offset."""
        with self._lock:
            self._applied[partition] = position

    def drained(self, lane: str) -> None:
        """The redelivery has tried all that it knew of this lane."""
        with self._lock:
            self._found.discard(lane)
            self._found_before.discard(lane)

    def caught_up(self) -> None:
        """The redelivery has read the log to its end: what only an earlier session had found is finished."""
        with self._lock:
            self._found_before.clear()

    def for_batch(self) -> frozenset[str]:
        """The lanes that are held. To be asked between batches."""
        with self._lock:
            self._forget_applied()
            return self._held()

    def for_workers(self) -> tuple[frozenset[str], dict[int, int]]:
        """The lanes that are held, as far as the redelivery knows, and how far it has read the `parked` log then: who
        has parked something behind that holds its lane by itself."""
        with self._lock:
            self._forget_applied()
            return self._held(), dict(self._applied)

    def count(self) -> int:
        """How many lanes are held, as far as is known now."""
        with self._lock:
            return len(self._held())

    def _forget_applied(self) -> None:
        for (lane, partition), offset in list(self._reach.items()):
            if self._applied.get(partition, 0) > offset:
                # From here on the redelivery's own knowledge is complete.
                del self._reach[lane, partition]

    def _held(self) -> frozenset[str]:
        return frozenset(self._found.union(self._found_before, (lane for lane, _ in self._reach)))
