"""Waits for a wall-clock time that survive a clock that is set back.

The due time is stored together with the time of the decision. A decision in the future means that the clock was set
back since, or that the clock of another machine is wrong. The elapsed part of the wait is then unknown, so the wait
counts as over. So a wait never lasts longer than decided, counted from the change of the clock, and a restart needs
only these two times.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# Maximum difference between the times that two hosts write into a log.
CLOCKS_APART_MS = 60_000

# Differences of clocks, and corrections, up to this are ignored.
TOLERANCE_MS = 5_000


def time_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)


def is_ahead(at_ms: int, now_ms: int) -> bool:
    """Whether a time of the past is in the future of the current clock, beyond the tolerance."""
    return at_ms > now_ms + TOLERANCE_MS


def is_due(due_ms: int, decided_ms: int, now_ms: int) -> bool:
    """Whether a wait until `due_ms`, decided at `decided_ms`, is over."""
    return due_ms <= now_ms or is_ahead(decided_ms, now_ms)


class WatchedClock:
    """A clock that detects that it was set back. Milliseconds since the epoch."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._latest_ms = now_ms()

    def now_ms(self) -> int:
        now_ms = self._now_ms()
        self._latest_ms = max(self._latest_ms, now_ms)
        return now_ms

    def put_back_ms(self) -> int:
        """How far the clock was set back since the last call; 0 within the tolerance."""
        now_ms, latest_ms = self._now_ms(), self._latest_ms
        if not is_ahead(latest_ms, now_ms):
            return 0
        self._latest_ms = now_ms
        return latest_ms - now_ms
