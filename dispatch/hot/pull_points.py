"""Delivery into pull points: not pushed over HTTP, but written into the log from which gateways hand messages out."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
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

    def acknowledged(self, number: int, acknowledgement: Acknowledgement) -> None:
        self.times[number] = time.time()


class PullDelivery:
    """Stores notifications for subscriptions whose consumer is a pull point. Used by one thread.

    Order is that of `add`; a batch that is repeated after a crash stores its messages again.
    """

    def __init__(self, kafka: KafkaSettings, connect: Callable[[KafkaSettings], Producer] = make_producer) -> None:
        self._writer = _TimedWriter(kafka, connect)
        self._begun: list[tuple[Notification, Subscription, int, float, int]] = []
        self._prefix = uuid.uuid4().hex[:16]
        self._numbers = itertools.count(1)

    def add(self, notification: Notification, subscription: Subscription) -> None:
        """Begin to store a notification, without waiting. May have to connect first; raises InfrastructureError."""
        element = stored_element(notification, subscription)
        message = StoredMessage(element, notification.id, subscription.id, notification.accepted_ms)
        key, value = encode(subscription.pull_point, message)
        started = time.time()
        number = self._writer.send(0, value, key)  # the log has one partition
        self._begun.append((notification, subscription, len(element), started, number))

    def settle(self, timeout_s: float, batch: int, record: Callable[[Attempt], None]) -> None:
        """Return when Kafka has all that was added, each then recorded as delivered.

        Raises InfrastructureError when that takes longer than `timeout_s`.
        """
        self._writer.settle(timeout_s)
        begun, self._begun = self._begun, []
        times, self._writer.times = self._writer.times, {}
        for notification, subscription, size, started, number in begun:
            record(
                Attempt(
                    notification=notification.id,
                    subscription=subscription.id,
                    topic=notification.topic,
                    endpoint=subscription.consumer.address,
                    number=1,
                    push=f"{self._prefix}-{next(self._numbers)}",
                    state="delivered",
                    accepted_ms=notification.accepted_ms,
                    started_ms=int(started * 1000),
                    duration_ms=round((times[number] - started) * 1000, 3),
                    request_bytes=size,
                    batch=batch,
                )
            )

    def close(self) -> None:
        """Drop the connection and what is not acknowledged."""
        self._writer.close()
        self._begun.clear()
        self._writer.times.clear()
