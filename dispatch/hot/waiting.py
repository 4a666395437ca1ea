"""The waiting messages of a lane, in the order in which they leave. Pure."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple

from arborcast.dispatch.delivery.settlement import UNTRIED
from arborcast.dispatch.logs.parked import Delivery, Place, Tries
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryPolicy
from arborcast.topic_model.topics import TopicPath


class Received(NamedTuple):
    """A notification with its place: the partition and offset in the `notifications` log, and the batch, or `parked_as`
    instead of it. The place identifies a parked delivery."""

    notification: Notification
    partition: int
    offset: int
    batch: int = 0
    parked_as: int | None = None

    @property
    def tries(self) -> Tries:
        return UNTRIED

    def delivery(self, subscription_id: str) -> Delivery:
        number = self.batch if self.parked_as is None else self.parked_as
        return Delivery(subscription_id, Place(number, self.partition, self.offset))


_NOTHING: deque[Received] = deque()


class WaitingMessages:
    """The waiting messages of a lane, of one partition and in its order: a queue for each priority."""

    __slots__ = ("_added", "_count", "_highest", "_queues", "priority")

    def __init__(self) -> None:
        self._queues: dict[int, deque[Received]] = {}
        self._highest = _NOTHING  # of the queues: it is read for each message
        self.priority = 0  # of this queue
        self._count = 0
        self._added = False  # since the last `drop_older`

    def __len__(self) -> int:
        return self._count

    def is_ready(self) -> bool:
        return self._count > 0

    def add(self, received: Received, priority: int) -> None:
        """Add a message, behind those of this priority and of higher ones."""
        queue = self._queues.get(priority)
        if queue is None:
            queue = self._queues[priority] = deque()
            self.priority = max(self._queues)
            self._highest = self._queues[self.priority]
        queue.append(received)
        self._count += 1
        self._added = True

    def first(self) -> Received:
        return self._highest[0]

    def pop(self) -> Received:
        received = self._highest.popleft()
        self._count -= 1
        if not self._highest:
            del self._queues[self.priority]
            if self._queues:
                self.priority = max(self._queues)
                self._highest = self._queues[self.priority]
        return received

    def drop_older(self, policy: DeliveryPolicy) -> list[Received]:
        """Remove and return messages that may be dropped, with a newer one of their topic and priority."""
        dropped: list[Received] = []
        if not self._added:
            return dropped  # otherwise each push of a lane with many topics would examine all of them
        self._added = False
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
        """The lowest offset. A message for many subscriptions may join behind later ones of other topics."""
        return min(each.offset for each in chain.from_iterable(self._queues.values()))

    def drain(self) -> list[Received]:
        """Remove and return all messages in the order of arrival, for parking."""
        drained = sorted(chain.from_iterable(self._queues.values()), key=lambda each: each.offset)
        self._queues.clear()
        self._highest, self._count = _NOTHING, 0
        return drained


class WaitingByTopic:
    """The waiting messages of a lane with independent topics: each waits for the push of its own topic only."""

    __slots__ = ("_count", "_heads", "_in_flight", "_topics")

    def __init__(self) -> None:
        self._topics: dict[TopicPath, WaitingMessages] = {}
        self._in_flight: set[TopicPath] = set()
        # The first message of each topic without a push in flight, by priority and offset; also obsolete entries.
        self._heads: list[tuple[int, int, TopicPath]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, received: Received, priority: int) -> None:
        topic = received.notification.topic
        waiting = self._topics.get(topic)
        if waiting is None:
            waiting = self._topics[topic] = WaitingMessages()
        waiting.add(received, priority)
        self._count += 1
        if waiting.first() is received and topic not in self._in_flight:
            heappush(self._heads, (-priority, received.offset, topic))

    def is_ready(self) -> bool:
        """Whether a message waits whose topic has no push in flight."""
        while self._heads:
            _, offset, topic = self._heads[0]
            waiting = self._topics.get(topic)
            if waiting is not None and topic not in self._in_flight and waiting.first().offset == offset:
                return True
            heappop(self._heads)
        return False

    def first(self) -> Received:
        """The next message; only if `is_ready`."""
        return self._topics[self._heads[0][2]].first()

    def pop(self) -> Received:
        """Remove and return the next message. Its topic waits until `settle`."""
        _, _, topic = heappop(self._heads)
        self._in_flight.add(topic)
        waiting = self._topics[topic]
        received = waiting.pop()
        self._count -= 1
        if not waiting:
            del self._topics[topic]
        return received

    def settle(self, topic: TopicPath) -> None:
        """The push of this topic has an outcome."""
        self._in_flight.discard(topic)
        waiting = self._topics.get(topic)
        if waiting is not None:
            heappush(self._heads, (-waiting.priority, waiting.first().offset, topic))

    def oldest(self) -> int:
        return min(each.oldest() for each in self._topics.values())

    def drain(self) -> list[Received]:
        drained = sorted(chain.from_iterable(each.drain() for each in self._topics.values()), key=lambda it: it.offset)
        self._topics.clear()
        self._heads.clear()
        self._count = 0
        return drained
