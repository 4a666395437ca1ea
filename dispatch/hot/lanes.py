"""Lanes: one per subscription, so that order is kept within it and none waits behind another's.

Pure: no clock, no I/O. A lane is idle, ready or busy. `take` hands out the messages for one push and makes the lane
busy until `settle`: so there is never more than one push in flight per subscription, which is what keeps the order.
In a lane the messages of the highest priority leave first, and those of one priority in the order in which they came.
Ready lanes are served in turn: after each push a lane goes to the back of those of its own priority, so one with ten
thousand waiting messages does not delay one with a single message; every eighth turn is for the lowest priority. A lane
whose endpoint or host may have no further push waits until one of the pushes there has ended; the others pass it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from dispatch.delivery.capacity import InFlightLimiter, Limits, Scopes, scopes_of
from dispatch.delivery.turns import Turns
from dispatch.logs.parked import Delivery, Place
from topic_model.records.notifications import Notification
from topic_model.records.peers import MOST_TOGETHER
from topic_model.records.xml_ids import NAME, clash, xml_ids
from topic_model.subscriptions import DeliveryPolicy, Subscription


class Received(NamedTuple):
    """A notification, and where it was read: the partition and offset in the `notifications` log, and the batch. That
    is what a parked delivery is named by, with `parked_as` in the batch's place where there is one."""

    notification: Notification
    partition: int
    offset: int
    batch: int = 0
    parked_as: int | None = None

    def delivery(self, subscription_id: str) -> Delivery:
        """The name of its delivery to a subscription."""
        number = self.batch if self.parked_as is None else self.parked_as
        return Delivery(subscription_id, Place(number, self.partition, self.offset))


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How much may travel in one push; over a link it is MOST_TOGETHER messages."""

    max_messages: int
    max_bytes: int


_NOTHING: deque[Received] = deque()


class WaitingMessages:
    """What waits in a lane, all of one partition of the log and added in its order: a queue for each priority."""

    __slots__ = ("_class", "_count", "_highest", "_queues")

    def __init__(self) -> None:
        self._queues: dict[int, deque[Received]] = {}
        self._highest = _NOTHING  # of the queues, kept for it is asked for each message
        self._class = 0  # its priority
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, received: Received, priority: int) -> None:
        """It leaves behind those of this priority and of higher ones."""
        queue = self._queues.get(priority)
        if queue is None:
            queue = self._queues[priority] = deque()
            self._class = max(self._queues)
            self._highest = self._queues[self._class]
        queue.append(received)
        self._count += 1

    def first(self) -> Received:
        """The one that leaves next."""
        return self._highest[0]

    def pop(self) -> Received:
        """Remove and return the one that leaves next."""
        received = self._highest.popleft()
        self._count -= 1
        if not self._highest:
            del self._queues[self._class]
            if self._queues:
                self._class = max(self._queues)
                self._highest = self._queues[self._class]
        return received

    def drop_older(self, policy: DeliveryPolicy) -> list[Received]:
        """Remove and return what may be dropped, and of whose topic something newer of its priority waits."""
        dropped: list[Received] = []
        for queue in self._queues.values():
            newest = {each.notification.topic: each for each in queue}
            older = [
                each
                for each in queue
                if newest[each.notification.topic] is not each and policy.drops(each.notification.reliable)
            ]
            if older:
                gone = {id(each) for each in older}
                kept = [each for each in queue if id(each) not in gone]
                queue.clear()
                queue.extend(kept)
                dropped += older
        self._count -= len(dropped)
        return dropped

    def oldest(self) -> int:
        """The lowest offset."""
        return min(queue[0].offset for queue in self._queues.values())

    def drain(self) -> list[Received]:
        """Remove and return them all, in the order in which they came: so they are parked."""
        drained = sorted(chain.from_iterable(self._queues.values()), key=lambda each: each.offset)
        self._queues.clear()
        self._highest, self._count = _NOTHING, 0
        return drained


@dataclass(slots=True)
class Lane:
    """The waiting messages of one subscription; `put_off` says why they are not pushed, if that is so."""

    subscription: Subscription
    scopes: Scopes
    waiting: WaitingMessages = field(default_factory=WaitingMessages)
    put_off: str = ""

    def take(self, limits: LaneLimits) -> list[Received]:
        """Remove and return what travels in the next push: at least one message, whatever its size.

        wsnt:Notify can carry several, and a link many; a datagram, the raw and the legacy form carry one. No two with
        the same xml:id.
        """
        taken = [self.waiting.pop()]
        peer = self.subscription.peer
        most = limits.max_messages if peer is None else 1 if peer.datagrams == "only" else MOST_TOGETHER
        if self.subscription.form not in ("notify", "peer") or not self.waiting:
            return taken
        first = taken[0].notification
        size, ids = len(first.payload), xml_ids(first.payload, first.producer)
        while self.waiting and len(taken) < most:
            following = self.waiting.first().notification
            payload, producer = following.payload, following.producer
            size += len(payload)
            if size > limits.max_bytes:
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
        """Remove and return what may be dropped, and of whose topic something newer waits."""
        return self.waiting.drop_older(self.subscription.policy)


# What a worker may have under way at one endpoint and at one host unless said otherwise.
DEFAULT_LIMITS = Limits(per_endpoint=16, per_host=128)


class Lanes:
    """All lanes of one partition of a batch."""

    def __init__(self, limits: LaneLimits, in_flight: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._capacity = InFlightLimiter(in_flight)
        self._lanes: dict[str, Lane] = {}
        self._ready = Turns()
        self._next: deque[str] = deque()  # those whose turn had come already
        self._busy: dict[str, int] = {}  # with the lowest offset of the push
        self.size = 0
        """How many messages wait, without those under way."""

    def add(self, received: Received, subscription: Subscription) -> None:
        """Queue a notification for a subscription, behind those of its priority that were queued before."""
        lane = self._lanes.get(subscription.id)
        if lane is None:
            lane = self._lanes[subscription.id] = Lane(subscription, scopes_of(subscription.consumer.address))
        if not lane.waiting and subscription.id not in self._busy:
            self._ready.add(subscription.id, subscription.policy.priority)
        # What is timely is never pushed behind what is newer, whatever its priority; nor is what is in strict order.
        by_priority = subscription.policy.reliability != "timely" and not subscription.policy.strict
        lane.waiting.add(received, received.notification.priority if by_priority else 0)
        self.size += 1

    def take(self, look: Callable[[Lane], None] = lambda lane: None) -> tuple[Subscription, list[Received]] | None:
        """The next push, or None when no lane is ready. Its lane is busy until `settle`. `look` is called with the lane
        before, and may drop some of what waits."""
        while self._next or self._ready:
            name = self._next.popleft() if self._next else self._ready.take()
            lane = self._lanes.get(name)
            if lane is None or name in self._busy:
                continue  # it was drained before its turn came, and something was added since
            if not lane.waiting:
                # It was drained before its turn came, and may wait for its endpoint, too.
                del self._lanes[name]
                self._capacity.forget(name)
                self._go_on(self._capacity.pass_on(lane.scopes))
            elif self._capacity.wait(name, lane.scopes, lane.subscription.policy.priority):
                # It may have been this lane's turn at the host, while its endpoint is full.
                self._go_on(self._capacity.pass_on(lane.scopes[1:]))
            else:
                self._capacity.enter(lane.scopes)
                before = len(lane.waiting)
                look(lane)
                taken = lane.take(self._limits)
                self._busy[name] = min([each.offset for each in taken])
                self.size -= before - len(lane.waiting)
                return lane.subscription, taken
        return None

    def settle(self, subscription_id: str) -> bool:
        """The push of this lane has an outcome: the lane may go on. Whether it has anything to go on with."""
        del self._busy[subscription_id]
        lane = self._lanes[subscription_id]
        goes_on, priority = bool(lane.waiting), lane.subscription.policy.priority
        # Where others wait, it waits with them before there is room: else a lower one would have its place.
        awaited = goes_on and self._capacity.is_awaited(lane.scopes)
        if goes_on and not (awaited and self._capacity.wait(subscription_id, lane.scopes, priority)):
            self._ready.add(subscription_id, priority)
        if names := self._capacity.leave(lane.scopes):
            self._go_on(names)
        if not goes_on:
            del self._lanes[subscription_id]
        return goes_on

    def look(self, look: Callable[[Lane], None]) -> None:
        """Have all lanes looked at in which something waits; some of it may be dropped, but not all."""
        for lane in self._lanes.values():
            if lane.waiting:
                before = len(lane.waiting)
                look(lane)
                self.size -= before - len(lane.waiting)

    def waiting(self) -> Iterator[tuple[Subscription, int]]:
        """The subscriptions in whose lanes something waits, and how much."""
        for lane in self._lanes.values():
            if lane.waiting:
                yield lane.subscription, len(lane.waiting)

    def drain(self, subscription_id: str) -> list[Received]:
        """Remove and return all that still waits in a lane. When it has a push under way, `settle` is still due."""
        lane = self._lanes.get(subscription_id)
        if lane is None:
            return []
        drained = lane.waiting.drain()
        self.size -= len(drained)
        return drained

    def put_off(self, subscription_id: str, why: str) -> list[Received]:
        """What waits in a lane is not to be pushed: remove and return it. While a push of the lane is under way, it
        stays until that has an outcome, for whoever pushes it then might overtake that one; `why_put_off` is to be
        asked then."""
        if subscription_id not in self._busy:
            return self.drain(subscription_id)
        self._lanes[subscription_id].put_off = why
        return []

    def why_put_off(self, subscription_id: str) -> str:
        """Why what waits in a lane, whose push has an outcome now, is not pushed; empty when it is. To be asked before
        `settle`."""
        lane = self._lanes[subscription_id]
        why, lane.put_off = lane.put_off, ""
        return why

    def is_busy(self, subscription_id: str) -> bool:
        """Whether a push of this lane is under way."""
        return subscription_id in self._busy

    @property
    def busy(self) -> int:
        """How many pushes are under way."""
        return len(self._busy)

    def oldest(self) -> int | None:
        """The lowest offset of all that waits or is under way, of one partition of the log; None when nothing is.
        Costs a look at each lane."""
        waiting = (lane.waiting.oldest() for lane in self._lanes.values() if lane.waiting)
        return min(chain(waiting, self._busy.values()), default=None)

    def _go_on(self, names: list[str]) -> None:
        """These are next, for their turn had come already."""
        self._next.extendleft(names)

    @property
    def empty(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._lanes
