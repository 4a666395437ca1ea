"""Lanes: one per subscription; each keeps its order, and none waits for another. Pure: no clock, no I/O.

`take` returns the messages of one push, in flight until `settle`. A lane whose pushes carry several messages has one
push in flight, which keeps the order. A lane whose pushes carry one message keeps the order per topic: one push of each
topic, up to the number that its receiver answers in parallel. In a lane the highest priority leaves first, and equal
ones in the order of arrival.

Ready lanes take turns: after each push a lane goes to the end of those of its priority; every eighth turn is for the
lowest priority. A lane whose endpoint or host is at its limit waits until a push there ends.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from arborcast.dispatch.delivery.capacity import FairQueue, InFlightLimiter, Scopes, scopes_of
from arborcast.dispatch.delivery.settlement import Deferral
from arborcast.dispatch.hot.waiting import Received, WaitingByTopic, WaitingMessages
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.records.peers import MAX_PER_PUSH
from arborcast.topic_model.records.xml_ids import NAME, clash, xml_ids
from arborcast.topic_model.subscriptions import SEVERAL, Subscription
from arborcast.topic_model.topics import TopicPath

# A receiver that answers within this time may have one more push in flight; a tenth of a quick answer.
_AT_ONCE_S = 0.1


@dataclass(slots=True)
class Lane:
    """The waiting messages of one subscription; with a `deferral` they are not pushed. `in_flight` are its pushes, by
    topic if there may be several, with the lowest offset of each; `room` is their limit. `queued`: it is ready, or
    waits for its endpoint or host. `as_of` is the offset at which the subscription had this state."""

    subscription: Subscription
    as_of: int
    scopes: Scopes
    waiting: WaitingMessages | WaitingByTopic
    deferral: Deferral | None = None
    in_flight: dict[TopicPath | None, int] = field(default_factory=dict)
    room: int = 1
    queued: bool = False

    @property
    def ready(self) -> bool:
        """Whether the state of the lane permits one more push."""
        return len(self.in_flight) < self.room and self.deferral is None and self.waiting.is_ready()

    def takes(self, changed: Subscription, as_of: int) -> bool:
        """Whether waiting messages may be pushed by a changed state of the subscription: a later one (a message for
        many has an earlier one when it joins), to the same address, in the same order."""
        if as_of < self.as_of:
            return False
        by_topic = isinstance(self.waiting, WaitingByTopic)
        return changed.consumer.address == self.subscription.consumer.address and _may_overtake(changed) == by_topic

    def begin(self, taken: Sequence[Received]) -> None:
        topic = taken[0].notification.topic if isinstance(self.waiting, WaitingByTopic) else None
        self.in_flight[topic] = min([each.offset for each in taken])

    def settle(self, topic: TopicPath) -> None:
        if isinstance(self.waiting, WaitingByTopic):
            self.waiting.settle(topic)
            del self.in_flight[topic]
        else:
            self.in_flight.clear()

    def answered(self, took: bool, duration_s: float, most: int) -> None:
        """The time and success of a push. Each quick one raises the limit by one, up to `most`; a slow one lowers it, a
        failure sets it to one."""
        if not took:
            self.room = 1
        elif duration_s >= _AT_ONCE_S:
            self.room = max(1, self.room - 1)
        elif isinstance(self.waiting, WaitingByTopic):
            self.room = min(self.room + 1, most)

    def take(self, push: PushSettings) -> list[Received]:
        """Remove and return the messages of the next push: at least one, whatever its size. The forms in
        SEVERAL can have several, over a link MAX_PER_PUSH, a datagram has one. No two with the same xml:id."""
        taken = [self.waiting.pop()]
        peer = self.subscription.peer
        most = push.max_notify_messages if peer is None else 1 if peer.datagrams == "only" else MAX_PER_PUSH
        if self.subscription.form not in SEVERAL or not self.waiting:
            return taken
        first = taken[0].notification
        size, ids = len(first.payload), xml_ids(first.payload, first.producer)
        while self.waiting and len(taken) < most:
            following = self.waiting.first().notification
            payload, producer = following.payload, following.producer
            size += len(payload)
            if size > push.max_notify_bytes:
                break
            # From the end, which takes half the time here.
            if payload.rfind(NAME) >= 0 or (producer and NAME in producer):
                more = xml_ids(payload, producer)
                if clash(more, ids):
                    break
                ids |= more
            taken.append(self.waiting.pop())
        return taken

    def drop_older(self) -> list[Received]:
        """Remove and return timely messages with a newer one of their topic behind them."""
        return self.waiting.drop_older(self.subscription.policy) if isinstance(self.waiting, WaitingMessages) else []


def _may_overtake(subscription: Subscription) -> bool:
    """Whether its topics are independent: not if messages share pushes, in strict order, or if they are timely (one
    push in flight during a trial)."""
    policy = subscription.policy
    return subscription.form not in SEVERAL and not policy.strict and policy.reliability != "timely"


class FanOuts:
    """Notifications with many recipients, each with the lanes that it has not joined: a queued delivery costs some
    hundred bytes, so they join only shortly before their push. The first notification of a topic joins all its lanes
    before the next one; topics take turns."""

    def __init__(self) -> None:
        self._topics: OrderedDict[TopicPath, deque[tuple[Received, dict[str, Subscription]]]] = OrderedDict()
        self.size = 0
        """Deliveries, and notifications."""
        self.notifications = 0

    def __contains__(self, topic: object) -> bool:
        """Whether a notification on this topic has lanes to join."""
        return topic in self._topics

    def add(self, received: Received, subscriptions: Iterable[Subscription]) -> None:
        """Add a notification for the lanes of these; it joins them in reverse order."""
        remaining = {each.id: each for each in subscriptions}
        if remaining:
            self._topics.setdefault(received.notification.topic, deque()).append((received, remaining))
            self.size += len(remaining)
            self.notifications += 1

    def change(self, changed: Subscription) -> None:
        """Set the current state of a subscription, in which the notifications join its lane: it may be paused, or have
        other credentials."""
        for queue in self._topics.values():
            for _, remaining in queue:
                if changed.id in remaining:
                    remaining[changed.id] = changed

    def take(self) -> tuple[Subscription, Received]:
        """The next delivery; there must be one."""
        topic, queue = next(iter(self._topics.items()))
        received, remaining = queue[0]
        _, subscription = remaining.popitem()
        self.size -= 1
        self._topics.move_to_end(topic)
        if not remaining:
            queue.popleft()
            self.notifications -= 1
            if not queue:
                del self._topics[topic]
        return subscription, received

    def has_newer(self, topic: TopicPath, subscription_id: str) -> bool:
        """Whether a notification on this topic has still to join the lane of this subscription."""
        return any(subscription_id in remaining for _, remaining in self._topics.get(topic, ()))

    def oldest(self) -> Iterator[int]:
        """The lowest offset of each topic."""
        return (queue[0][0].offset for queue in self._topics.values())


class Lanes:
    """All lanes of one partition, and the notifications that join them."""

    def __init__(self, push: PushSettings) -> None:
        self._push = push
        self._capacity = InFlightLimiter(push)
        self._lanes: dict[str, Lane] = {}
        self._ready = FairQueue()
        self._next: deque[str] = deque()  # lanes before their turn
        self._waiting: dict[str, Lane] = {}  # lanes with waiting messages
        self.fan_outs = FanOuts()
        self.busy = 0
        """The number of lanes with pushes in flight."""
        self.size = 0
        """The number of waiting messages, without those in flight."""

    def add(self, received: Received, subscription: Subscription) -> None:
        """Queue a notification for a subscription, behind earlier ones of its priority."""
        lane = self._lanes.get(subscription.id)
        if lane is None:
            waiting = WaitingByTopic() if _may_overtake(subscription) else WaitingMessages()
            lane = Lane(subscription, received.offset, scopes_of(subscription.consumer.address), waiting)
            self._lanes[subscription.id] = lane
        elif lane.subscription is not subscription and lane.takes(subscription, received.offset):
            # Under steady load a lane is never empty, and would sign with a former secret for days.
            lane.subscription, lane.as_of = subscription, received.offset
        # Timely messages are never pushed after newer ones, whatever their priority; nor are those in strict order.
        by_priority = subscription.policy.reliability != "timely" and not subscription.policy.strict
        lane.waiting.add(received, received.notification.priority if by_priority else 0)
        self._waiting[subscription.id] = lane
        self.size += 1
        if not lane.queued and lane.ready:
            self._queue(lane)

    def take(self, prune: Callable[[Lane], None] = lambda lane: None) -> tuple[Subscription, list[Received]] | None:
        """The next push, or None without a ready lane. It is in flight until `settle`. `prune` is called with the lane
        before and may drop messages."""
        while self._next or self._ready:
            name = self._next.popleft() if self._next else self._ready.take()
            lane = self._lanes[name]
            lane.queued = False
            if not lane.ready:
                # It was drained or deferred before its turn, and may have a slot at its endpoint.
                self._next.extendleft(self._capacity.pass_on(lane.scopes))
                if not lane.waiting and not lane.in_flight:
                    del self._lanes[name]
            elif self._capacity.wait(name, lane.scopes, lane.subscription.policy.priority):
                lane.queued = True
                # It may have a slot of its host, while its endpoint is full.
                self._next.extendleft(self._capacity.pass_on(lane.scopes[1:]))
            else:
                self._capacity.enter(lane.scopes)
                before = len(lane.waiting)
                prune(lane)
                taken = lane.take(self._push)
                self.busy += not lane.in_flight
                lane.begin(taken)
                remaining = len(lane.waiting)
                self.size -= before - remaining
                if not remaining:
                    del self._waiting[name]
                if lane.ready:
                    self._queue(lane)
                return lane.subscription, taken
        return None

    def answered(self, subscription_id: str, took: bool, duration_s: float) -> None:
        """The time and success of a push of this lane, before `settle`."""
        self._lanes[subscription_id].answered(took, duration_s, self._push.max_in_flight_per_endpoint)

    def settle(self, subscription_id: str, topic: TopicPath) -> bool:
        """The push of this lane with this topic, or its only one, has an outcome. Returns whether messages wait or are
        in flight."""
        lane = self._lanes[subscription_id]
        lane.settle(topic)
        self.busy -= not lane.in_flight
        priority, queues = lane.subscription.policy.priority, not lane.queued and lane.ready
        # It joins other waiting lanes before the slot is free, or a lower priority would get that.
        if queues and self._capacity.is_awaited(lane.scopes):
            lane.queued = self._capacity.wait(subscription_id, lane.scopes, priority)
        if queues and not lane.queued:
            self._queue(lane)
        self._next.extendleft(self._capacity.leave(lane.scopes))
        continues = bool(lane.in_flight or lane.waiting)
        if not continues and not lane.queued:
            del self._lanes[subscription_id]
        return continues

    def prune(self, prune: Callable[[Lane], None]) -> None:
        """Call `prune` with all lanes with waiting messages; it may drop some of these, but not all."""
        for lane in self._waiting.values():
            before = len(lane.waiting)
            prune(lane)
            self.size -= before - len(lane.waiting)

    def waiting(self) -> Iterator[tuple[Subscription, int]]:
        """The subscriptions with waiting messages, and the numbers of these."""
        for lane in self._waiting.values():
            yield lane.subscription, len(lane.waiting)

    @property
    def waiting_lanes(self) -> int:
        """The number of lanes in which messages wait."""
        return len(self._waiting)

    def drain(self, subscription_id: str) -> list[Received]:
        """Remove and return the waiting messages of a lane. A push in flight is settled later."""
        lane = self._lanes.get(subscription_id)
        if lane is None:
            return []
        drained = lane.waiting.drain()
        self._waiting.pop(subscription_id, None)
        self.size -= len(drained)
        return drained

    def defer(self, subscription_id: str, deferral: Deferral) -> list[Received]:
        """Defer a lane: remove and return its waiting messages. While pushes of the lane are in flight it keeps them,
        since the redelivery might overtake these pushes; see `take_deferral`."""
        if not self.is_busy(subscription_id):
            return self.drain(subscription_id)
        lane = self._lanes[subscription_id]
        if lane.deferral is None or lane.deferral.verdict.state != "cancelled":
            lane.deferral = deferral
        return []

    def take_deferral(self, subscription_id: str) -> Deferral | None:
        """The deferral of a lane whose last push in flight has an outcome; None if it is not deferred, or other pushes
        are in flight. Called before `settle`."""
        lane = self._lanes[subscription_id]
        if len(lane.in_flight) > 1:
            return None
        deferral, lane.deferral = lane.deferral, None
        return deferral

    def is_busy(self, subscription_id: str) -> bool:
        return self.in_flight(subscription_id) > 0

    def in_flight(self, subscription_id: str) -> int:
        """The number of pushes of this lane in flight."""
        lane = self._lanes.get(subscription_id)
        return 0 if lane is None else len(lane.in_flight)

    def leave_fan_outs(self) -> int | None:
        """Remove all deliveries that have not joined their lanes; returns their lowest offset, None without any."""
        left, self.fan_outs = min(self.fan_outs.oldest(), default=None), FanOuts()
        return left

    def oldest(self) -> int | None:
        """The lowest offset of the messages that wait, join later or are in flight; None without any. Examines each
        lane."""
        waiting = (lane.waiting.oldest() for lane in self._waiting.values())
        in_flight = chain.from_iterable(lane.in_flight.values() for lane in self._lanes.values())
        return min(chain(waiting, in_flight, self.fan_outs.oldest()), default=None)

    def _queue(self, lane: Lane) -> None:
        lane.queued = True
        self._ready.add(lane.subscription.id, lane.subscription.policy.priority)

    @property
    def empty(self) -> bool:
        """Whether no message waits, joins later or is in flight."""
        return not (self._lanes or self.fan_outs.size)
