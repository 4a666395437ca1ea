"""A journal that remembers, for unit tests of the hot path."""

from __future__ import annotations

from dispatch.attempts import Attempt
from dispatch.redelivery.parked import Tries
from topic_model.notifications import Notification
from topic_model.subscriptions import Subscription


class FakeJournal:
    """What was recorded; what was parked and buried, as (subscription, notification)."""

    def __init__(self) -> None:
        self.rows: list[Attempt] = []
        self.parked: dict[tuple[str, str], Tries] = {}
        self.buried: list[tuple[str, str]] = []

    def record(self, attempt: Attempt) -> None:
        self.rows.append(attempt)

    def park(self, subscription: Subscription, notification: Notification, tries: Tries) -> None:
        self.parked[subscription.id, notification.id] = tries

    def bury(self, subscription: Subscription, notification: Notification, attempt: Attempt) -> None:
        self.buried.append((subscription.id, notification.id))

    def states(self, subscription: str) -> list[tuple[str, str, str]]:
        """Notification, state and error of the rows of one subscription, in order."""
        return [(row.notification, row.state, row.error) for row in self.rows if row.subscription == subscription]
