"""How long to wait before a part that died is started again. Numbers in, number out."""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadline:
    """So many seconds from now, by a clock that nobody sets."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = seconds
        self._began = clock()

    def passed(self, share: float = 1.0) -> bool:
        """Whether this share of the time is over."""
        return self._clock() - self._began >= self._seconds * share


def wait_before_start(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after the n-th death in a row: `first`, doubled with every further one, at most `longest`."""
    if failures <= 0:
        return 0.0
    # 2.0 ** 1024 overflows; long before that the wait is `longest`.
    return min(longest, first * 2.0 ** min(failures - 1, 64))


def failures_after(failures: int, ran: float, forget: float) -> int:
    """The number of deaths in a row, counting the one now, of a part that ran for `ran` seconds.

    One that ran longer than `forget` seconds is taken to have been healthy: its earlier deaths no longer count.
    """
    return 1 if ran >= forget else failures + 1
