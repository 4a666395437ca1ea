"""Stores a camera's events, and operator events about cameras."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from xml.sax.saxutils import escape

import msgspec

from arborcast.core.backoff import Backoff, retried
from arborcast.core.errors import InfrastructureError, PeerError
from arborcast.ingest.cameras.events import MOST_TOPICS, folder, read_events
from arborcast.ingest.cameras.messages import Notice
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.publishing import UNACCEPTED, Checked, PublishRequest, publish, store
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import SYSTEM, TopicPath
from arborcast.wire import times

logger = logging.getLogger(__name__)

_BACKOFF = Backoff(0.5, 10.0)

GONE, BACK = TopicPath(f"{SYSTEM}/camera/gone"), TopicPath(f"{SYSTEM}/camera/back")


@dataclass
class EventCounts:
    """What this gateway has received from a camera. `dropped` events are unreadable or refused."""

    events: int = 0
    dropped: int = 0
    last: float = 0.0


class CameraPublisher:
    """Used on the event loop's thread."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.counts: dict[str, EventCounts] = {}

    async def publish(self, name: str, notices: Sequence[Notice]) -> None:
        """Store the events of a camera, in their order. Raises InfrastructureError: then some may be stored."""
        gateway, tree = self._gateway, self._gateway.table.topics
        room = MOST_TOPICS - sum(1 for _ in islice(tree.descendants(folder(name)), MOST_TOPICS))
        read = read_events(name, notices, tree, room, gateway.ids.next)
        counts = self.counts.setdefault(name, EventCounts())
        refused = read.unreadable
        if read.notifications:
            await self._retain(read.properties)
            refused += await self._store(name, read.notifications)
            counts.events += len(read.notifications)
            counts.last = time.time()
        counts.dropped += refused

    async def report(self, topic: TopicPath, name: str, since_ms: int, detail: str) -> None:
        """Store an operator event. Raises InfrastructureError."""
        gateway, kind = self._gateway, f"camera-{topic.rpartition('/')[2]}"
        logger.warning("%s %s %s", kind, name, detail)
        if topic not in gateway.table.topics:  # after an import that has removed it; `store` adds none to a fixed set
            await gateway.changes.commit([TopicRecord(topic)])
        payload = (
            f'<Event xmlns="urn:arborcast" kind="{kind}" at="{times.to_ms(gateway.now())}" since="{since_ms}">'
            f"<Camera>{escape(name)}</Camera>{f'<Detail>{escape(detail)}</Detail>' if detail else ''}</Event>"
        )
        notification = Notification(gateway.ids.next(), topic, payload.encode(), UNACCEPTED, publisher="arborcast")
        await store(gateway, Checked([notification], {}, "", None))

    async def add_topics(self) -> None:
        """Add the topics of operator events about cameras, so that they can be subscribed to. Never raises."""
        missing = [TopicRecord(each) for each in (GONE, BACK) if each not in self._gateway.table.topics]
        try:
            if missing:
                await self._gateway.changes.commit(missing)
        except InfrastructureError as error:
            logger.warning("the topics of operator events about cameras are not added: %s", error)

    async def _retain(self, properties: set[TopicPath]) -> None:
        """Have the topics of properties keep their last message, where the operator has not decided."""
        gateway, tree = self._gateway, self._gateway.table.topics
        if gateway.topics.fixed or gateway.topics.retain_all:
            return
        records = []
        for path in sorted(properties):
            known = tree.get(path)
            if known is None and len(tree) >= gateway.topics.maximum:
                continue
            record = known or TopicRecord(path)
            if record.policy.retain is None:
                policy = msgspec.structs.replace(record.policy, retain=True)
                records.append(msgspec.structs.replace(record, policy=policy))
        if records:
            await gateway.changes.commit(records)

    async def _store(self, name: str, notifications: Sequence[Notification]) -> int:
        """The number of refused ones: of a type that the topic does not take, or on a topic that cannot be added."""
        try:
            await publish(self._gateway, PublishRequest(notifications, None))
        except PeerError as error:
            if len(notifications) == 1:
                logger.warning("an event of the camera %s is dropped: %s", name, error)
                return 1
            # Each is repeated by itself: a caller that repeats all of them would store the first ones twice.
            what = f"an event of the camera {name} waits"
            attempts = [partial(self._store, name, [each]) for each in notifications]
            return sum([await retried(what, each, _BACKOFF, InfrastructureError) for each in attempts])
        return 0
