"""A worker's journal: outcomes to `attempts`, what has to wait to `parked`, what was given up to `dead`, and messages
for pull points to their log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from dispatch.attempts import Attempt, Matched
from dispatch.attempts_log import BEHIND_S, AttemptsLog
from dispatch.durable_writer import DurableWriter
from dispatch.hot.lanes import Received
from dispatch.hot.pull_points import PullDelivery
from dispatch.redelivery.dead_letters import letter_of
from dispatch.redelivery.parked import Delivery, Place, Tries
from dispatch.redelivery.parking import DeadLetterLog, ParkingLog
from topic_model.notifications import Notification
from topic_model.settings import KafkaSettings
from topic_model.subscriptions import Subscription

# Rows that wait for the record that keeps their message: half a kilobyte each.
_MOST_HELD_BACK = 5_000


class _HeldBack(NamedTuple):
    """A row, and the record that keeps its message, sent at this time of the monotonic clock."""

    row: Attempt
    log: DurableWriter
    number: int
    sent_at: float


class SinkJournal:
    """Used by one thread. `begin` names the batch.

    A batch that is repeated leaves out what the attempts tell of. So rows are written while the batch goes on, soon
    after what they tell of; and one that says that a message is kept elsewhere (parked, dead, in a pull point) only
    when the log that keeps it has it.
    """

    def __init__(self, kafka: KafkaSettings, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`timeout_s` is how long it may take until Kafka has something."""
        self._timeout_s = timeout_s
        self._clock = clock
        self._held_back: deque[_HeldBack] = deque()
        self._attempts = AttemptsLog(kafka)
        self._attempts.connect()
        # Most workers never need these, so they connect when they do.
        self._parking = ParkingLog(kafka)
        self._dead = DeadLetterLog(kafka)
        self._pulls = PullDelivery(kafka)
        self._batch = 0

    def begin(self, batch: int) -> None:
        """A new batch, or another partition of one."""
        self._batch = batch

    def matched(self, partition: int, control: int, matched: list[Matched]) -> None:
        """How many subscriptions each notification of a partition was for, as of this offset of the control log."""
        self._attempts.add_matched(partition, self._batch, control, matched)

    def record(self, attempt: Attempt) -> None:
        """A delivery was made, or is not wanted any more. Raises InfrastructureError."""
        self._attempts.add(attempt)

    def park(self, subscription: Subscription, received: Received, tries: Tries, attempt: Attempt) -> None:
        """A delivery is to be made later; the row that says so. Raises InfrastructureError."""
        delivery = self._delivery(subscription, received)
        self._hold_back(attempt, self._parking, self._parking.park(delivery, received.notification, tries))

    def bury(self, subscription: Subscription, received: Received, attempt: Attempt) -> None:
        """A delivery was given up for good; the row that says so. Raises InfrastructureError."""
        letter = letter_of(attempt, received.notification)
        self._hold_back(attempt, self._dead, self._dead.bury(self._delivery(subscription, received), letter))

    def store(self, subscription: Subscription, notification: Notification) -> None:
        """A message for a pull point. Raises InfrastructureError."""
        self._pulls.add(notification, subscription)

    def write_due(self) -> bool:
        """Have what is due written, without waiting; False while Kafka is slow to take what it was sent."""
        self._release()
        self._attempts.write_due()
        late = bool(self._held_back) and self._clock() - self._held_back[0].sent_at > BEHIND_S
        return not (late or self._attempts.behind())

    def catch_up(self) -> None:
        """Return when all logs have everything. Raises InfrastructureError when that takes too long for one of them."""
        for log in (self._pulls, self._dead, self._parking):
            log.settle(self._timeout_s)
        self._release()
        self._attempts.settle(self._timeout_s)

    def settle(self) -> dict[str, tuple[int, int]]:
        """As `catch_up`; how far each lane that was parked since the last time reaches into the `parked` log."""
        self.catch_up()
        return self._parking.reach()

    def close(self) -> None:
        """Drop the connections and what is not acknowledged."""
        self._held_back.clear()
        self._attempts.close()
        self._parking.close()
        self._dead.close()
        self._pulls.close()

    def _hold_back(self, row: Attempt, log: DurableWriter, number: int) -> None:
        self._held_back.append(_HeldBack(row, log, number, self._clock()))
        if len(self._held_back) >= _MOST_HELD_BACK:
            self._dead.settle(self._timeout_s)
            self._parking.settle(self._timeout_s)
            self._release()

    def _release(self) -> None:
        for row in self._pulls.stored(self._batch):
            self._attempts.add(row)
        while self._held_back and self._held_back[0].log.has(self._held_back[0].number):
            self._attempts.add(self._held_back.popleft().row)

    def _delivery(self, subscription: Subscription, received: Received) -> Delivery:
        return Delivery(subscription.id, Place(self._batch, received.partition, received.offset))
