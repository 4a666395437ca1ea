"""A process that is started again when it ends, and the time limit for stopping several of them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple


class RestartWaits(NamedTuple):
    """In seconds: the first and the longest wait, and the life after which earlier deaths do not count."""

    first_s: float
    longest_s: float
    forget_s: float


class ManagedProcess:
    """Whether the process runs, how often in a row it died, and when it may be started again. Times are monotonic."""

    def __init__(self, waits: RestartWaits) -> None:
        self._waits = waits
        self.popen: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.failures = 0
        """Deaths in a row."""
        self._due = 0.0

    def is_due(self, now: float) -> bool:
        """Whether it has to be started."""
        return self.popen is None and now >= self._due

    def exit_code(self) -> int | None:
        """How it ended; None while it runs, or when it was not started."""
        return None if self.popen is None else self.popen.poll()

    def died(self, now: float, healthy_s: float) -> float:
        """Count a death after `healthy_s` seconds of healthy life; the seconds until it is due, doubled each time."""
        waits = self._waits
        self.popen = None
        self.failures = 1 if healthy_s >= waits.forget_s else self.failures + 1
        # 2.0 ** 1024 overflows; long before that the wait is the longest.
        wait_s = min(waits.longest_s, waits.first_s * 2.0 ** min(self.failures - 1, 64))
        self._due = now + wait_s
        return wait_s


class Deadline:
    """One limit for several steps, so that their sum is bounded and not each of them; by the monotonic clock."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = seconds
        self._began = clock()

    def passed(self, share: float = 1.0) -> bool:
        """Whether this share of the time is over."""
        return self._clock() - self._began >= self._seconds * share
