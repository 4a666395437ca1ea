"""Hang detection: a watched process gives no sign of life for a time in which the watcher itself ran. Pure.

Times come from `RunningTime`, which counts only the watcher's run time. A suspended machine or virtual machine, or a
watcher that was stopped or not scheduled for a minute, does not count as silence, since the watcher could not have
received a sign. On an overloaded machine the timeout grows with the watcher's own delays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def ignore_beat() -> None:
    """The default listener: does nothing."""


class _Thread(threading.local):
    on_beat: Callable[[], None] = staticmethod(ignore_beat)


_thread = _Thread()


def listen(on_beat: Callable[[], None]) -> None:
    """Call `on_beat` at every beat of this thread."""
    _thread.on_beat = on_beat


def beat() -> None:
    """The thread's heartbeat, called in every loop that may take long, also in waits for Kafka. Costs 0.1 us."""
    _thread.on_beat()


class RunningTime:
    """Seconds in which this process ran: the sum of the times between calls of `tick`, each at most `longest_s`."""

    def __init__(self, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`longest_s` is about twice the normal interval of `tick` calls."""
        self._longest_s = longest_s
        self._clock = clock
        self._last = clock()
        self._seconds = 0.0

    def tick(self) -> float:
        """Seconds so far. Called repeatedly by one thread."""
        now = self._clock()
        self._seconds += min(max(now - self._last, 0.0), self._longest_s)
        self._last = now
        return self._seconds


class Silence:
    """The time since the last sign of life of a watched process. `at` is the watcher's own time.

    The silence is too long after `limit_s` if also the last `probes` probes had no answer within their full time: with
    several probes, one lost or late answer does not count, whatever the interval of probes. `probes` is 0 for signs
    without probes (see `observe`). A limit of 0 disables the check.
    """

    def __init__(self, limit_s: float, at: float, probes: int = 0) -> None:
        self._limit_s = limit_s
        self._probes = probes
        self._since = at
        self._unanswered = 0
        self._sign: object = None

    def answered(self, at: float) -> None:
        """A sign of life."""
        self._since = at
        self._unanswered = 0

    def unanswered(self) -> None:
        """A probe had no answer within its full time."""
        self._unanswered += 1

    def observe(self, sign: object, at: float) -> None:
        """Note the current value of a count or a time; a changed value is a sign of life."""
        if sign != self._sign:
            self._sign = sign
            self.answered(at)

    def lasts_s(self, at: float) -> float:
        """Seconds since the last sign of life."""
        return at - self._since

    def is_too_long(self, at: float) -> bool:
        """Whether the watched process hangs."""
        return self._limit_s > 0 and self._unanswered >= self._probes and self.lasts_s(at) >= self._limit_s
