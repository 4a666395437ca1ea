"""When nothing more is tried for a subscription: its receiver has ended it, or its endpoint has failed for too long."""

from __future__ import annotations

from dispatch.redelivery.endpoints import Endpoints
from dispatch.redelivery.events import Listener, OperatorEvent
from dispatch.redelivery.journal import Journal
from dispatch.redelivery.lanes import Lane, Lanes, Subscriptions


class Suspensions:
    """Used by one thread. `after_ms` is how long an endpoint may fail."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        lanes: Lanes,
        endpoints: Endpoints,
        journal: Journal,
        after_ms: int,
        tell: Listener,
    ) -> None:
        self._subscriptions = subscriptions
        self._lanes = lanes
        self._endpoints = endpoints
        self._journal = journal
        self._after_ms = after_ms
        self._tell = tell
        # Suspended, and that is not written down yet.
        self._unwritten: set[str] = set()

    def receiver_gone(self, lane: Lane, now_ms: int) -> None:
        """End the subscription; what waits for it is cancelled at its next turn."""
        lane.gone = True
        self._journal.gone(lane.name)
        self._tell(OperatorEvent("subscription-gone", now_ms, lane.endpoint, lane.name))

    def push_failed(self, lane: Lane, now_ms: int) -> None:
        """Suspend the lane, and all that wait for the same endpoint, when that has failed for too long.

        The endpoint's time begins anew then, not only when someone resumes: that may happen while nobody listens.
        """
        endpoint = lane.endpoint
        health = self._endpoints.get(endpoint)
        since_ms = health.failing_since_ms
        if health.breaker == "closed" or not since_ms or now_ms - since_ms < self._after_ms:
            return
        for name in {lane.name, *self._endpoints.blocked(endpoint)}:
            each = self._lanes[name]
            if not each.suspended:
                each.suspended = True
                self._unwritten.add(name)
                self._journal.suspend(name, since_ms)
                self._tell(OperatorEvent("subscription-suspended", now_ms, endpoint, name))
        self._endpoints.forgive(endpoint, now_ms)

    def written_down(self) -> set[str]:
        """From now on `subscriptions` says who is suspended. The lanes of which only this knew until now."""
        written, self._unwritten = self._unwritten, set()
        return written

    def holds(self, lane: Lane, now_ms: int) -> bool:
        """Whether the lane is suspended."""
        suspended = lane.name in self._unwritten or self._subscriptions.suspended(lane.name)
        if lane.suspended and not suspended:
            # Someone has resumed it: it is tried at once.
            self._endpoints.forgive(lane.endpoint, now_ms)
        lane.suspended = suspended
        return suspended
