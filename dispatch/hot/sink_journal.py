"""A worker's journal: beside the common records, messages for pull points, publications of triggers, and numbers of
recipients."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

import msgspec

from arborcast.core import fence
from arborcast.core.eventlog.client import Acknowledgement, Producer, make_producer, partition_of_key
from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery.envelope import package_of, topic_element
from arborcast.dispatch.delivery.journal import RELEASE_S, Journal
from arborcast.dispatch.logs.attempts import BEHIND_S, Attempt, AttemptsLog, Matched
from arborcast.dispatch.logs.parked import DeadLetterLog, ParkingLog
from arborcast.topic_model.namespaces import ARBORCAST_DELIVERY, WSA, WSNT
from arborcast.topic_model.records import notifications, pull
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.topic_model.subscriptions import Subscription


def stored_element(notification: Notification, subscription: Subscription) -> bytes:
    """The wsnt:NotificationMessage in a pull point: self-contained, since its later answer is unknown. A part has its
    Package beside the address."""
    package = package_of(notification) if notification.package else ""
    if package:
        said = f'<ac:Package xmlns:ac="{ARBORCAST_DELIVERY}">{escape(package)}</ac:Package>'
        package = f"<wsa:Metadata>{said}</wsa:Metadata>"
    return b"".join(
        (
            f'<wsnt:NotificationMessage xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}"><wsnt:SubscriptionReference>'
            f"<wsa:Address>{escape(subscription.address)}</wsa:Address>{package}</wsnt:SubscriptionReference>".encode(),
            topic_element(notification.topic, notification.prefixes),
            notification.producer,
            b"<wsnt:Message>",
            notification.payload,
            b"</wsnt:Message></wsnt:NotificationMessage>",
        )
    )


class _TimedWriter(DurableWriter):
    """Remembers when each record was acknowledged."""

    def __init__(self, kafka: KafkaSettings, log: str, connect: Callable[[KafkaSettings], Producer]) -> None:
        super().__init__(kafka, log, connect)
        self.times: dict[int, float] = {}

    def acknowledged(self, number: int, label: str, acknowledgement: Acknowledgement) -> None:
        self.times[number] = time.time()

    def close(self) -> None:
        super().close()
        self.times.clear()


class _Begun(NamedTuple):
    """A delivery whose records are being written: its row, still without push and duration, since when (s since the
    epoch, and by the monotonic clock), and their writers and numbers."""

    row: Attempt
    started: float
    begun_at: float
    records: Sequence[tuple[_TimedWriter, int]]

    def is_written(self) -> bool:
        return all(number in writer.times for writer, number in self.records)

    def take_time(self) -> float:
        """The time of the last acknowledgement."""
        return max(writer.times.pop(number) for writer, number in self.records)


# Kafka adds a key and some bytes to the value.
_ROOM = 8 * 1024


class LogDelivery:
    """Deliveries that are records in other logs: messages for pull points and publications of triggers. For one thread.
    In the order of `store` and `publish`, which wait for a connection or for room only; see `DurableWriter.send`. The
    `notifications` log has this number of `partitions`."""

    def __init__(
        self,
        kafka: KafkaSettings,
        partitions: int,
        connect: Callable[[KafkaSettings], Producer] = make_producer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kafka = kafka
        self._partitions = partitions
        self._connect = connect
        self._clock = clock
        self._writers: dict[str, _TimedWriter] = {}  # most workers need none of them
        self._begun: deque[_Begun] = deque()
        self._prefix = uuid.uuid4().hex[:16]
        self._numbers = itertools.count(1)
        self.begun = 0
        """How many deliveries were begun since the beginning, and of how many the rows were taken out."""
        self.released = 0

    def connect(self) -> None:
        """Connect to the log of pull points. Raises InfrastructureError."""
        self._writer(PULL_LOG).connect()

    def behind(self) -> bool:
        """Whether Kafka is late with an acknowledgement."""
        return bool(self._begun) and self._clock() - self._begun[0].begun_at > BEHIND_S

    def store(self, notification: Notification, subscription: Subscription) -> None:
        """Begin to put a notification into the pull point of its subscription."""
        fence.wait()
        element = stored_element(notification, subscription)
        until_ms = notification.valid_until_ms
        message = StoredMessage(element, notification.id, subscription.id, notification.accepted_ms, until_ms)
        key, value = pull.encode(subscription.pull_point, message)
        started, writer = time.time(), self._writer(PULL_LOG)
        records = [(writer, writer.send(0, value, key))]  # the log has one partition
        self._begin(notification, subscription, len(element), started, records)

    def publish(self, cause: Notification, subscription: Subscription, made: Notification, kept: bool) -> bool:
        """Begin to publish the notification of a trigger; `kept`: it becomes the current message of its topic. False if
        the record is too large for a log; then nothing is begun."""
        fence.wait()
        key, value = notifications.encode(made)
        if len(key) + len(value) + _ROOM > self._kafka.max_record_bytes:
            return False
        started, writer = time.time(), self._writer("notifications")
        records = [(writer, writer.send(partition_of_key(key, self._partitions), value, key))]
        if kept:
            current = self._writer("retained")
            records.append((current, current.send(0, value, key)))
        self._begin(cause, subscription, len(made.payload), started, records, f"published as {made.id}")
        return True

    def written(self, batch: int) -> Iterator[Attempt]:
        """The rows of acknowledged deliveries, up to the first one without acknowledgement."""
        while self._begun and self._begun[0].is_written():
            begun = self._begun.popleft()
            self.released += 1
            yield msgspec.structs.replace(
                begun.row,
                push=f"{self._prefix}-{next(self._numbers)}",
                duration_ms=round((begun.take_time() - begun.started) * 1000, 3),
                batch=batch,
            )

    def settle(self, timeout_s: float) -> None:
        """Return when all deliveries are acknowledged. Raises InfrastructureError when that takes longer."""
        for writer in self._writers.values():
            writer.settle(timeout_s)

    def close(self) -> None:
        """Drop the connections and all records without acknowledgement."""
        for writer in self._writers.values():
            writer.close()
        self._begun.clear()

    def _begin(
        self,
        notification: Notification,
        subscription: Subscription,
        size: int,
        started: float,
        records: Sequence[tuple[_TimedWriter, int]],
        detail: str = "",
    ) -> None:
        # The row instead of the notification: only the writers keep the payload.
        row = Attempt(
            notification=notification.id,
            subscription=subscription.id,
            topic=notification.topic,
            endpoint=subscription.consumer.address,
            number=1,
            push="",
            state="delivered",
            accepted_ms=notification.accepted_ms,
            started_ms=int(started * 1000),
            duration_ms=0.0,
            detail=detail,
            request_bytes=size,
        )
        self._begun.append(_Begun(row, started, self._clock(), records))
        self.begun += 1

    def _writer(self, log: str) -> _TimedWriter:
        if log not in self._writers:
            self._writers[log] = _TimedWriter(self._kafka, log, self._connect)
        return self._writers[log]


class SinkJournal(Journal):
    """The journal of a worker, with the records of a batch only. `begin` sets the batch. A repeated batch skips
    deliveries with a row, so rows are written during the batch, soon after the outcomes."""

    def __init__(self, kafka: KafkaSettings, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows = AttemptsLog(kafka)
        self._parked = ParkingLog(kafka)
        partitions = len(self._rows.connect().partitions_for(kafka.topic("notifications")))
        self._appends = LogDelivery(kafka, partitions)
        super().__init__(self._rows, DeadLetterLog(kafka), self._parked, timeout_s, clock)
        self._batch = 0
        self._appends_marked = 0
        try:
            self.connect()
        except BaseException:
            self.close()
            raise

    def connect(self) -> None:
        super().connect()
        self._appends.connect()

    def begin(self, batch: int) -> None:
        """A new batch, or another partition of one."""
        self._batch = batch

    def matched(self, partition: int, control: int, matched: list[Matched]) -> None:
        """Write the numbers of matches of the notifications of a partition, as of this offset of the control log."""
        self._rows.add_matched(partition, self._batch, control, matched)

    @property
    def parked(self) -> ParkingLog:
        return self._parked

    def store(self, subscription: Subscription, notification: Notification) -> None:
        """A message for a pull point. Raises InfrastructureError."""
        self._appends.store(notification, subscription)

    def publish(self, cause: Notification, subscription: Subscription, made: Notification, kept: bool) -> bool:
        """Publish the notification of a trigger; see `LogDelivery.publish`. Raises InfrastructureError."""
        return self._appends.publish(cause, subscription, made, kept)

    def write_due(self) -> bool:
        return super().write_due() and not self._appends.behind()

    def due_s(self) -> float:
        return RELEASE_S if self._appends.begun > self._appends.released else super().due_s()

    def catch_up(self) -> None:
        self._appends.settle(self._timeout_s)
        super().catch_up()

    def close(self) -> None:
        super().close()
        self._appends.close()

    def mark(self) -> None:
        self._appends_marked = self._appends.begun
        super().mark()

    def passed(self) -> bool:
        self._release()
        return self._appends.released >= self._appends_marked and super().passed()

    def _release(self) -> None:
        if self._appends.begun > self._appends.released:
            for row in self._appends.written(self._batch):
                self._rows.add(row)
        super()._release()
