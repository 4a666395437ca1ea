"""A worker's journal: outcomes to `attempts`, what has to wait to `parked`, what was given up to `dead`."""

from __future__ import annotations

from collections.abc import Iterable

from dispatch.attempts import Attempt, Matched
from dispatch.attempts_log import AttemptsLog
from dispatch.redelivery.dead_letters import letter_of
from dispatch.redelivery.parked import Delivery, Place, Tries
from dispatch.redelivery.parking import DeadLetterLog, ParkingLog
from topic_model.notifications import Notification
from topic_model.settings import KafkaSettings
from topic_model.subscriptions import Subscription

# Rows that wait for their parked record: half a kilobyte each.
_MOST_HELD_BACK = 5_000


class SinkJournal:
    """Used by one thread. `begin` names the batch, `placed` the origin of each notification of it.

    A batch that is repeated leaves out what the attempts tell of. So a row that says "parked" or "dead" is written only
    when the log that keeps the message has it; all others as they come.
    """

    def __init__(self, kafka: KafkaSettings, timeout_s: float) -> None:
        """`timeout_s` is how long it may take until Kafka has something."""
        self._timeout_s = timeout_s
        self._held_back: list[Attempt] = []
        self._attempts = AttemptsLog(kafka)
        self._attempts.connect()
        # Most workers never need these, so they connect when they do.
        self._parking = ParkingLog(kafka)
        self._dead = DeadLetterLog(kafka)
        # By object: one notification can stand in a batch more than once, as copies for single subscriptions.
        self._places: dict[int, tuple[int, int]] = {}
        self._batch = 0

    def begin(self, batch: int) -> None:
        """A new batch, or another partition of one."""
        self._batch = batch
        self._places.clear()
        self._held_back.clear()

    def placed(self, notification: Notification, partition: int, offset: int) -> None:
        """Where a notification of this batch was read. To be parked or buried it is handed over as this same object."""
        self._places[id(notification)] = (partition, offset)

    def matched(self, partition: int, control: int, matched: list[Matched]) -> None:
        """How many subscriptions each notification of a partition was for, as of this offset of the control log."""
        self._attempts.add_matched(partition, self._batch, control, matched)

    def record(self, attempt: Attempt) -> None:
        """An attempt was made, or a delivery was put off or ended without one. Raises InfrastructureError."""
        if attempt.state in ("delivered", "cancelled"):
            self._attempts.add(attempt)
            return
        self._held_back.append(attempt)
        if len(self._held_back) >= _MOST_HELD_BACK:
            # The last one's message comes after its row, so that one has to wait on.
            self._release(self._held_back[:-1])
            del self._held_back[:-1]

    def park(self, subscription: Subscription, notification: Notification, tries: Tries) -> None:
        """A delivery is to be made later."""
        self._parking.park(self._delivery(subscription, notification), notification, tries)

    def bury(self, subscription: Subscription, notification: Notification, attempt: Attempt) -> None:
        """A delivery was given up for good."""
        self._dead.bury(self._delivery(subscription, notification), letter_of(attempt, notification))

    def settle(self) -> dict[str, tuple[int, int]]:
        """Return when all logs have everything: how far each lane that was parked reaches into the `parked` log.

        Raises InfrastructureError when that takes too long for one of them.
        """
        self._release(self._held_back)
        self._held_back.clear()
        self._attempts.settle(self._timeout_s)
        return self._parking.reach()

    def close(self) -> None:
        """Drop the connections and what is not acknowledged."""
        self._held_back.clear()
        self._attempts.close()
        self._parking.close()
        self._dead.close()

    def _release(self, rows: Iterable[Attempt]) -> None:
        self._dead.settle(self._timeout_s)
        self._parking.settle(self._timeout_s)
        for row in rows:
            self._attempts.add(row)

    def _delivery(self, subscription: Subscription, notification: Notification) -> Delivery:
        return Delivery(subscription.id, Place(self._batch, *self._places[id(notification)]))
