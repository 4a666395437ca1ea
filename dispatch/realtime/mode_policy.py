"""The choice of the execution mode for a load. Pure."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from arborcast.core.backoff import Backoff

Mode = Literal["realtime", "batch"]
"""The execution mode."""

# With fewer waiting notifications real time is always fast enough.
_BACKLOG = 1_000

# A change to batches and back costs some three seconds, on a busy machine more. On a cluster, where each row leaves the
# JVM separately in real time, batches are up to three times as fast and pay earlier.
WORTH_ELSEWHERE_S = 8.0

# Where the rows of a backlog are sent together (`query.KnownEnds`) batches are a third faster at best, and often no
# faster.
WORTH_HERE_S = 30.0

# Waiting notifications of batches that keep up: one batch and the arrivals during it.
LITTLE = 200

# A change waits until the redelivery has read the log of parked deliveries to its end, and nothing is pushed meanwhile:
# with more unread records there is no change.
MOST_UNREAD = 5_000

# The assumed pace of real time before a measurement.
_PACE = 1_500.0
_BUSY = 100

# Time of the measurement of the pace, so that a machine that stalls for a second does not count as slow. In batches it
# is not measured, and reset.
_PACE_S = 4.0
_FORGET_S = 60.0

# Minimum duration of batches; longer each time that real time was immediately too slow.
_IN_BATCHES = Backoff(3.0, 60.0)


class Load(NamedTuple):
    """Waiting notifications and arrivals per second at this time, and the parked records that the redelivery has not
    read."""

    waiting: int
    rate: float
    at: float
    unread: int = 0


class ModePolicy:
    """Decides the mode, with two thresholds and a growing delay as hysteresis."""

    def __init__(self, worth_s: float) -> None:
        """Batches pay if real time would need `worth_s`."""
        self._worth_s = worth_s
        self._shifted_at = -math.inf
        self._early = 1  # one more than the number of consecutive changes to real time that were too early
        self._pace = _PACE
        self._slow = 0
        self._before: Load | None = None

    @property
    def backlog(self) -> int:
        """With more notifications waiting at the start, batches are faster."""
        return int(self._worth_s * _PACE)

    def next(self, mode: Mode, load: Load) -> Mode:
        before, self._before = self._before, load
        if mode == "realtime":
            self._measure(before, load)
            self._slow = self._slow + 1 if load.waiting > max(_BACKLOG, self._worth_s * self._pace) else 0
            if self._slow < 2 or load.unread > MOST_UNREAD:
                return mode
            early = load.at - self._shifted_at < 2 * _IN_BATCHES.after(self._early)
            self._early = self._early + 1 if early else 1
            return self._shifted("batch", load.at)
        if before is not None:
            self._approach(_PACE, load.at - before.at, _FORGET_S)
        quiet = load.waiting <= LITTLE + load.rate / 2 and load.rate < 0.8 * self._pace
        if quiet and load.unread <= MOST_UNREAD and load.at - self._shifted_at >= _IN_BATCHES.after(self._early):
            return self._shifted("realtime", load.at)
        return mode

    def _measure(self, before: Load | None, load: Load) -> None:
        """Measure the pace of real time since the last check, if enough notifications were waiting."""
        if before is None or load.at <= before.at or min(before.waiting, load.waiting) < _BUSY:
            return
        passed_s = load.at - before.at
        self._approach(max(0.0, load.rate + (before.waiting - load.waiting) / passed_s), passed_s, _PACE_S)

    def _approach(self, pace: float, passed_s: float, within_s: float) -> None:
        self._pace += (pace - self._pace) * (1 - math.exp(-passed_s / within_s))

    def _shifted(self, mode: Mode, at: float) -> Mode:
        self._shifted_at, self._slow, self._before = at, 0, None
        return mode
