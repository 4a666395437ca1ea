"""One time limit for several steps, so that their sum is bounded and not each of them."""

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
