"""Times of the wall clock, and what waits for one though the clock may be set.

Such a time is written down together with when it was decided. When that lies ahead, the clock was put back since then,
or that of another machine is wrong: nobody can know how much of the wait is over, so it counts as over. So
no wait is longer than was once decided, counted from the change of the clock; and only these two times have to be known
for that, also after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# A record of a log may bear a time that is this far from that of another host.
CLOCKS_APART_MS = 60_000

# As far apart are the clocks of machines, and as far are they corrected now and then: that means nothing.
TOLERANCE_MS = 5_000


def time_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)


def lies_ahead(at_ms: int, now_ms: int) -> bool:
    """Whether a moment in the past is in the future of the present clock."""
    return at_ms > now_ms + TOLERANCE_MS


def has_come(due_ms: int, decided_ms: int, now_ms: int) -> bool:
    """Whether a wait until `due_ms`, decided at `decided_ms`, is over."""
    return due_ms <= now_ms or lies_ahead(decided_ms, now_ms)


class WatchedClock:
    """A clock that notices when it was put back. Milliseconds since the epoch."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._latest_ms = now_ms()

    def now_ms(self) -> int:
        """What it shows."""
        now_ms = self._now_ms()
        self._latest_ms = max(self._latest_ms, now_ms)
        return now_ms

    def put_back_ms(self) -> int:
        """By how much it was put back since this was last asked, 0 when by none that matters."""
        now_ms, latest_ms = self._now_ms(), self._latest_ms
        if not lies_ahead(latest_ms, now_ms):
            return 0
        self._latest_ms = now_ms
        return latest_ms - now_ms
