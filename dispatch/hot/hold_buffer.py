"""Messages for held lanes, deferred for a moment before they are parked.

The redelivery completes parked messages some tenths of a second later, and then the lane is free. Under steady traffic
each message would be parked because of the previous one, and a receiver that failed once would be served by the
redelivery until a pause. This buffer is the pause. Urgent messages are not deferred.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from arborcast.core.backoff import Backoff
from arborcast.dispatch.hot.waiting import Received
from arborcast.topic_model.subscriptions import Subscription

# Each time the lane is still held after the pause, the next pause is longer.
_PAUSE = Backoff(0.25, 2.0)

# Lanes without deferred messages that one `release` examines; free ones are removed.
_EXAMINED = 16


@dataclass
class _Lane:
    subscription: Subscription
    until: float = 0.0
    pauses: int = 1
    messages: list[Received] = field(default_factory=list)


class HoldBuffer:
    """The buffer of one task, by subscription, for `room` messages in all."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._lanes: dict[str, _Lane] = {}  # with deferred messages
        self._patient: OrderedDict[str, _Lane] = OrderedDict()  # the others that were held when last examined
        self.size = 0

    @property
    def examined(self) -> int:
        """The number of lanes that `release` examines."""
        return len(self._lanes) + len(self._patient)

    def add(self, subscription: Subscription, received: Received, now: float) -> bool:
        """Defer a message; False without room: then it is parked, behind the messages of `drain`."""
        if self.size >= self._room:
            return False
        lane = self._lanes.get(subscription.id)
        if lane is None:
            lane = self._patient.pop(subscription.id, None) or _Lane(subscription)
            lane.subscription, lane.until = subscription, now + _PAUSE.after(lane.pauses)
            self._lanes[subscription.id] = lane
        lane.messages.append(received)
        self.size += 1
        return True

    def drain(self, subscription_id: str) -> list[Received]:
        """Remove and return the deferred messages of a lane."""
        lane = self._lanes.pop(subscription_id, None)
        if lane is None:
            return []
        self._patient[subscription_id] = lane
        messages, lane.messages = lane.messages, []
        self.size -= len(messages)
        return messages

    def release(self, held: Container[str], now: float) -> Iterator[tuple[Subscription, list[Received]]]:
        """Remove and return, lane by lane, messages whose lane is free or whose pause is over. Examines the lanes with
        deferred messages and some of the others."""
        for name, lane in list(self._lanes.items()):
            if name not in held or now >= lane.until:
                lane.pauses += 1
                yield lane.subscription, self.drain(name)
        for _ in range(min(_EXAMINED, len(self._patient))):
            name, lane = self._patient.popitem(last=False)
            if name in held:
                self._patient[name] = lane

    def oldest(self) -> int | None:
        """The lowest offset."""
        return min((each.offset for lane in self._lanes.values() for each in lane.messages), default=None)
