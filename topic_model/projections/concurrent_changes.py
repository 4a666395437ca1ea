"""Changes of a subscription by other processes while this one changes it.

A control record has the whole state of a subscription. So of two processes that change it at the same time, the later
record would undo the other change, and a record after the end would create the subscription again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from arborcast.topic_model.records.control import ControlRecord, SubscriptionEnded, SubscriptionRecord

Change = SubscriptionRecord | SubscriptionEnded


class ConcurrentChanges:
    """The records of watched subscriptions, in the order of the log."""

    def __init__(self) -> None:
        self._watched: dict[str, list[Change]] = {}

    def apply(self, record: ControlRecord) -> None:
        match record:
            case SubscriptionRecord(subscription=subscription):
                identifier = subscription.id
            case SubscriptionEnded(id=identifier):
                pass
            case _:
                return
        if (changes := self._watched.get(identifier)) is not None:
            changes.append(record)

    @contextmanager
    def watch(self, subscription_id: str) -> Iterator[list[Change]]:
        """The records of a subscription since the begin of the context. One context for each subscription at a time."""
        changes = self._watched[subscription_id] = []
        try:
            yield changes
        finally:
            del self._watched[subscription_id]
