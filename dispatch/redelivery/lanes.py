"""The lanes with parked deliveries: their turns, and which of them are held in the workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from arborcast.core.timer_queue import TimerQueue
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.verdict import RetryPolicy
from arborcast.dispatch.logs.held_lanes import HeldLanes
from arborcast.dispatch.logs.parked import Delivery
from arborcast.dispatch.matching.view import RoutingView
from arborcast.dispatch.redelivery.parked_store import ParkedStore, WaitingDelivery
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.records.peers import MAX_PER_PUSH
from arborcast.topic_model.records.xml_ids import NO_IDS, clash, xml_ids
from arborcast.topic_model.subscriptions import SEVERAL, Subscription


@dataclass(slots=True)
class RetryLane:
    """The waiting deliveries of one subscription. `flight` are those with a push in flight, `pushing` whether one of
    these pushes has untried ones (in a strict lane, any): there is one such push at a time. `subscription` is as of
    its last turn, from which `policy` and `envelope` are made; the envelope exists only during pushes. No delivery
    expires before `expires_ms`."""

    name: str
    endpoint: str = ""
    flight: set[Delivery] = field(default_factory=set)
    pushing: bool = False
    failing: bool = False
    suspended: bool = False
    subscription: Subscription | None = None
    policy: RetryPolicy | None = None
    envelope: Envelope | None = None
    expires_ms: int = 0


class DueDeliveries:
    """Queries the store, without changes."""

    def __init__(self, store: ParkedStore, push: PushSettings) -> None:
        self._store = store
        self._push = push

    def of(self, lane: RetryLane, subscription: Subscription, now_ms: int, probing: bool) -> list[WaitingDelivery]:
        """The deliveries to push now, empty if none is due; `probing`: for a probe."""
        if subscription.policy.strict:
            # The first delivery may be in flight. Another engine takes many, and all or none.
            most = 1 if probing or subscription.peer is None else MAX_PER_PUSH
            heads = [] if lane.flight else self._store.first(lane.name, most)
            # A push of a worker that may still be answered, or has a later result, ends separately.
            heads = list(takewhile(lambda each: each.tries.awaits == heads[0].tries.awaits, heads))
            if heads and heads[0].tries.was_refused:
                heads = heads[:1]  # with others: one of them may be to blame
            return self._same_push(heads) if heads and self._is_due(lane, heads[0], now_ms) else []
        if not lane.pushing and not self._store.in_flight(lane.name):
            several = subscription.form in SEVERAL and subscription.peer is None
            together = self._push.max_notify_messages if several and not probing else 1
            untried = self._same_push(self._store.untried(lane.name, together))
            if untried:
                return untried
        if probing:
            # Not always the same delivery: the endpoint may fail because of it.
            least = self._store.least_tried(lane.name, now_ms, lane.flight)
            return [least] if least is not None else []
        return self._store.due(lane.name, now_ms, 1, lane.flight)

    def _is_due(self, lane: RetryLane, first: WaitingDelivery, now_ms: int) -> bool:
        """Whether the first delivery of a strict lane is due, or one that was pushed with it: these are pushed together
        again."""
        due_ms = self._store.next_due_ms(lane.name)
        return first.tries.is_due(now_ms) or (due_ms is not None and due_ms <= now_ms)

    def has_due(self, lane: RetryLane, subscription: Subscription) -> bool:
        """Whether other deliveries may be pushed during the first attempt of some."""
        return not subscription.policy.strict and self._store.next_due_ms(lane.name, lane.flight) is not None

    def _same_push(self, head: list[WaitingDelivery]) -> list[WaitingDelivery]:
        if len(head) < 2:
            return head
        size, ids = 0, NO_IDS
        for count, waiting in enumerate(head):
            payload, producer = waiting.notification.payload, waiting.notification.producer
            size += len(payload)
            more = xml_ids(payload, producer)
            if count and (size > self._push.max_notify_bytes or clash(more, ids)):
                return head[:count]
            ids |= more
        return head


class RetryLanes(dict[str, RetryLane]):
    """The lanes with waiting deliveries, by name. Used by one thread. Only the lanes are in memory, a few hundred bytes
    each."""

    def __init__(self, store: ParkedStore, held: HeldLanes, subscriptions: RoutingView) -> None:
        super().__init__()
        self._store = store
        self._held = held
        self._subscriptions = subscriptions
        self.turns: TimerQueue[str] = TimerQueue()
        """The time of the next turn of each lane."""

    def found(self, name: str, now_ms: int) -> None:
        lane = self.get(name)
        if lane is None:
            lane = self[name] = RetryLane(name)
        lane.expires_ms = 0
        if self._held.is_found(name):
            # The lane has its turn already, but this delivery may be older.
            if lane.policy is not None:
                expires_ms = self._store.expires_ms(name, lane.policy.lifespan_ms, lane.flight)
                if expires_ms is not None:
                    self.turns.set_by(name, expires_ms)
            if lane.subscription is not None and lane.subscription.in_turn:
                # A batch may have tried this delivery, and it may be due before the others.
                due_ms = self._store.next_due_ms(name, lane.flight)
                if due_ms is not None:
                    self.turns.set_by(name, max(due_ms, now_ms))
            return
        if self._holds(name):
            self._held.found(name)
        self.turns.set(name, now_ms)

    def release(self, lane: RetryLane) -> None:
        """Free a lane for first attempts when all its deliveries were tried, with an outcome; that of a link when it is
        empty."""
        if self._held.is_found(lane.name) and not self._holds(lane.name):
            self._held.drained(lane.name)

    def _holds(self, name: str) -> bool:
        if self._store.has_untried(name) or self._store.in_flight(name):
            return True
        subscription = self._subscriptions.subscription(name)
        return subscription is not None and subscription.in_turn and self._store.next_due_ms(name) is not None

    def forget(self, lane: RetryLane) -> None:
        self.release(lane)
        del self[lane.name]
        self.turns.cancel(lane.name)

    def wake(self, names: Iterable[str], now_ms: int) -> None:
        for name in names:
            self.turns.set(name, now_ms)
