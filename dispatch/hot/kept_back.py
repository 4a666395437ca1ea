"""What comes for a lane that is held, kept back for a moment before it is parked as well.

The redelivery is through with what was parked some tenths of a second later, and then the lane is free. With messages
that keep coming, each parked because of the one before it, it never would be: a receiver that failed once would get all
of them through the redelivery for as long as there is no pause. This is the pause. What is urgent does not wait for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from dispatch.hot.waiting import Received
from topic_model.subscriptions import Subscription

# At first; twice as long each time that the lane was not free by then.
_FIRST_S = 0.25
_LONGEST_S = 2.0


@dataclass
class _Lane:
    subscription: Subscription
    until: float
    patience_s: float
    kept: list[Received] = field(default_factory=list)


class KeptBack:
    """Of one task, by subscription: `room` messages in all."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._lanes: dict[str, _Lane] = {}
        self.size = 0

    def keep(self, subscription: Subscription, received: Received, now: float) -> bool:
        """Keep it, if there is room; else it is to be parked, behind what `drain` gives."""
        if self.size >= self._room:
            return False
        lane = self._lanes.get(subscription.id)
        if lane is None:
            lane = self._lanes[subscription.id] = _Lane(subscription, now + _FIRST_S, _FIRST_S)
        elif not lane.kept:
            lane.subscription, lane.until = subscription, now + lane.patience_s
        lane.kept.append(received)
        self.size += 1
        return True

    def drain(self, subscription_id: str) -> list[Received]:
        """Remove and return what is kept of a lane."""
        lane = self._lanes.get(subscription_id)
        if lane is None:
            return []
        kept, lane.kept = lane.kept, []
        self.size -= len(kept)
        return kept

    def look(self, held: Container[str], now: float) -> Iterator[tuple[Subscription, list[Received]]]:
        """Remove and return, lane by lane, what need not be kept any longer: its lane is free, or it has waited."""
        for name, lane in list(self._lanes.items()):
            free = name not in held
            if lane.kept and (free or now >= lane.until):
                lane.patience_s = min(2 * lane.patience_s, _LONGEST_S)
                yield lane.subscription, self.drain(name)
            if free:
                del self._lanes[name]

    def oldest(self) -> int | None:
        """The lowest offset of what is kept."""
        return min((each.offset for lane in self._lanes.values() for each in lane.kept), default=None)
