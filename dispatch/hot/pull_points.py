"""Delivery into pull points: not pushed over HTTP, but written into the log from which gateways hand messages out."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

from dispatch.attempts import Attempt
from dispatch.durable_writer import DurableWriter
from dispatch.envelope import WSA, WSNT, topic_element
from topic_model.kafka_client import Acknowledgement, Producer, make_producer
from topic_model.notifications import Notification
from topic_model.pull_log import PULL_LOG, StoredMessage, encode
from topic_model.settings import KafkaSettings
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
