"""Events of the redelivery for operators, as plain values: the job publishes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

NAMESPACE = "urn:arborcast"
EventKind = Literal[
    "breaker-opened",  # an endpoint failed too often: it is only probed
    "breaker-closed",  # it answers again
    "subscription-failing",  # deliveries of the subscription wait behind an open breaker
    "subscription-recovered",  # none of them waits
    "subscription-suspended",  # its endpoint failed for too long, or its conditions cost too much
    "subscription-gone",  # its receiver has ended it (410)
    "deadline-missed",  # no notification has matched within the deadline; the subscriber gets a message, too
    "deadline-met",  # one has matched again
    "fragments-incomplete",  # a message in parts was given up
    "dead-letters-growing",  # deliveries were given up; `count`: how many since the last such event
]


@dataclass(frozen=True, slots=True)
class OperatorEvent:
    """`at_ms` is milliseconds since the epoch; fields that do not apply are empty. `facts` are the names and values of
    this kind only."""

    kind: EventKind
    at_ms: int
    endpoint: str = ""
    subscription: str = ""
    count: int = 0
    detail: str = ""
    topic: str = ""
    since_ms: int = 0
    facts: tuple[tuple[str, str], ...] = ()


EventListener = Callable[[OperatorEvent], None]

# Dead letters may arrive in thousands: the minimum interval of events.
_DEAD_EVERY_MS = 60_000


class NewLetters(NamedTuple):
    """The number of new dead letters, and the last one."""

    number: int = 0
    subscription: str = ""
    endpoint: str = ""
    detail: str = ""


NO_LETTERS = NewLetters()


class DeadLetterAlarm:
    """An event when deliveries are given up: at once, then at most once a minute. Thread-safe."""

    def __init__(self, publish: EventListener) -> None:
        self._publish = publish
        self._lock = threading.Lock()
        self._unreported = 0
        self._reported_ms: int | None = None
        self._last = ("", "", "")

    def died(self, subscription: str, endpoint: str, detail: str, count: int = 1) -> None:
        with self._lock:
            self._unreported += count
            self._last = (subscription, endpoint, detail)

    def publish_due(self, now_ms: int) -> None:
        with self._lock:
            count, reported_ms, (subscription, endpoint, detail) = self._unreported, self._reported_ms, self._last
            # The last one may be in the future, after the clock was put back.
            if not count or (reported_ms is not None and 0 <= now_ms - reported_ms < _DEAD_EVERY_MS):
                return
            self._unreported, self._reported_ms = 0, now_ms
        self._publish(OperatorEvent("dead-letters-growing", now_ms, endpoint, subscription, count, detail))
