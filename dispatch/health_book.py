"""The health of all endpoints that are not simply well, and that somebody subscribes with. Shared by the driver's
threads.

What is known here travels with every batch and is kept for the next start, and whoever subscribes chooses the address.
So of an address that no subscription has any more nothing is kept, however sick it was: else anybody could fill the
memory, by subscribing, failing and unsubscribing at ever new ones.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping

from dispatch.health import WELL, Health, Sign, after, probing, without_probe
from dispatch.settings import RetrySettings


class HealthBook:
    """Remembers endpoints from their first bad sign until long after their recovery, or until nobody has them.

    `in_use` says whether a subscription has this endpoint; it is called under a lock. Whoever knows that the last one
    is gone calls `forget`, after `in_use` says so.
    """

    def __init__(self, settings: RetrySettings, in_use: Callable[[str], bool]) -> None:
        self._settings = settings
        self._in_use = in_use
        self._lock = threading.Lock()
        self._known: dict[str, Health] = {}

    def get(self, endpoint: str) -> Health:
        """What is known of an endpoint."""
        return self._known.get(endpoint, WELL)

    def note(self, endpoint: str, sign: Sign, now_ms: int) -> Health:
        """Take a sign in; the endpoint's health from now on. Of one that nobody has (any more) nothing is known."""
        with self._lock:
            if not self._in_use(endpoint):
                return WELL
            health = after(self._known.get(endpoint, WELL), sign, now_ms, self._settings)
            if health.forgettable(now_ms):
                self._known.pop(endpoint, None)
            else:
                self._known[endpoint] = health
            return health

    def forget(self, endpoint: str) -> None:
        """Nobody has this endpoint any more."""
        with self._lock:
            self._known.pop(endpoint, None)

    def begin_push(self, endpoint: str) -> bool:
        """A push that was allowed begins; whether it is a probe."""
        with self._lock:
            health = self._known.get(endpoint, WELL)
            if health.breaker == "closed":
                return False
            self._known[endpoint] = probing(health)
            return True

    def forgive(self, endpoint: str, now_ms: int) -> None:
        """Someone vouches for an endpoint: it may be probed now, and has the whole time before it is given up."""
        with self._lock:
            health = self._known.get(endpoint)
            if health is not None:
                probe_at_ms = min(health.probe_at_ms, now_ms)
                self._known[endpoint] = dataclasses.replace(health, failing_since_ms=0, probe_at_ms=probe_at_ms)

    def restore(self, known: Mapping[str, Health]) -> None:
        """Take in what was known before a restart, of endpoints of which nothing is known yet."""
        with self._lock:
            for endpoint, health in known.items():
                if self._in_use(endpoint):
                    # A probe that was under way at the end of that process has no outcome any more: without another one
                    # the breaker would never be asked again.
                    self._known.setdefault(endpoint, without_probe(health))

    def forget_probes(self) -> None:
        """Probes under way are lost; others may begin."""
        with self._lock:
            for endpoint, health in self._known.items():
                self._known[endpoint] = without_probe(health)

    def sick(self) -> frozenset[str]:
        """The endpoints that a batch does not push to."""
        with self._lock:
            return frozenset(endpoint for endpoint, health in self._known.items() if health.sick)

    def watched(self) -> frozenset[str]:
        """The endpoints of which a batch is to report successes, too: they have failed since they last had one."""
        with self._lock:
            return frozenset(endpoint for endpoint, health in self._known.items() if health.failures)

    def everything(self) -> dict[str, Health]:
        """A copy of all that is known."""
        with self._lock:
            return dict(self._known)
