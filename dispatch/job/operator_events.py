"""Events for operators, as notifications on the topics `TOPICS`. Those about deadlines are for the subscriber, too.

A thread publishes them; no caller waits. Events wait while Kafka is away.
"""

from __future__ import annotations

import logging
import queue
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from xml.sax.saxutils import escape

import msgspec

from arborcast.core.eventlog.client import partition_of_key
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service
from arborcast.dispatch.matching.view import RoutingView
from arborcast.dispatch.redelivery.events import NAMESPACE, EventKind, OperatorEvent
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.topics import SYSTEM, TopicPath

logger = logging.getLogger(__name__)

TOPICS: Mapping[EventKind, TopicPath] = {
    "breaker-opened": TopicPath(f"{SYSTEM}/breaker/opened"),
    "breaker-closed": TopicPath(f"{SYSTEM}/breaker/closed"),
    "subscription-failing": TopicPath(f"{SYSTEM}/subscription/failing"),
    "subscription-recovered": TopicPath(f"{SYSTEM}/subscription/recovered"),
    "subscription-suspended": TopicPath(f"{SYSTEM}/subscription/suspended"),
    "subscription-gone": TopicPath(f"{SYSTEM}/subscription/gone"),
    "deadline-missed": TopicPath(f"{SYSTEM}/subscription/deadline-missed"),
    "deadline-met": TopicPath(f"{SYSTEM}/subscription/deadline-met"),
    "dead-letters-growing": TopicPath(f"{SYSTEM}/dead-letters/growing"),
    "fragments-incomplete": TopicPath(f"{SYSTEM}/fragments/incomplete"),
}

_FOR_SUBSCRIBERS: frozenset[EventKind] = frozenset({"deadline-missed", "deadline-met"})

# Limit of events that wait for Kafka. While half as many wait, the thread of the notices for subscribers does, too: the
# silence of a topic may concern fifty thousand of them.
_MOST_WAITING = 10_000
_POLL_S = 0.02

PUBLISHER = "arborcast"


def payload(event: OperatorEvent) -> bytes:
    """The message: an Event element with the applicable parts."""
    facts = (
        ("Endpoint", event.endpoint),
        ("Subscription", event.subscription),
        ("Topic", event.topic),
        ("Count", str(event.count) if event.count else ""),
        *event.facts,
        ("Detail", event.detail),
    )
    children = "".join(f"<{name}>{escape(text)}</{name}>" for name, text in facts if text)
    since = f' since="{event.since_ms}"' if event.since_ms else ""
    return f'<Event xmlns="{NAMESPACE}" kind="{event.kind}" at="{event.at_ms}"{since}>{children}</Event>'.encode()


class OperatorEvents:
    def __init__(self, kafka: KafkaSettings, view: RoutingView) -> None:
        self._kafka = kafka
        self._view = view
        self.stored = 0
        """The number of events published since the start."""
        self._queue: queue.Queue[OperatorEvent | None] = queue.Queue(_MOST_WAITING)
        self._full = False
        self._event: OperatorEvent | None = None  # that is being published
        self._ids = "", ""  # of its notifications
        self._writer = DurableWriter(kafka, "notifications")
        self._service = Service(
            "operator-events", self._publish, close=self._writer.close, what="the publication of system notices"
        )

    def start(self) -> None:
        """Add missing topics, so that they can be subscribed to, and begin to publish. Raises InfrastructureError."""
        missing = [TopicRecord(path) for path in TOPICS.values() if not self._view.has_topic(path)]
        if missing:
            with closing(ControlLog(self._kafka)) as log:
                log.append(missing)
        self._service.start()

    def publish(self, event: OperatorEvent) -> None:
        """Publish an event; returns at once, except with one for a subscriber while many wait."""
        about = {"subscription": event.subscription, "endpoint": event.endpoint}
        level = logging.INFO if event.kind in _FOR_SUBSCRIBERS else logging.WARNING
        logger.log(level, "%s", " ".join(filter(None, (event.kind, event.detail))), extra=about)
        if event.kind in _FOR_SUBSCRIBERS:
            while self._queue.qsize() >= _MOST_WAITING // 2 and not self._service.wait(_POLL_S):
                pass
        try:
            self._queue.put_nowait(event)
            self._full = False
        except queue.Full:
            if not self._full:
                logger.warning("events from here on are not published: %d others wait for Kafka", _MOST_WAITING)
            self._full = True

    def stop(self, timeout_s: float) -> None:
        """Publish waiting events; returns when done, or after the time."""
        with suppress(queue.Full):
            self._queue.put_nowait(None)
        self._service.stop(timeout_s)

    def _publish(self) -> None:
        """Publish events until the stop. Raises InfrastructureError; the next call publishes the same event again."""
        while True:
            if self._event is None:
                self._event, self._ids = self._queue.get(), (uuid.uuid4().hex, uuid.uuid4().hex)
            if self._event is None:
                return
            # A subscriber whose Subscribe was answered gets it.
            control = self._view.catch_up(self._kafka.request_timeout_s)
            for notification in self._notifications(self._event, control):
                key, value = notifications.encode(notification)
                self._writer.send(partition_of_key(key, self._writer.partitions), value, key)
            self._writer.settle(self._kafka.request_timeout_s)
            self._event = None
            self.stored += 1
            self._service.succeeded()

    def _notifications(self, event: OperatorEvent, control: int) -> Iterator[Notification]:
        """The notification for subscribers of such events; and one for the subscription concerned, if the event is for
        it."""
        name, own_name = self._ids
        general = Notification(
            name, TOPICS[event.kind], payload(event), event.at_ms, publisher=PUBLISHER, control=control
        )
        yield general
        about = self._view.subscription(event.subscription) if event.kind in _FOR_SUBSCRIBERS else None
        if about is not None:
            # Its recipients are those at matching: it may follow a change of the subscription.
            yield msgspec.structs.replace(
                general, id=own_name, only=about.id, selector=about.selector(), control=UNSTAMPED
            )
