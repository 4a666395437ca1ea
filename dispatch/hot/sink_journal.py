"""A worker's journal: the common records, messages for pull points, publications of triggers, numbers of recipients."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from xml.sax.saxutils import escape

from arborcast.core import fence
from arborcast.core.eventlog.client import Acknowledgement, Producer, make_producer, partition_of_key
from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery.envelope import package_of, topic_element
from arborcast.dispatch.delivery.journal import Journal
from arborcast.dispatch.logs.attempts import Attempt, AttemptsLog, Matched
from arborcast.dispatch.logs.parked import DeadLetterLog, ParkingLog
from arborcast.topic_model.message_types import root_type
from arborcast.topic_model.namespaces import ARBORCAST_DELIVERY, WSA, WSNT
from arborcast.topic_model.records import notifications, pull
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.topic_model.subscriptions import Subscription


def stored_element(notification: Notification, subscription: Subscription) -> bytes:
    """The wsnt:NotificationMessage in a pull point: self-contained, since the envelope of its answer is unknown. The
    metadata beside the address have the notification's id, its type unless that is the payload's, and the Package of a
    part."""
    kind = "" if notification.type == root_type(notification.payload) else notification.type
    more = {"Type": kind, "Package": package_of(notification) if notification.package else ""}
    metadata = "".join(f"<ac:{name}>{escape(text)}</ac:{name}>" for name, text in more.items() if text)
    return b"".join(
        (
            f'<wsnt:NotificationMessage xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}"><wsnt:SubscriptionReference>'
            f'<wsa:Address>{escape(subscription.address)}</wsa:Address><wsa:Metadata xmlns:ac="{ARBORCAST_DELIVERY}">'
            f"<ac:Notification>{escape(notification.original_id)}</ac:Notification>{metadata}</wsa:Metadata>"
            "</wsnt:SubscriptionReference>".encode(),
            topic_element(notification.topic, notification.prefixes),
            notification.producer,
            b"<wsnt:Message>",
            notification.payload,
            b"</wsnt:Message></wsnt:NotificationMessage>",
        )
    )


class _TimedWriter(DurableWriter):
    """Stores the time of each acknowledgement."""

    def __init__(
        self,
        kafka: KafkaSettings,
        log: str,
        connect: Callable[[KafkaSettings], Producer],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(kafka, log, connect, clock)
        self.times: dict[int, float] = {}

    def acknowledged(self, number: int, label: str, acknowledgement: Acknowledgement) -> None:
        self.times[number] = time.time()

    def close(self) -> None:
        super().close()
        self.times.clear()


# Kafka adds a key and some bytes to the value.
_ROOM = 8 * 1024

# Time for Kafka to accept the outcomes of pushes; after it the batch is repeated.
OUTCOMES_TIMEOUT_S = 600.0


class SinkJournal(Journal):
    """The journal of a worker, with the records of a batch only. `begin` sets the batch. A repeated batch skips
    deliveries with a row, so rows are written during the batch, soon after the outcomes.

    A delivery to a pull point, and a publication of a trigger, is a record of another log; its row is written after it.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        timeout_s: float,
        connect: Callable[[KafkaSettings], Producer] = make_producer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.parked = ParkingLog(kafka, connect, clock)
        self._pulled = _TimedWriter(kafka, PULL_LOG, connect, clock)
        self._published = _TimedWriter(kafka, "notifications", connect, clock)
        self._current = DurableWriter(kafka, "retained", connect, clock)
        attempts, dead = AttemptsLog(kafka, connect, clock), DeadLetterLog(kafka, connect, clock)
        super().__init__(attempts, dead, self.parked, timeout_s, [self._pulled])
        self._most_bytes = kafka.max_record_bytes - _ROOM
        self._batch = 0
        self._prefix = uuid.uuid4().hex[:16]
        self._numbers = itertools.count(1)
        try:
            self.connect()
            self._partitions = len(attempts.connect().partitions_for(kafka.topic("notifications")))
        except BaseException:
            self.close()
            raise
        self._preceding += [self._published, self._current]  # most workers need no connection to these

    def begin(self, batch: int) -> None:
        """Set the batch, at its start or with another of its partitions."""
        self._batch = batch

    def matched(self, partition: int, control: int, matched: list[Matched]) -> None:
        """Write the numbers of matches of the notifications of a partition, as of this offset of the control log."""
        self._attempts.add_matched(partition, self._batch, control, matched)

    def store(self, subscription: Subscription, notification: Notification) -> None:
        """A message for a pull point; see `DurableWriter.send`. Raises InfrastructureError."""
        fence.wait()
        element = stored_element(notification, subscription)
        until_ms = notification.valid_until_ms
        message = StoredMessage(element, notification.id, subscription.id, notification.accepted_ms, until_ms)
        key, value = pull.encode(subscription.pull_point, message)
        started = time.time()
        number = self._pulled.send(0, value, key)  # the log has one partition
        self._append(notification, subscription, len(element), started, self._pulled, number)

    def publish(self, cause: Notification, subscription: Subscription, made: Notification, kept: bool) -> bool:
        """Publish the notification of a trigger; `kept`: it becomes the current message of its topic. Returns False if
        the record is too large for a log; then nothing is written. Raises InfrastructureError."""
        fence.wait()
        key, value = notifications.encode(made)
        if len(key) + len(value) > self._most_bytes:
            return False
        started, log = time.time(), self._published
        number = log.send(partition_of_key(key, self._partitions), value, key)
        if kept:
            self._defer(None, self._current, self._current.send(0, value, key))
        self._append(cause, subscription, len(made.payload), started, log, number, f"published as {made.id}")
        return True

    def _append(
        self,
        notification: Notification,
        subscription: Subscription,
        size: int,
        started: float,
        log: _TimedWriter,
        number: int,
        detail: str = "",
    ) -> None:
        # The log gets the row without the notification: only the writers keep the payload.
        row = Attempt(
            notification=notification.id,
            subscription=subscription.id,
            topic=notification.topic,
            endpoint=subscription.consumer.address,
            number=1,
            push=f"{self._prefix}-{next(self._numbers)}",
            state="delivered",
            accepted_ms=notification.accepted_ms,
            started_ms=int(started * 1000),
            duration_ms=0.0,
            detail=detail,
            request_bytes=size,
            batch=self._batch,
        )
        self._defer(row, log, number, lambda number: round((log.times.pop(number) - started) * 1000, 3))
