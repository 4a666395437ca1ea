"""What the redelivery writes down, and in which order it reaches the logs."""

from __future__ import annotations

from collections.abc import Callable

from core.eventlog.settings import KafkaSettings
from dispatch.delivery.journal import Journal
from dispatch.logs.attempts import Attempt, AttemptsLog
from dispatch.logs.parked import DeadLetterLog, Delivery, ParkingLog, Tries
from topic_model.records.notifications import Notification

# How long outcomes may wait for Kafka. Giving up means that their pushes are made again.
_SETTLE_S = 600.0


def journal_for(kafka: KafkaSettings) -> RedeliveryJournal:
    """The journal in the logs of an engine."""
    return RedeliveryJournal(AttemptsLog(kafka), DeadLetterLog(kafka), ParkingLog(kafka))


class RedeliveryJournal(Journal):
    """Dead letters, then attempts, then what is parked.

    What finishes a delivery is sent only when its outcome is safe: a failure in between repeats a push, and loses none.
    """

    def __init__(self, attempts: AttemptsLog, dead: DeadLetterLog, parking: ParkingLog) -> None:
        super().__init__(attempts, dead, parking, _SETTLE_S)
        self._later: list[Callable[[], None]] = []
        self._gone: set[str] = set()
        self._suspended: dict[str, int] = {}
        self._sent = False

    @property
    def dirty(self) -> bool:
        """Whether something was asked for that is not in the logs."""
        return self._sent or bool(self._later or self._gone or self._suspended)

    def record(self, attempt: Attempt) -> None:
        super().record(attempt)
        self._sent = True

    def write_dead_letter(self, delivery: Delivery, notification: Notification, attempt: Attempt) -> None:
        super().write_dead_letter(delivery, notification, attempt)
        self._sent = True

    def tried(self, delivery: Delivery, tries: Tries) -> None:
        """A delivery waits again."""
        self._later.append(lambda: self._parking.tried(delivery, tries))

    def finished(self, delivery: Delivery, tried: bool) -> None:
        """A delivery does not wait any more; `tried` says whether it ever was."""
        self._later.append(lambda: self._parking.finished(delivery, tried))

    def gone(self, subscription_id: str) -> None:
        """A receiver has ended its subscription."""
        self._gone.add(subscription_id)

    def suspend(self, subscription_id: str, since_ms: int) -> None:
        """An endpoint has failed since then, too long to go on with the subscription."""
        self._suspended[subscription_id] = since_ms

    def take_gone(self) -> set[str]:
        """The subscriptions whose receivers have ended them since this was last asked."""
        gone, self._gone = self._gone, set()
        return gone

    def take_suspended(self) -> dict[str, int]:
        """The subscriptions to be suspended since this was last asked, and since when their endpoints have failed."""
        suspended, self._suspended = self._suspended, {}
        return suspended

    def catch_up(self) -> None:
        super().catch_up()
        later, self._later = self._later, []
        for write in later:
            write()
        self._parking.settle(self._timeout_s)
        self._sent = False
