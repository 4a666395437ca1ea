"""What all operations share: the state they read, the logs they write, the clock, and how an operation looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from ingest.access.gate import Gate
from ingest.addresses import Kind, OwnAddresses, Target
from ingest.changes import Changes, KeyedLocks
from ingest.envelope import Request
from ingest.ids import NotificationIds
from ingest.lookups import Lookups
from ingest.namespaces import wsa
from ingest.outgoing import DIRECT, Route
from ingest.ownership import OwnershipProof
from ingest.protection import Protector
from ingest.pull_queues import PullQueues
from ingest.repeats import Repeats
from ingest.service_wsdl import ServiceDescriptions
from ingest.settings import GatewaySettings
from ingest.topic_sets import TopicSets
from topic_model.admission import TopicAdmission
from topic_model.notifications import Notification
from topic_model.outbound import AddressPolicy
from topic_model.owners import Owners
from topic_model.pull_points import PullPoints
from topic_model.registrations import Registrations
from topic_model.routing import RoutingTable
from topic_model.settings import TopicSettings
from topic_model.suspensions import Suspensions
from topic_model.topics import TopicPath
from topic_model.tracing import Tracing


class NotificationSink(Protocol):
    """Where accepted notifications go; see NotificationLog.append."""

    def append(
        self, notifications: Sequence[Notification], retained: Sequence[Notification] = ()
    ) -> asyncio.Future[None]: ...

    async def settled(self) -> None: ...


class CurrentMessages(Protocol):
    """Where the current messages of topics are; see RetainedMessages."""

    async def topics(self, matches: Callable[[TopicPath], bool]) -> list[TopicPath]: ...

    async def latest(self, paths: Sequence[TopicPath]) -> list[Notification]: ...


def utc_now() -> datetime:
    """The clock on the wall."""
    return datetime.fromtimestamp(time.time(), UTC)


@dataclass
class Gateway:
    """The working parts behind the operations. All of it is used on the event loop's thread only."""

    settings: GatewaySettings
    topics: TopicSettings
    own: OwnAddresses
    table: RoutingTable
    changes: Changes
    notifications: NotificationSink
    retained: CurrentMessages
    pulls: PullQueues
    pull_points: PullPoints = field(default_factory=PullPoints)
    registrations: Registrations = field(default_factory=Registrations)
    suspensions: Suspensions = field(default_factory=Suspensions)
    owners: Owners = field(default_factory=Owners)
    outbound: AddressPolicy = field(default_factory=AddressPolicy)
    route: Route = DIRECT
    lookups: Lookups | None = None
    proof: OwnershipProof | None = None
    repeats: Repeats = field(default_factory=Repeats)
    descriptions: ServiceDescriptions | None = None
    protector: Protector | None = None
    gate: Gate | None = None
    tracing: Tracing | None = None
    topic_sets: TopicSets = field(default_factory=TopicSets)
    now: Callable[[], datetime] = utc_now
    ids: NotificationIds = field(default_factory=NotificationIds)
    locks: KeyedLocks = field(default_factory=KeyedLocks)

    def __post_init__(self) -> None:
        self._admission = TopicAdmission(self.topics)
        self._being_added: dict[TopicPath, asyncio.Future[int]] = {}

    def named_in(self, request: Request, kind: Kind) -> str:
        """The id of the resource of this kind that a message to the broker names inside, as some clients do, or in
        wsa:To; empty when it names none."""
        candidates = [element.text or "" for element in request.operation.iterdescendants(wsa("Address"))]
        if request.addressing is not None:
            candidates.append(request.addressing.to)
        for candidate in candidates:
            target = self.own.target_of_url(candidate.strip())
            if target is not None and target.kind is kind:
                return target.id
        return ""

    async def admit(self, paths: Iterable[TopicPath]) -> None:
        """See that these topics exist; where the set is open, new ones are in the control log when this returns.

        Raises TopicNotSupported (then none is added) or InfrastructureError.
        """
        tree = self.table.topics
        unknown = [path for path in dict.fromkeys(paths) if path not in tree]
        if not unknown:
            return
        records = []
        for path in unknown:
            if path not in self._being_added:
                record = self._admission.admit(tree, path, time.monotonic())
                if record is not None:
                    records.append(record)
        others = [self._being_added[path] for path in unknown if path in self._being_added]
        if records:
            added: asyncio.Future[int] = asyncio.ensure_future(self.changes.commit(records))
            for record in records:
                self._being_added[record.path] = added
            try:
                # Others wait for the same future: one publisher that hangs up must not cancel it for them.
                await asyncio.shield(added)
            finally:
                for record in records:
                    del self._being_added[record.path]
        for other in others:
            await asyncio.shield(other)


@dataclass(frozen=True)
class Reply:
    """What an operation answers: the body's child as text, and the action that goes with it."""

    body: str
    action: str
    finish: Callable[[bool], None] | None = None
    """Called in any case, with whether the answer has left."""


Handler = Callable[[Gateway, Request, Target], Awaitable[Reply | None]]
"""Performs an operation; None answers with an empty 202. Raises PeerError or InfrastructureError."""


@dataclass(frozen=True)
class Operation:
    """An operation as it is offered: who performs it, and at which kinds of address."""

    name: str
    handler: Handler
    kinds: frozenset[Kind]
    carries_messages: bool = False
    """Whether a request may be as large as a body may; others are small, and what they say is walked through."""
