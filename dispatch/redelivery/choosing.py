"""What the next push of a lane carries."""

from __future__ import annotations

from dispatch.redelivery.lane import Lane
from dispatch.redelivery.parked_store import ParkedStore, Waiting
from dispatch.settings import PushSettings
from topic_model.subscriptions import Subscription


class Choice:
    """Asks the store, changes nothing."""

    def __init__(self, store: ParkedStore, push: PushSettings) -> None:
        self._store = store
        self._push = push

    def of(self, lane: Lane, subscription: Subscription, now_ms: int, probing: bool) -> list[Waiting]:
        """What is to be pushed now, nothing when nothing is due; `probing` says whether it is to be a probe."""
        if subscription.policy.strict:
            # Whatever has its push under way may be the first.
            first = None if lane.flight else self._store.first(lane.name)
            return [first] if first is not None and first.tries.is_due(now_ms) else []
        if not lane.pushing:
            together = 1 if probing or subscription.form != "notify" else self._push.max_notify_messages
            untried = self._travelling(self._store.untried(lane.name, together))
            if untried:
                return untried
        if probing:
            # Not always the same one: it may be what the endpoint fails at.
            least = self._store.least_tried(lane.name, now_ms, lane.flight)
            return [least] if least is not None else []
        return self._store.due(lane.name, now_ms, 1, lane.flight)

    def beside(self, lane: Lane, subscription: Subscription) -> bool:
        """Whether something in it may be pushed while the first attempt of others is under way."""
        return not subscription.policy.strict and self._store.next_due_ms(lane.name, lane.flight) is not None

    def _travelling(self, head: list[Waiting]) -> list[Waiting]:
        size = 0
        for count, waiting in enumerate(head):
            size += len(waiting.notification.payload)
            if count and size > self._push.max_notify_bytes:
                return head[:count]
        return head
