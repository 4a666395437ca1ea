"""Held lanes: first attempts must not overtake their parked deliveries.

A lane is held until the redelivery's store has read the `parked` log past the last record that holds the lane, and has
no untried delivery of it. Deliveries that wait for a retry hold no lane. The driver has one object, updated by reports
of batches and the redelivery; each worker has one, updated by its own records and the driver's messages. Both compare
offsets in the log.
"""

from __future__ import annotations

import heapq
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping


class HeldLanes:
    """Thread-safe. `acknowledged` returns whether Kafka has acknowledged a record, by the number passed to `sent`."""

    def __init__(self, acknowledged: Callable[[int], bool] = lambda number: True) -> None:
        self._acknowledged = acknowledged
        self._lock = threading.Lock()
        self._untried: set[str] = set()
        # Of an earlier session, until the current one is complete.
        self._untried_before: set[str] = set()
        self._read: dict[int, int] = {}
        self._reach: dict[str, dict[int, int]] = {}  # by lane and partition: the last record that holds the lane
        self._unread: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)  # heaps: by partition, of these lanes
        self._sent: dict[str, int] = {}  # by lane: the number of the last record
        self._all: frozenset[str] | None = None  # the held lanes, until one changes

    def __contains__(self, lane: object) -> bool:
        return lane in self._untried or lane in self._reach or lane in self._untried_before

    # Records that hold a lane

    def sent(self, lane: str, number: int) -> None:
        """A record was sent to the log."""
        self._sent[lane] = number
        self._reach.setdefault(lane, {})  # not yet written

    def written(self, lane: str, partition: int, offset: int) -> None:
        """A record is in the log. In any thread."""
        with self._lock:
            self._written(lane, partition, offset)

    def _written(self, lane: str, partition: int, offset: int) -> None:
        # Several tasks may park for one lane, and report in any order.
        reach = self._reach.setdefault(lane, {})
        if partition not in reach:
            heapq.heappush(self._unread[partition], (offset, lane))
        reach[partition] = max(reach.get(partition, offset), offset)
        self._all = None

    def parked(self, reach: Mapping[str, tuple[int, int]]) -> None:
        """A task of a batch has parked deliveries of these lanes, up to this partition and offset of the log."""
        with self._lock:
            for lane, (partition, offset) in reach.items():
                self._written(lane, partition, offset)

    def take_reach(self) -> dict[str, tuple[int, int]]:
        """Remove and return the partition and offset of the last record of each lane; complete only when all are
        acknowledged."""
        with self._lock:
            reach, self._reach = self._reach, {}
            self._unread.clear()
            self._sent.clear()
            self._all = None
        return {lane: max(each.items()) for lane, each in reach.items() if each}

    # The store's side

    def begin_session(self) -> None:
        """Begin to find untried deliveries again: by another session of the redelivery, in the driver's next messages.
        Earlier findings count until `caught_up`."""
        with self._lock:
            self._untried_before |= self._untried
            self._untried.clear()
            self._all = None

    def found(self, lane: str) -> None:
        """The redelivery has an untried delivery of this lane. Must be called before `applied`."""
        with self._lock:
            self._untried.add(lane)
            self._all = None

    def is_found(self, lane: str) -> bool:
        """Whether this session has an untried delivery of the lane. For its thread."""
        return lane in self._untried

    def applied(self, partition: int, position: int) -> None:
        """The redelivery has applied everything before this offset."""
        with self._lock:
            self._read[partition] = position

    def offsets_read(self) -> int:
        """The sum of the offsets before which everything is applied: it grows as long as the log is read."""
        with self._lock:
            return sum(self._read.values())

    def drained(self, lane: str) -> None:
        """The redelivery has tried all deliveries of this lane."""
        with self._lock:
            self._untried.discard(lane)
            self._untried_before.discard(lane)
            self._all = None

    def caught_up(self) -> None:
        """The session is complete: lanes found only by an earlier one are free."""
        with self._lock:
            self._untried_before.clear()
            self._all = None

    # The same in a worker

    def begin_batch(self, held: Collection[str]) -> None:
        """Set the lanes that the driver holds; it has read and tried all others."""
        self.take_reach()
        with self._lock:
            self._untried, self._untried_before = set(held), set()
            self._all = None

    def change(self, held: Collection[str], freed: Collection[str], read: Mapping[int, int]) -> None:
        """Hold and free these lanes for the driver, which has read the log to these offsets."""
        with self._lock:
            self._untried.difference_update(freed)
            self._untried.update(held)
            self._all = None
            self._read.update(read)
            self._forget_read()

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether the store has read the log to these offsets: deliveries parked by the previous task must not be
        overtaken either."""
        return all(self._read.get(partition, 0) >= end for partition, end in ends.items())

    # Which they are

    def for_workers(self) -> tuple[frozenset[str], dict[int, int]]:
        """The held lanes, and the offsets up to which the redelivery has read: a worker that parked a delivery behind
        them holds its lane itself."""
        with self._lock:
            self._forget_read()
            if self._all is None:
                self._all = frozenset(self._untried.union(self._untried_before, self._reach))
            return self._all, dict(self._read)

    def _forget_read(self) -> None:
        """Remove lanes whose last record the store has read: their state is in the store. Examines no others."""
        for partition, unread in self._unread.items():
            read = self._read.get(partition, 0)
            later: list[tuple[int, str]] = []
            while unread and unread[0][0] < read:
                _, lane = heapq.heappop(unread)
                reach = self._reach[lane]
                if reach[partition] >= read or not self._acknowledged(self._sent.get(lane, 0)):
                    later.append((reach[partition], lane))
                    continue
                del reach[partition]
                if not reach:
                    del self._reach[lane]
                    self._sent.pop(lane, None)
                    self._all = None
            for each in later:
                heapq.heappush(unread, each)
