"""Which gear is the right one for a load. Pure: asks nobody."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

Gear = Literal["realtime", "batch"]

# With fewer notifications waiting than this the real-time gear is never too slow; it does some thousands a second.
_BACKLOG = 1_000

# With more than this it is at once.
HEAP = 5_000

# The batch gear has so few waiting when it keeps up: a batch, and what comes while it runs.
LITTLE = 200

# Before anything is known of this machine: what the real-time gear is trusted with, in notifications a second.
_RATE = 1_500.0

# How long the batch gear is kept at least; each time that the other one was too slow at once, twice as long.
_KEPT_S = 3.0
_LONGEST_KEPT_S = 60.0


class Load(NamedTuple):
    """What waits, how many came in a second, at this time."""

    waiting: int
    rate: float
    at: float


class Gearbox:
    """Decides; asks nobody. With two thresholds, and a wait that grows, it does not go to and fro."""

    def __init__(self) -> None:
        self._shifted_at = -math.inf
        self._kept_s = _KEPT_S
        self._rate = _RATE
        self._slow = 0

    def next(self, gear: Gear, load: Load) -> Gear:
        """The gear for this load, as it was looked at a moment ago."""
        if gear == "realtime":
            self._slow = self._slow + 1 if load.waiting > max(_BACKLOG, load.rate) else 0
            self._slow += load.waiting > max(HEAP, 2 * load.rate)
            if self._slow < 2:
                return gear
            again = load.at - self._shifted_at < 2 * self._kept_s
            self._kept_s = min(2 * self._kept_s, _LONGEST_KEPT_S) if again else _KEPT_S
            self._rate = max(min(load.rate, 2 * _RATE), _RATE / 4)
            return self._shifted("batch", load.at)
        quiet = load.waiting <= LITTLE + load.rate / 2 and load.rate < 0.8 * self._rate
        if quiet and load.at - self._shifted_at >= self._kept_s:
            return self._shifted("realtime", load.at)
        return gear

    def _shifted(self, gear: Gear, at: float) -> Gear:
        self._shifted_at, self._slow = at, 0
        return gear
