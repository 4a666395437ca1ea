"""Lanes: one queue per subscription, so that order is kept within it and nobody waits behind somebody else's queue.

Pure: no clock, no I/O. A lane is idle, ready or busy. `take` hands out the messages for one push and makes the lane
busy until `settle`: so there is never more than one push in flight per subscription, which is what keeps the order.
Ready lanes are served in turn: after each push a lane goes to the back, so one with ten thousand waiting messages does
not delay one with a single message. A lane whose endpoint or host has no room for another push is held until one of
the pushes there has ended; the others pass it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dispatch.delivery.capacity import InFlightLimiter, Limits, Scope, scopes_of
from topic_model.records.notifications import Notification
from topic_model.subscriptions import Subscription


class Received(NamedTuple):
    """A notification, and where in the `notifications` log it was read: that is what a parked delivery is named by."""

    notification: Notification
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How much may travel in one push."""

    max_messages: int
    max_bytes: int


@dataclass(slots=True)
class Lane:
    """The waiting messages of one subscription, oldest first."""

    subscription: Subscription
    scopes: tuple[Scope, Scope]
    waiting: deque[Received] = field(default_factory=deque)

    def take(self, limits: LaneLimits) -> list[Received]:
        """Remove and return what travels in the next push: at least one message, whatever its size.

        Only wsnt:Notify can carry several; the raw and the legacy form carry one.
        """
        taken = [self.waiting.popleft()]
        if self.subscription.form != "notify":
            return taken
        size = len(taken[0].notification.payload)
        while self.waiting and len(taken) < limits.max_messages:
            size += len(self.waiting[0].notification.payload)
            if size > limits.max_bytes:
                break
            taken.append(self.waiting.popleft())
        return taken


# What a worker may have under way at one endpoint and at one host unless said otherwise.
DEFAULT_LIMITS = Limits(per_endpoint=16, per_host=128)


class Lanes:
    """All lanes of one partition of a batch."""

    def __init__(self, limits: LaneLimits, in_flight: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._room = InFlightLimiter(in_flight)
        self._held: dict[Scope, deque[Lane]] = {}
        self._lanes: dict[str, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._busy: set[str] = set()

    def add(self, received: Received, subscription: Subscription) -> None:
        """Queue a notification for a subscription, behind those queued before."""
        lane = self._lanes.get(subscription.id)
        if lane is None:
            lane = self._lanes[subscription.id] = Lane(subscription, scopes_of(subscription.consumer.address))
        if not lane.waiting and subscription.id not in self._busy:
            self._ready.append(lane)
        lane.waiting.append(received)

    def take(self) -> tuple[Subscription, list[Received]] | None:
        """The next push, or None when no lane is ready. Its lane is busy until `settle`."""
        while self._ready:
            lane = self._ready.popleft()
            if not lane.waiting:
                self._drop(lane)
            elif not self._hold(lane):
                self._busy.add(lane.subscription.id)
                self._room.enter(lane.scopes)
                return lane.subscription, lane.take(self._limits)
        return None

    def settle(self, subscription_id: str) -> bool:
        """The push of this lane has an outcome: the lane may go on. Whether it has anything to go on with."""
        self._busy.remove(subscription_id)
        lane = self._lanes[subscription_id]
        self._room.leave(lane.scopes)
        if self._held:
            for scope in lane.scopes:
                self._release(scope)
        if lane.waiting:
            self._ready.append(lane)
            return True
        del self._lanes[subscription_id]
        return False

    def waiting(self) -> Iterator[tuple[Subscription, int]]:
        """The subscriptions in whose lanes something waits, and how much."""
        for lane in self._lanes.values():
            if lane.waiting:
                yield lane.subscription, len(lane.waiting)

    def drain(self, subscription_id: str) -> list[Received]:
        """Remove and return all that still waits in a lane. When it has a push under way, `settle` is still due."""
        lane = self._lanes[subscription_id]
        drained = list(lane.waiting)
        lane.waiting.clear()
        return drained

    def _drop(self, lane: Lane) -> None:
        """A lane was drained when its turn had not come. If it was held, the room that it was given is another's."""
        del self._lanes[lane.subscription.id]
        for scope in lane.scopes:
            if not self._room.full(scope):
                self._release(scope)

    def _hold(self, lane: Lane) -> bool:
        """Keep the lane aside if there is no room for it; whether that was so."""
        endpoint, host = lane.scopes
        if self._room.full(endpoint):
            self._held.setdefault(endpoint, deque()).append(lane)
            if not self._room.full(host):
                self._release(host)  # it may have been this lane's turn there: the next one gets it
            return True
        if self._room.full(host):
            self._held.setdefault(host, deque()).append(lane)
            return True
        return False

    def _release(self, scope: Scope) -> None:
        """The lane that was held here for the longest is the next one, for its turn had come already."""
        held = self._held.get(scope)
        if held is not None:
            self._ready.appendleft(held.popleft())
            if not held:
                del self._held[scope]

    @property
    def empty(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._lanes
