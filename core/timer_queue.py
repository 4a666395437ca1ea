"""A priority queue of names by time, one time per name. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# Replaced entries stay in the heap until their time; above this number of them the heap is rebuilt.
_STALE = 1_000


class TimerQueue(Generic[K]):
    """Names and times, due in the order of the times, then of `set`."""

    def __init__(self) -> None:
        self._times: dict[K, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._ties = itertools.count()

    def set(self, name: K, at_ms: int) -> None:
        """Set the time of a name; it replaces an earlier one."""
        entry = (at_ms, next(self._ties))
        self._times[name] = entry
        heapq.heappush(self._heap, (*entry, name))
        if len(self._heap) > 2 * len(self._times) + _STALE:
            self._heap = [(*kept, each) for each, kept in self._times.items()]
            heapq.heapify(self._heap)

    def set_by(self, name: K, at_ms: int) -> None:
        """Set the time of a name unless it has an earlier one."""
        known = self._times.get(name)
        if known is None or known[0] > at_ms:
            self.set(name, at_ms)

    def cancel(self, name: K) -> None:
        self._times.pop(name, None)

    def next_ms(self) -> int | None:
        """The earliest time; None if the queue is empty."""
        while self._heap:
            at_ms, tie, name = self._heap[0]
            if self._times.get(name) == (at_ms, tie):
                return at_ms
            heapq.heappop(self._heap)
        return None

    def pop(self, now_ms: int) -> K | None:
        """Remove and return the first due name; None if none is due."""
        at_ms = self.next_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        name = heapq.heappop(self._heap)[2]
        del self._times[name]
        return name

    def overdue(self, now_ms: int, most: int = 10_000) -> int:
        """The number of due names, counted up to about `most`."""
        found, indexes = 0, [0]
        while indexes and found < most:
            index = indexes.pop()
            if index < len(self._heap) and self._heap[index][0] <= now_ms:
                at_ms, tie, name = self._heap[index]
                found += self._times.get(name) == (at_ms, tie)
                # The children of an entry are not earlier than it.
                indexes += (2 * index + 1, 2 * index + 2)
        return found
