"""Deciding that something hangs: it gives no sign of life for so long, while we could have noticed one. Pure.

Times come from `OwnTime`, which counts only what this process itself has lived through. A machine that sleeps, a
virtual machine that is put aside, a process that is stopped or gets no turn for a minute: for the watcher none of that
is silence of the watched, for it would not have heard anything either. And on a machine so busy that the watcher comes
round late, the time that it grants others stretches with its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def ignore_beat() -> None:
    """The default listener."""


class _Thread(threading.local):
    on_beat: Callable[[], None] = staticmethod(ignore_beat)


_thread = _Thread()


def listen(on_beat: Callable[[], None]) -> None:
    """From now on `on_beat` is called at every beat of this thread."""
    _thread.on_beat = on_beat


def beat() -> None:
    """The thread's heartbeat, for every loop that may take long, also while it waits for Kafka. The loop does not
    depend on a listener. A beat costs a tenth of a microsecond."""
    _thread.on_beat()


class OwnTime:
    """Seconds in which this process ran: counted in steps between two calls of `tick`, none longer than `longest_s`."""

    def __init__(self, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`longest_s` is about twice the time after which `tick` is called again when nothing is in the way."""
        self._longest_s = longest_s
        self._clock = clock
        self._last = clock()
        self._seconds = 0.0

    def tick(self) -> float:
        """Seconds so far. To be called by one thread, again and again."""
        now = self._clock()
        self._seconds += min(max(now - self._last, 0.0), self._longest_s)
        self._last = now
        return self._seconds


class Silence:
    """How long something has given no sign of life. `at` is always the watcher's own time.

    It is too long after `limit_s`, when `asks` questions in a row had no answer: each of them had its whole time, so
    that a single answer which is lost or late does not count, however long the time between two questions is. For signs
    that come without being asked for, see `observe`, `asks` is 0. With a limit of 0 nothing is ever too long.
    """

    def __init__(self, limit_s: float, at: float, asks: int = 0) -> None:
        self._limit_s = limit_s
        self._asks = asks
        self._since = at
        self._unanswered = 0
        self._sign: object = None

    def answered(self, at: float) -> None:
        """A sign of life."""
        self._since = at
        self._unanswered = 0

    def unanswered(self) -> None:
        """A question was given its whole time, and had no answer."""
        self._unanswered += 1

    def observe(self, sign: object, at: float) -> None:
        """The current value of a count or a time, which changes as long as the watched process lives."""
        if sign != self._sign:
            self._sign = sign
            self.answered(at)

    def lasts_s(self, at: float) -> float:
        """Seconds since the last sign of life."""
        return at - self._since

    def is_too_long(self, at: float) -> bool:
        """Whether it hangs."""
        return self._limit_s > 0 and self._unanswered >= self._asks and self.lasts_s(at) >= self._limit_s
