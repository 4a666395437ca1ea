"""Changes of a subscription by other processes while this one changes it, and equal ones that they make meanwhile.

A control record has the whole state of a subscription. So of two processes that change it at the same time, the later
record would undo the other change, and a record after the end would create the subscription again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from arborcast.topic_model.records.control import ControlRecord, SubscriptionEnded, SubscriptionRecord

Change = SubscriptionRecord | SubscriptionEnded


class ConcurrentChanges:
    """The records of watched subscriptions, in the order of the log."""

    def __init__(self) -> None:
        self._watched: dict[Hashable, list[Change]] = {}

    def apply(self, record: ControlRecord) -> None:
        if not self._watched:
            return
        keys: tuple[Hashable, ...] = ()
        match record:
            case SubscriptionRecord(subscription=subscription):
                keys = subscription.id, subscription.identity()
            case SubscriptionEnded(id=identifier):
                keys = (identifier,)
            case _:
                return
        for key in keys:
            if (changes := self._watched.get(key)) is not None:
                changes.append(record)

    @contextmanager
    def watch(self, key: Hashable) -> Iterator[list[Change]]:
        """The records of a subscription, by its id, or of all with the same identity, since the begin of the context.
        One context for each key at a time."""
        changes = self._watched[key] = []
        try:
            yield changes
        finally:
            del self._watched[key]
