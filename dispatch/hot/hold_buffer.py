"""Messages for held lanes, kept for a moment before they are parked.

The redelivery completes parked messages some tenths of a second later, and then the lane is free. Under steady traffic
each message would be parked because of the one before, and a receiver that failed once would be served by the
redelivery until a pause. This buffer is the pause. Urgent messages are not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from arborcast.core.backoff import Backoff
from arborcast.dispatch.hot.waiting import Received
from arborcast.topic_model.subscriptions import Subscription

# Each time that the lane is still held after the pause the next one is longer.
_PAUSE = Backoff(0.25, 2.0)

# Lanes without kept messages that are checked per look; free ones are removed.
_LOOKS = 16


@dataclass
class _Lane:
    subscription: Subscription
    until: float = 0.0
    pauses: int = 1
    kept: list[Received] = field(default_factory=list)


class HoldBuffer:
    """The buffer of one task, by subscription, for `room` messages in all."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._lanes: dict[str, _Lane] = {}  # of which something is kept
        self._patient: OrderedDict[str, _Lane] = OrderedDict()  # the others that were not free when last looked at
        self.size = 0

    @property
    def known(self) -> int:
        """The number of lanes that `look` looks at."""
        return len(self._lanes) + len(self._patient)

    def keep(self, subscription: Subscription, received: Received, now: float) -> bool:
        """Keep it, if there is room; else it is to be parked, behind what `drain` gives."""
        if self.size >= self._room:
            return False
        lane = self._lanes.get(subscription.id)
        if lane is None:
            lane = self._patient.pop(subscription.id, None) or _Lane(subscription)
            lane.subscription, lane.until = subscription, now + _PAUSE.after(lane.pauses)
            self._lanes[subscription.id] = lane
        lane.kept.append(received)
        self.size += 1
        return True

    def drain(self, subscription_id: str) -> list[Received]:
        """Remove and return the kept messages of a lane."""
        lane = self._lanes.pop(subscription_id, None)
        if lane is None:
            return []
        self._patient[subscription_id] = lane
        kept, lane.kept = lane.kept, []
        self.size -= len(kept)
        return kept

    def look(self, held: Container[str], now: float) -> Iterator[tuple[Subscription, list[Received]]]:
        """Remove and return, lane by lane, messages whose lane is free or whose time is over. Examines the lanes with
        kept messages and some of the others."""
        for name, lane in list(self._lanes.items()):
            if name not in held or now >= lane.until:
                lane.pauses += 1
                yield lane.subscription, self.drain(name)
        for _ in range(min(_LOOKS, len(self._patient))):
            name, lane = self._patient.popitem(last=False)
            if name in held:
                self._patient[name] = lane

    def oldest(self) -> int | None:
        """The lowest offset."""
        return min((each.offset for lane in self._lanes.values() for each in lane.kept), default=None)
