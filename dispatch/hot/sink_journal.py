"""A worker's journal: outcomes to `attempts`, what has to wait to `parked`, what was given up to `dead`, and messages
for pull points to their log."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

from core import fence
from core.eventlog.client import Acknowledgement, Producer, make_producer
from core.eventlog.settings import KafkaSettings
from core.eventlog.topics import PULL_LOG
from core.eventlog.writers import DurableWriter
from dispatch.delivery.envelope import WSA, WSNT, topic_element
from dispatch.hot.lanes import Received
from dispatch.logs.attempts import BEHIND_S, Attempt, AttemptsLog, Matched
from dispatch.logs.dead_letters import letter_of
from dispatch.logs.parked import DeadLetterLog, Delivery, ParkingLog, Place, Tries
from topic_model.records.notifications import Notification
from topic_model.records.pull import StoredMessage, encode
from topic_model.subscriptions import Subscription


def stored_element(notification: Notification, subscription: Subscription) -> bytes:
    """The wsnt:NotificationMessage as it waits: self-contained, since nobody knows what it will be answered in."""
    return b"".join(
        (
            f'<wsnt:NotificationMessage xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}"><wsnt:SubscriptionReference>'
            f"<wsa:Address>{escape(subscription.address)}</wsa:Address></wsnt:SubscriptionReference>".encode(),
            topic_element(notification.topic),
            notification.producer,
            b"<wsnt:Message>",
            notification.payload,
            b"</wsnt:Message></wsnt:NotificationMessage>",
        )
    )


class _TimedWriter(DurableWriter):
    """Remembers when each record was acknowledged."""

    def __init__(self, kafka: KafkaSettings, connect: Callable[[KafkaSettings], Producer]) -> None:
        super().__init__(kafka, PULL_LOG, connect)
        self.times: dict[int, float] = {}

    def acknowledged(self, number: int, label: str, acknowledgement: Acknowledgement) -> None:
        self.times[number] = time.time()


class _Begun(NamedTuple):
    """A message that is being stored: how large, since when (s since the epoch), and the number of its record."""

    notification: Notification
    subscription: Subscription
    size: int
    started: float
    number: int


class PullDelivery:
    """Stores notifications for subscriptions whose consumer is a pull point. Used by one thread. Order is that of
    `add`."""

    def __init__(self, kafka: KafkaSettings, connect: Callable[[KafkaSettings], Producer] = make_producer) -> None:
        self._writer = _TimedWriter(kafka, connect)
        self._begun: deque[_Begun] = deque()
        self._prefix = uuid.uuid4().hex[:16]
        self._numbers = itertools.count(1)

    def add(self, notification: Notification, subscription: Subscription) -> None:
        """Begin to store a notification, without waiting. May have to connect first; raises InfrastructureError."""
        fence.wait()
        element = stored_element(notification, subscription)
        message = StoredMessage(element, notification.id, subscription.id, notification.accepted_ms)
        key, value = encode(subscription.pull_point, message)
        started = time.time()
        number = self._writer.send(0, value, key)  # the log has one partition
        self._begun.append(_Begun(notification, subscription, len(element), started, number))

    def stored(self, batch: int) -> Iterator[Attempt]:
        """The rows of the messages that Kafka has meanwhile, without those that wait behind one which it has not."""
        while self._begun and (stored_at := self._writer.times.pop(self._begun[0].number, None)) is not None:
            begun = self._begun.popleft()
            yield Attempt(
                notification=begun.notification.id,
                subscription=begun.subscription.id,
                topic=begun.notification.topic,
                endpoint=begun.subscription.consumer.address,
                number=1,
                push=f"{self._prefix}-{next(self._numbers)}",
                state="delivered",
                accepted_ms=begun.notification.accepted_ms,
                started_ms=int(begun.started * 1000),
                duration_ms=round((stored_at - begun.started) * 1000, 3),
                request_bytes=begun.size,
                batch=batch,
            )

    def settle(self, timeout_s: float) -> None:
        """Return when Kafka has all that was added. Raises InfrastructureError when that takes longer."""
        self._writer.settle(timeout_s)

    def close(self) -> None:
        """Drop the connection and what is not acknowledged."""
        self._writer.close()
        self._begun.clear()
        self._writer.times.clear()


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
