"""Events for operators, as notifications on the topics `TOPICS`. Those about deadlines are for the subscriber, too.

A thread publishes them; no caller waits.
"""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from xml.sax.saxutils import escape

import msgspec

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client import partition_of_key
from arborcast.core.eventlog.writers import DurableWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import start_thread
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

# Limit of events that wait for Kafka.
_MOST_WAITING = 10_000

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
    """Publishes events."""

    def __init__(self, kafka: KafkaSettings, view: RoutingView) -> None:
        self._kafka = kafka
        self._view = view
        self.stored = 0
        """The number of events published since the start."""
        self._queue: queue.Queue[OperatorEvent | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Add missing topics, so that they can be subscribed to, and begin to publish. Raises InfrastructureError."""
        missing = [TopicRecord(path) for path in TOPICS.values() if not self._view.has_topic(path)]
        if missing:
            with closing(ControlLog(self._kafka)) as log:
                log.append(missing)
        self._thread = start_thread("operator-events", self._run)

    def publish(self, event: OperatorEvent) -> None:
        """Publish an event; returns at once."""
        about = {"subscription": event.subscription, "endpoint": event.endpoint}
        level = logging.INFO if event.kind in _FOR_SUBSCRIBERS else logging.WARNING
        logger.log(level, "%s", " ".join(filter(None, (event.kind, event.detail))), extra=about)
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            logger.warning("the event was not published: %d others wait for Kafka", _MOST_WAITING)

    def stop(self, timeout_s: float) -> None:
        """Publish waiting events; returns when done, or after the time."""
        if self._thread is not None:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                return
            self._thread.join(timeout_s)

    def _run(self) -> None:
        writer = DurableWriter(self._kafka, "notifications")
        while (event := self._queue.get()) is not None:
            try:
                # A subscriber whose Subscribe was answered gets it.
                control = self._view.catch_up(self._kafka.request_timeout_s)
                for notification in self._notifications(event, control):
                    key, value = notifications.encode(notification)
                    writer.send(partition_of_key(key, writer.partitions), value, key)
                writer.settle(self._kafka.request_timeout_s)
                self.stored += 1
            except InfrastructureError as error:
                logger.warning("an event (%s) was not published: %s", event.kind, error)
        writer.close()

    def _notifications(self, event: OperatorEvent, control: int) -> Iterator[Notification]:
        """The notification for subscribers of such events; and one for the subscription concerned, if the event is for
        it."""
        general = Notification(
            uuid.uuid4().hex, TOPICS[event.kind], payload(event), event.at_ms, publisher=PUBLISHER, control=control
        )
        yield general
        about = self._view.subscription(event.subscription) if event.kind in _FOR_SUBSCRIBERS else None
        if about is not None:
            # Its recipients are those at matching: it may follow a change of the subscription.
            yield msgspec.structs.replace(
                general, id=uuid.uuid4().hex, only=about.id, selector=about.selector(), control=UNSTAMPED
            )
