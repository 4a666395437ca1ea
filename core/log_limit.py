"""The bound of repeated log lines: neither a client nor a lasting fault can fill a disk with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable


class LogLimit(logging.Filter):
    """Passes `burst` equal lines at once, and one every `pause_s` seconds. As a filter of a logger or handler, lines of
    one call in the code count as equal; one that follows omitted lines has their number as `omitted`."""

    def __init__(self, burst: int = 100, pause_s: float = 36.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._pause_s = pause_s
        self._burst_s = (burst - 1) * pause_s
        self._clock = clock
        self._full: dict[Hashable, float] = {}  # the time until which the burst is used up, in part
        self._omitted: dict[Hashable, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        call = record.pathname, record.lineno
        if not self.passes(call):
            self._omitted[call] = self._omitted.get(call, 0) + 1
            return False
        record.omitted = self._omitted.pop(call, 0)
        return True

    def passes(self, kind: Hashable) -> bool:
        """Whether one more line of this kind is to be logged. The number of kinds must be small."""
        now = self._clock()
        full = max(self._full.get(kind, now), now)
        if full - now > self._burst_s:
            return False
        self._full[kind] = full + self._pause_s
        return True
