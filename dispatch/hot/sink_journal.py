"""A worker's journal: beside what every journal writes, messages for pull points, and whom notifications are for."""

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
from core.eventlog.topics import PULL_LOG
from core.eventlog.writers import DurableWriter
from core.settings import KafkaSettings
from dispatch.delivery.envelope import topic_element
from dispatch.delivery.journal import Journal
from dispatch.logs.attempts import Attempt, AttemptsLog, Matched
from dispatch.logs.parked import DeadLetterLog, ParkingLog
from topic_model.namespaces import WSA, WSNT
from topic_model.records.notifications import Notification
from topic_model.records.pull import StoredMessage, encode
from topic_model.subscriptions import Subscription


def stored_element(notification: Notification, subscription: Subscription) -> bytes:
    """The wsnt:NotificationMessage as it waits: self-contained, since the answer that it will be part of is not
    known."""
    return b"".join(
        (
            f'<wsnt:NotificationMessage xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}"><wsnt:SubscriptionReference>'
            f"<wsa:Address>{escape(subscription.address)}</wsa:Address></wsnt:SubscriptionReference>".encode(),
            topic_element(notification.topic, notification.prefixes),
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
        self.begun = 0
        """How many messages were added, since the beginning, and of how many the rows were taken out."""
        self.released = 0

    def add(self, notification: Notification, subscription: Subscription) -> None:
        """Begin to store a notification, without waiting. May have to connect first; raises InfrastructureError."""
        fence.wait()
        element = stored_element(notification, subscription)
        until_ms = notification.valid_until_ms
        message = StoredMessage(element, notification.id, subscription.id, notification.accepted_ms, until_ms)
        key, value = encode(subscription.pull_point, message)
        started = time.time()
        number = self._writer.send(0, value, key)  # the log has one partition
        self._begun.append(_Begun(notification, subscription, len(element), started, number))
        self.begun += 1

    def stored(self, batch: int) -> Iterator[Attempt]:
        """The rows of the messages that Kafka has meanwhile, without those that wait behind one which it has not."""
        while self._begun and (stored_at := self._writer.times.pop(self._begun[0].number, None)) is not None:
            begun = self._begun.popleft()
            self.released += 1
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


class SinkJournal(Journal):
    """The journal of a worker, with what only a batch writes. `begin` names the batch.

    A batch that is repeated leaves out what the attempts tell of. So rows are written while the batch goes on, soon
    after what they tell of.
    """

    def __init__(self, kafka: KafkaSettings, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows = AttemptsLog(kafka)
        self._rows.connect()
        # Most workers never need these, so they connect when they do.
        self._parked = ParkingLog(kafka)
        self._pulls = PullDelivery(kafka)
        super().__init__(self._rows, DeadLetterLog(kafka), self._parked, timeout_s, clock)
        self._batch = 0
        self._pulls_marked = 0

    def begin(self, batch: int) -> None:
        """A new batch, or another partition of one."""
        self._batch = batch

    def matched(self, partition: int, control: int, matched: list[Matched]) -> None:
        """How many subscriptions each notification of a partition was for, as of this offset of the control log."""
        self._rows.add_matched(partition, self._batch, control, matched)

    @property
    def parked(self) -> ParkingLog:
        """Where it parks: what real time asks for the lanes that it holds."""
        return self._parked

    def store(self, subscription: Subscription, notification: Notification) -> None:
        """A message for a pull point. Raises InfrastructureError."""
        self._pulls.add(notification, subscription)

    def catch_up(self) -> None:
        self._pulls.settle(self._timeout_s)
        super().catch_up()

    def settle(self) -> dict[str, tuple[int, int]]:
        """As `catch_up`; how far each lane that was parked since the last time reaches into the `parked` log."""
        self.catch_up()
        return self._parked.reach()

    def close(self) -> None:
        super().close()
        self._pulls.close()

    def mark(self) -> None:
        self._pulls_marked = self._pulls.begun
        super().mark()

    def passed(self) -> bool:
        self._release()
        return self._pulls.released >= self._pulls_marked and super().passed()

    def _release(self) -> None:
        for row in self._pulls.stored(self._batch):
            self._rows.add(row)
        super()._release()
