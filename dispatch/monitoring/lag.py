"""How far a query is behind its log, in records and in seconds. The seconds are worked out here, purely."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

# Looked at every few seconds, this is more than an hour; what is older is thinned out, not forgotten.
_MOST_MARKS = 1_000


@dataclass(frozen=True)
class Lag:
    """What is in the log and not settled yet, and since when the oldest of it has been there."""

    records: int = 0
    seconds: float = 0.0


class LagClock:
    """Remembers where the log's end was at earlier looks: a record beyond it has come later.

    No record need be read for that. The seconds are a lower bound, exact to the time between two looks.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[float, Mapping[int, int]]] = deque()

    def look(self, now: float, ends: Mapping[int, int], settled: Mapping[int, int]) -> Lag:
        """The lag now. `ends`, `settled`: by partition, the offsets of the next to be written and to settle."""
        self._marks.append((now, dict(ends)))
        while len(self._marks) > 1 and not _beyond(self._marks[0][1], settled):
            self._marks.popleft()
        if len(self._marks) > _MOST_MARKS:
            self._marks = deque(mark for number, mark in enumerate(self._marks) if number % 2 == 0)
        records = sum(max(0, end - settled.get(partition, end)) for partition, end in ends.items())
        at, marked = self._marks[0]
        return Lag(records, now - at if records and _beyond(marked, settled) else 0.0)


def _beyond(ends: Mapping[int, int], settled: Mapping[int, int]) -> bool:
    return any(end > settled.get(partition, end) for partition, end in ends.items())
