"""The parts and figures of queues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import Transport
from arborcast.dispatch.queues.servers import QueueServers
from arborcast.dispatch.redelivery.amounts import Amounts
from arborcast.dispatch.redelivery.endpoints import Endpoints
from arborcast.dispatch.redelivery.lanes import RetryLane, Subscriptions
from arborcast.dispatch.redelivery.parked_store import ParkedStore
from arborcast.dispatch.redelivery.pushes import Pushes, RedeliveryJournal, RedeliveryOutcomes, SubscriptionStops
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath


class QueueFigures(NamedTuple):
    """A queue at a moment: how many requests wait and are executed, when the oldest of those that wait was accepted (0
    without any); how many servers are idle or sick, and which are busy, since when. Milliseconds since the epoch."""

    queue: TopicPath
    waiting: int
    executing: int
    oldest_ms: int
    idle: int
    sick: int
    busy: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Queue:
    """A queue with requests, or with servers. `lane` is that of its requests, `gone` are servers that have ended, and
    whose ends are not in the log yet."""

    topic: TopicPath
    lane: RetryLane
    servers: QueueServers = field(default_factory=QueueServers)
    gone: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class QueueParts:
    """What queues share with the rest of the redelivery."""

    store: ParkedStore
    subscriptions: Subscriptions
    transport: Transport
    pushes: Pushes
    endpoints: Endpoints
    outcomes: RedeliveryOutcomes
    journal: RedeliveryJournal
    amounts: Amounts
    push: PushSettings
    retry: RetrySettings
    envelope_of: Callable[[Subscription], Envelope]
    stops: SubscriptionStops
    chance: Callable[[], float]
