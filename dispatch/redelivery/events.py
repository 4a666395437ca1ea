"""Events of the redelivery for operators, as plain values: the job publishes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

NAMESPACE = "urn:arborcast"
EventKind = Literal[
    "breaker-opened",  # an endpoint failed too often: it is only probed from now on
    "breaker-closed",  # it answers again
    "subscription-failing",  # something of the subscription waits behind an open breaker
    "subscription-recovered",  # all of it is through
    "subscription-suspended",  # its endpoint failed for too long, or its conditions cost too much
    "subscription-gone",  # its receiver has ended it (410)
    "deadline-missed",  # nothing has matched for as long as its deadline; the subscriber gets a message, too
    "deadline-met",  # something has again
    "fragments-incomplete",  # a message that came in parts was given up
    "dead-letters-growing",  # deliveries were given up; `count` is how many since the last such event
]


@dataclass(frozen=True, slots=True)
class OperatorEvent:
    """`at_ms` is milliseconds since the epoch; fields that do not apply are empty. `facts` are names and values that
    only this kind has."""

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

# Dead letters come in thousands when they come: an event at most this often.
_DEAD_EVERY_MS = 60_000


class DeadLetterAlarm:
    """An event when deliveries are given up: at once, then at most once a minute."""

    def __init__(self, publish: EventListener) -> None:
        self._publish = publish
        self._untold = 0
        self._told_ms: int | None = None
        self._last = ("", "", "")

    def died(self, subscription: str, endpoint: str, detail: str) -> None:
        self._untold += 1
        self._last = (subscription, endpoint, detail)

    def look(self, now_ms: int) -> None:
        told_ms = self._told_ms
        # Later than now: by a clock that was put back.
        if self._untold and (told_ms is None or not 0 <= now_ms - told_ms < _DEAD_EVERY_MS):
            subscription, endpoint, detail = self._last
            self._publish(OperatorEvent("dead-letters-growing", now_ms, endpoint, subscription, self._untold, detail))
            self._untold, self._told_ms = 0, now_ms
