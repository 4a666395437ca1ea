"""A journal in memory, for unit tests of the hot path."""

from __future__ import annotations

from arborcast.dispatch.delivery.journal import Journal
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.logs.parked import Delivery, Tries
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.results import Result


class FakeJournal(Journal):
    """Recorded rows; parked and buried deliveries as (subscription, notification). `late`: Kafka takes no record."""

    def __init__(self) -> None:
        self.rows: list[Attempt] = []
        self.parked: dict[tuple[str, str], Tries] = {}
        self.buried: list[tuple[str, str]] = []
        self.late = False
        self.answers: list[Result] = []

    def record(self, attempt: Attempt) -> None:
        self.rows.append(attempt)

    def park(
        self, delivery: Delivery, notification: Notification, tries: Tries, attempt: Attempt, in_turn: bool = False
    ) -> None:
        self.parked[delivery.subscription, notification.id] = tries
        self.rows.append(attempt)

    def answered(self, result: Result) -> None:
        self.answers.append(result)

    def still_in_flight(self, delivery: Delivery, tries: Tries) -> None:
        (name,) = [name for subscription, name in self.parked if subscription == delivery.subscription]
        self.parked[delivery.subscription, name] = tries

    def write_dead_letter(self, delivery: Delivery, notification: Notification, attempt: Attempt) -> None:
        self.buried.append((delivery.subscription, notification.id))
        self.rows.append(attempt)

    def write_due(self) -> bool:
        return not self.late

    def catch_up(self) -> None:
        self.late = False

    def states(self, subscription: str) -> list[tuple[str, str, str]]:
        """Notification, state and error of the rows of one subscription, in order."""
        return [(row.notification, row.state, row.error) for row in self.rows if row.subscription == subscription]
