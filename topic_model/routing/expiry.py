"""Which subscriptions are due: a heap of termination times that forgets lazily and cannot grow by renewals."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from topic_model.subscriptions import Subscription

_SLACK = 1024  # stale entries that are not worth a rebuild


class Expiry:
    """Termination times over a table's subscriptions, which it only reads.

    A renewal or an end leaves a stale entry behind, because a heap cannot be searched; when half of the entries are
    stale the heap is built anew, so each change costs a logarithm on average and a million renewals leave nothing.
    """

    def __init__(self, subscriptions: Mapping[str, Subscription]) -> None:
        self._subscriptions = subscriptions
        self._heap: list[tuple[int, str]] = []
        self._live = 0

    def __len__(self) -> int:
        return len(self._heap)

    def added(self, subscription: Subscription) -> None:
        """The subscription was added to the table."""
        if subscription.terminates_ms is None:
            return
        self._live += 1
        heapq.heappush(self._heap, (subscription.terminates_ms, subscription.id))
        if len(self._heap) > 2 * self._live + _SLACK:
            self._rebuild()

    def removed(self, subscription: Subscription) -> None:
        """The subscription, as it was in the table, is no longer."""
        if subscription.terminates_ms is None:
            return
        self._live -= 1
        if len(self._heap) > 2 * self._live + _SLACK:
            self._rebuild()

    def due(self, now_ms: int) -> tuple[str, ...]:
        """Ids whose time has come, earliest first. They stay due until their end is applied."""
        found: dict[tuple[int, str], None] = {}
        while self._heap and self._heap[0][0] <= now_ms:
            entry = heapq.heappop(self._heap)
            if self._is_current(entry):
                found[entry] = None  # an id renewed to and fro is there twice
        for entry in found:
            heapq.heappush(self._heap, entry)
        return tuple(subscription_id for _, subscription_id in found)

    def next_ms(self) -> int | None:
        """When the next subscription falls due at the earliest; None when none ever does."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _is_current(self, entry: tuple[int, str]) -> bool:
        subscription = self._subscriptions.get(entry[1])
        return subscription is not None and subscription.terminates_ms == entry[0]

    def _rebuild(self) -> None:
        self._heap = [
            (subscription.terminates_ms, subscription.id)
            for subscription in self._subscriptions.values()
            if subscription.terminates_ms is not None
        ]
        heapq.heapify(self._heap)
