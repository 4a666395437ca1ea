"""Which endpoints are slow or failing lately: a bounded memory over the attempts as they are recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WINDOW_S = 300.0
MAX_ENDPOINTS = 2_000


@dataclass(frozen=True)
class EndpointFigures:
    """What pushes to one endpoint came to: how many, how many of them failed, how many seconds they took together and
    the longest."""

    endpoint: str
    pushes: int
    failed: int
    seconds: float
    longest: float

    @property
    def mean_s(self) -> float:
        """Seconds a push took, on average."""
        return self.seconds / self.pushes if self.pushes else 0.0

    def with_more(self, other: EndpointFigures) -> EndpointFigures:
        """Both together."""
        return EndpointFigures(
            self.endpoint,
            self.pushes + other.pushes,
            self.failed + other.failed,
            self.seconds + other.seconds,
            max(self.longest, other.longest),
        )


class EndpointsSeen:
    """The last five to ten minutes: two windows, of which the older goes when the younger is full in time.

    Each holds at most MAX_ENDPOINTS; the quickest are forgotten first, since nobody looks for them.
    """

    def __init__(self) -> None:
        self._began = 0.0
        self._now: dict[str, EndpointFigures] = {}
        self._before: dict[str, EndpointFigures] = {}

    def add(self, figures: Iterable[EndpointFigures], now: float) -> None:
        """Take more in. `now` in seconds, on any clock that only goes forward."""
        self._turn(now)
        for one in figures:
            known = self._now.get(one.endpoint)
            self._now[one.endpoint] = known.with_more(one) if known else one
        if len(self._now) > MAX_ENDPOINTS:
            kept = sorted(self._now.values(), key=lambda one: (one.failed, one.mean_s), reverse=True)
            self._now = {one.endpoint: one for one in kept[: MAX_ENDPOINTS // 2]}

    def slowest(self, count: int, now: float) -> list[EndpointFigures]:
        """Those whose pushes took longest on average."""
        self._turn(now)
        together = dict(tuple(self._before.items()))
        for endpoint, one in tuple(self._now.items()):
            known = together.get(endpoint)
            together[endpoint] = known.with_more(one) if known else one
        return sorted(together.values(), key=lambda one: (one.mean_s, one.failed), reverse=True)[:count]

    def _turn(self, now: float) -> None:
        if now - self._began > WINDOW_S:
            self._before = self._now if now - self._began <= 2 * WINDOW_S else {}
            self._now = {}
            self._began = now
