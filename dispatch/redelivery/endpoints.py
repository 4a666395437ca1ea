"""The endpoints of parked deliveries, and the lanes that wait for one with an open breaker.

Such an endpoint gets only a probe when it is due. Its lanes take turns in providing it: an endpoint may fail only at
one message. Probes of thousands of endpoints without an answer leave some pushes in flight to others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from arborcast.core.timer_queue import TimerQueue
from arborcast.dispatch.delivery.health import EndpointHealthRegistry, Health, sign_of
from arborcast.dispatch.delivery.outcomes import Outcome
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.redelivery.events import EventListener, OperatorEvent
from arborcast.dispatch.redelivery.parked_store import ParkedStore

logger = logging.getLogger(__name__)


class HealthMemory:
    """The health of degraded endpoints in the store, for the next start. Used by one thread. The store's errors are
    raised."""

    def __init__(self, store: ParkedStore, health: EndpointHealthRegistry) -> None:
        self._store = store
        self._health = health
        self._stored: dict[str, Health] = {}

    def save(self) -> bool:
        """Write the current health to the store; returns whether it has changed."""
        known = self._health.everything()
        if known == self._stored:
            return False
        self._store.remember("health", msgspec.msgpack.encode(known))
        self._stored = known
        return True

    def restore(self) -> None:
        """Read the health that an earlier process has written."""
        stored = self._store.recall("health")
        try:
            self._health.restore({} if stored is None else msgspec.msgpack.decode(stored, type=dict[str, Health]))
        except msgspec.DecodeError as error:
            logger.info("the health of degraded endpoints cannot be read, and begins again: %s", error)


# Share of the limit of pushes in flight for probes.
_PROBES = 3 / 4


class Endpoints:
    """Used by one thread; the registry is shared. `quick_s`: the maximum time of a quick answer; `max_in_flight`: the
    limit of pushes in flight."""

    def __init__(
        self, health: EndpointHealthRegistry, quick_s: float, max_in_flight: int, publish: EventListener
    ) -> None:
        self.health = health
        self._quick_s = quick_s
        self._free = max(1, int(max_in_flight * _PROBES))  # further probes that may be in flight
        self._publish = publish
        self._probes: TimerQueue[str] = TimerQueue()
        # In the order of their probes.
        self._blocked: dict[str, dict[str, None]] = {}

    def may_try(self, endpoint: str, now_ms: int) -> bool:
        """Whether a push may begin now: with an open breaker only a probe, unless too many are in flight."""
        health = self.health.get(endpoint)
        return health.may_try(now_ms) and (health.breaker == "closed" or self._free > 0)

    def begin_push(self, endpoint: str) -> bool:
        """Begin a push; returns whether it is a probe."""
        probe = self.health.begin_push(endpoint)
        self._free -= probe
        return probe

    def push_ended(
        self, endpoint: str, message: str, outcome: Outcome, result: PushResult, probe: bool, now_ms: int
    ) -> list[str]:
        """A push has an outcome; returns the lanes whose wait ends."""
        self._free += probe
        sign = sign_of(message, outcome, result, self._quick_s)
        before = self.health.get(endpoint)
        if before.breaker != "closed" and not probe and sign.kind in ("unreachable", "failing"):
            return []  # it began before the breaker opened
        health = self.health.note(endpoint, sign, now_ms)
        if health.breaker != "closed":
            self._probes.set(endpoint, health.probe_at_ms)
            if before.breaker == "closed":
                self._publish(OperatorEvent("breaker-opened", now_ms, endpoint, detail=outcome.detail))
            return []
        if before.breaker != "closed":
            self._publish(OperatorEvent("breaker-closed", now_ms, endpoint))
        return self.unblock(endpoint)

    def block(self, lane: str, endpoint: str, now_ms: int) -> None:
        """The lane waits until the endpoint may be probed, or its probe has an outcome."""
        self._blocked.setdefault(endpoint, {}).setdefault(lane)
        health = self.health.get(endpoint)
        if health.breaker == "open":
            # After the clock was put back the probe is due before its time.
            self._probes.set_by(endpoint, now_ms if health.may_try(now_ms) else health.probe_at_ms)

    def blocked(self, endpoint: str) -> list[str]:
        return list(self._blocked.get(endpoint, ()))

    def unblock(self, endpoint: str) -> list[str]:
        """End the wait of all its lanes; returns them."""
        self._probes.cancel(endpoint)
        return list(self._blocked.pop(endpoint, ()))

    def forget(self, lane: str, endpoint: str) -> None:
        blocked = self._blocked.get(endpoint)
        if blocked is not None:
            blocked.pop(lane, None)
            if not blocked:
                self.unblock(endpoint)

    def next_probe_ms(self) -> int | None:
        return self._probes.next_ms() if self._free > 0 else None

    def due(self, now_ms: int) -> str | None:
        """An endpoint whose probe is due, once for each probe."""
        return self._probes.pop(now_ms) if self._free > 0 else None

    def probe(self, endpoint: str, begin: Callable[[str], bool]) -> None:
        """Probe with the first lane for which `begin` returns True. That lane is the last at the next probe."""
        blocked = self._blocked.get(endpoint, {})
        for lane in list(blocked):
            if lane in blocked:
                del blocked[lane]
                blocked[lane] = None
                if begin(lane):
                    return
