"""What the redelivery writes down, and in which order it reaches the logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from core.eventlog.settings import KafkaSettings
from dispatch.logs.attempts import Attempt, AttemptsLog
from dispatch.logs.dead_letters import DeadLetter, letter_of
from dispatch.logs.parked import DeadLetterLog, Delivery, ParkingLog, Tries
from topic_model.records.notifications import Notification


class Journal(Protocol):
    """Where the redelivery writes what it did."""

    def record(self, attempt: Attempt) -> None:
        """An attempt was made, or a delivery ended without one."""

    def tried(self, delivery: Delivery, tries: Tries) -> None:
        """A delivery waits again."""

    def finished(self, delivery: Delivery, tried: bool) -> None:
        """A delivery does not wait any more; `tried` says whether it ever was."""

    def write_dead_letter(self, delivery: Delivery, notification: Notification, attempt: Attempt) -> None:
        """A delivery was given up for good."""

    def gone(self, subscription_id: str) -> None:
        """A receiver has ended its subscription."""

    def suspend(self, subscription_id: str, since_ms: int) -> None:
        """An endpoint has failed since then, too long to go on with the subscription."""


class Log(Protocol):
    """A log that is written to."""

    def settle(self, timeout_s: float) -> None:
        """Return when it has everything; raises InfrastructureError."""

    def close(self) -> None:
        """Drop the connection and what it does not have."""


class Rows(Log, Protocol):
    """The `attempts` log."""

    def add(self, attempt: Attempt) -> None:
        """One more row."""


class Letters(Log, Protocol):
    """The `dead` log."""

    def write_dead_letter(self, delivery: Delivery, letter: DeadLetter) -> object:
        """One more letter."""


class Waits(Log, Protocol):
    """The `parked` log."""

    def tried(self, delivery: Delivery, tries: Tries) -> None:
        """It waits again."""

    def finished(self, delivery: Delivery, tried: bool) -> None:
        """It does not wait any more."""


def journal_for(kafka: KafkaSettings) -> LogJournal:
    """The journal in the logs of an engine."""
    return LogJournal(AttemptsLog(kafka), DeadLetterLog(kafka), ParkingLog(kafka))


class LogJournal:
    """The journal in the logs: dead letters, then attempts, then what is parked.

    What finishes a delivery is sent only when its outcome is safe: a failure in between repeats a push, and loses none.
    """

    def __init__(self, attempts: Rows, dead: Letters, parking: Waits) -> None:
        self._attempts = attempts
        self._dead = dead
        self._parking = parking
        self._later: list[Callable[[], None]] = []
        self._gone: set[str] = set()
        self._suspended: dict[str, int] = {}
        self._sent = False

    @property
    def dirty(self) -> bool:
        """Whether something was asked for that is not in the logs."""
        return self._sent or bool(self._later or self._gone or self._suspended)

    def record(self, attempt: Attempt) -> None:
        self._attempts.add(attempt)
        self._sent = True

    def tried(self, delivery: Delivery, tries: Tries) -> None:
        self._later.append(lambda: self._parking.tried(delivery, tries))

    def finished(self, delivery: Delivery, tried: bool) -> None:
        self._later.append(lambda: self._parking.finished(delivery, tried))

    def write_dead_letter(self, delivery: Delivery, notification: Notification, attempt: Attempt) -> None:
        self._dead.write_dead_letter(delivery, letter_of(attempt, notification))
        self._sent = True

    def gone(self, subscription_id: str) -> None:
        self._gone.add(subscription_id)

    def suspend(self, subscription_id: str, since_ms: int) -> None:
        self._suspended[subscription_id] = since_ms

    def take_gone(self) -> set[str]:
        """The subscriptions whose receivers have ended them since this was last asked."""
        gone, self._gone = self._gone, set()
        return gone

    def take_suspended(self) -> dict[str, int]:
        """The subscriptions to be suspended since this was last asked, and since when their endpoints have failed."""
        suspended, self._suspended = self._suspended, {}
        return suspended

    def settle(self, timeout_s: float) -> None:
        """Return when everything is in the logs. Raises InfrastructureError; then nothing is known of what is not."""
        self._dead.settle(timeout_s)
        self._attempts.settle(timeout_s)
        later, self._later = self._later, []
        for write in later:
            write()
        self._parking.settle(timeout_s)
        self._sent = False

    def close(self) -> None:
        """Drop the connections and what is not acknowledged."""
        self._attempts.close()
        self._dead.close()
        self._parking.close()
