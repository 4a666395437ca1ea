"""Limits of concurrent pushes per endpoint and per host, and the lanes that wait for a free slot. Pure.

An endpoint is a subscriber's address; a host is the name or number in it, without the port: the endpoints of one host
share its network, its cores and often its failures.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Literal
from urllib.parse import urlsplit

from arborcast.dispatch.settings import PushSettings

Scope = tuple[Literal["endpoint", "host", "large"], str]

Scopes = tuple[Scope, Scope]
"""The endpoint and the host of an address."""


LARGE: Scope = ("large", "")

# Of payloads. Eight messages of the usual maximum size are half of `pushes.MOST_BYTES`: without this limit slow
# receivers of such messages, in parts for minutes, would stop all other pushes.
_LARGE_BYTES = 1024 * 1024
_MOST_LARGE = 8


# Reading these takes a tenth of the time of `urlsplit`.
_ORDINARY = re.compile(r"https?://([a-z0-9.-]+)(?::[0-9]+)?(?:[/?#]|\Z)")


def scopes_of(address: str) -> Scopes:
    """The endpoint and host of an address. An unreadable address is a host of its own; pushes to it fail."""
    ordinary = _ORDINARY.match(address)
    if ordinary is not None:
        host = ordinary[1]
    else:
        try:
            host = urlsplit(address).hostname or address
        except ValueError:
            host = address
    return ("endpoint", address), ("host", host)


def scopes_of_push(address: str, size: int) -> Sequence[Scope]:
    """The scopes of a push of the redelivery to this address, with this number of bytes of payloads."""
    scopes = scopes_of(address)
    return (*scopes, LARGE) if size > _LARGE_BYTES else scopes


# Every eighth turn is for the lowest class.
_LOWEST_EACH = 8


class FairQueue:
    """Waiting names: the highest class first, in a class in the order of arrival. Every eighth turn is for the lowest
    class, so no name starves."""

    def __init__(self) -> None:
        # Ordered, and accessible by name: when ten thousand end together, each leaves from the middle.
        self._classes: dict[int, OrderedDict[str, None]] = {}
        self._turns = 0

    def __bool__(self) -> bool:
        return bool(self._classes)

    def add(self, name: str, priority: int) -> None:
        """Add a name; one that waits already keeps its place."""
        self._classes.setdefault(priority, OrderedDict())[name] = None

    def take(self) -> str:
        """Remove and return the next name; at least one must wait."""
        self._turns += 1
        priority = min(self._classes) if self._turns % _LOWEST_EACH == 0 else max(self._classes)
        name, _ = self._classes[priority].popitem(last=False)
        if not self._classes[priority]:
            del self._classes[priority]
        return name

    def remove(self, name: str, priority: int) -> None:
        waiting = self._classes[priority]
        del waiting[name]
        if not waiting:
            del self._classes[priority]


class InFlightLimiter:
    """Counts the pushes in flight against the limits, and selects the next of the lanes that wait for their endpoint or
    host (`FairQueue`).

    A free slot is reserved for a lane returned by `leave` or `pass_on`. If it does not use the slot, `pass_on` must be
    called, or the others would wait for ever.
    """

    def __init__(self, push: PushSettings) -> None:
        self._limits = {
            "endpoint": push.max_in_flight_per_endpoint,
            "host": push.max_in_flight_per_host,
            "large": _MOST_LARGE,
        }
        self._in_flight: dict[Scope, int] = {}
        self._waiting: dict[Scope, FairQueue] = {}
        self._waits_for: dict[str, tuple[Scope, int]] = {}

    @property
    def waiting(self) -> int:
        return len(self._waits_for)

    def enter(self, scopes: Sequence[Scope]) -> None:
        for scope in scopes:
            self._in_flight[scope] = self._in_flight.get(scope, 0) + 1

    def leave(self, scopes: Sequence[Scope]) -> list[str]:
        """End a push; returns the lanes that may continue."""
        for scope in scopes:
            left = self._in_flight[scope] - 1
            if left:
                self._in_flight[scope] = left
            else:
                del self._in_flight[scope]
        return self.pass_on(scopes) if self._waits_for else []

    def wait(self, lane: str, scopes: Sequence[Scope], priority: int = 0) -> bool:
        """Whether no push may begin; the lane then waits until `leave` or `pass_on` returns it."""
        if lane in self._waits_for:
            return True
        for scope in scopes:
            if self._in_flight.get(scope, 0) >= self._limits[scope[0]]:
                self._waits_for[lane] = scope, priority
                self._waiting.setdefault(scope, FairQueue()).add(lane, priority)
                return True
        return False

    def is_awaited(self, scopes: Iterable[Scope]) -> bool:
        return bool(self._waiting) and any(scope in self._waiting for scope in scopes)

    def pass_on(self, scopes: Iterable[Scope]) -> list[str]:
        """Free the slot reserved for a lane that does not use it; returns the lanes that may use it."""
        released: list[str] = []
        for scope in scopes:
            waiting = self._waiting.get(scope)
            if waiting is not None and self._in_flight.get(scope, 0) < self._limits[scope[0]]:
                lane = waiting.take()
                del self._waits_for[lane]
                released.append(lane)
                if not waiting:
                    del self._waiting[scope]
        return released

    def forget(self, lane: str) -> None:
        where = self._waits_for.pop(lane, None)
        if where is not None:
            scope, priority = where
            self._waiting[scope].remove(lane, priority)
            if not self._waiting[scope]:
                del self._waiting[scope]
