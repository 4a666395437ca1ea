"""What all operations share: the state they read, the logs they write, the clock, and how an operation looks."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import msgspec

from core.errors import TopicNotSupported, UnknownResource
from core.security.outbound import AddressPolicy
from core.telemetry.tracing import Tracing
from ingest.access.gate import Gate
from ingest.addresses import Kind, NotificationIds, OwnAddresses, Target
from ingest.consumers import DIRECT, DnsCheck, OutboundRoute, OwnershipProof
from ingest.elements.protection import Protector
from ingest.elements.topics import TopicSets
from ingest.errors import NotRegistered, OperationRefused
from ingest.settings import GatewaySettings, TopicSettings
from ingest.soap import times
from ingest.soap.envelope import Request
from ingest.soap.times import utc_now
from ingest.soap.wsdl import ServiceDescriptions
from ingest.state.changes import CommitsChanges, KeyedLocks
from ingest.state.pull_queues import PullQueues
from ingest.state.repeats import Repeats
from topic_model.namespaces import wsa, wsnt
from topic_model.projections.owners import Owners
from topic_model.projections.pull_points import PullPoints
from topic_model.projections.registrations import Registrations, permits
from topic_model.projections.suspensions import Suspensions
from topic_model.records.control import TopicRecord
from topic_model.records.notifications import Notification
from topic_model.routing import RoutingTable
from topic_model.topics import TopicPath, ancestors
from topic_model.tree.tree import TopicTree

_WINDOW_S = 60


class TopicAdmission:
    """Open topic sets: may a first notification on an unknown topic add it?

    Topics cost memory in every process and an entry in the directory, and notifications come from anyone: without
    bounds a publisher with a counter in its topic names would fill the tree. So the set may only grow to a size, and
    only so fast: this counts the topics that this gateway added in each of the last sixty seconds.
    """

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._seconds: deque[tuple[int, int]] = deque()  # (second, topics let in during it), oldest first
        self._in_window = 0

    def admit(self, tree: TopicTree, path: TopicPath, now_s: float) -> TopicRecord | None:
        """The record that adds the topic, None when it is there already; `now_s` is any clock that does not go back.

        Only the topic itself is added; nodes above it stay nodes. Raises TopicNotSupported with the reason.
        """
        if path in tree:
            return None
        if self._settings.fixed:
            raise TopicNotSupported(f"there is no topic {path}, and the topic set is fixed", path)
        for above in ancestors(path):
            record = tree.get(above)
            if record is not None and record.final:
                raise TopicNotSupported(f"the topic {above} is final: there cannot be {path} below it", path)
        if len(tree) >= self._settings.maximum:
            raise TopicNotSupported(
                f"there is no topic {path}, and a notification cannot add it: there are {len(tree)} topics, and "
                f"topics.maximum is {self._settings.maximum}",
                path,
            )
        self._count(path, int(now_s))
        return TopicRecord(path)

    def _count(self, path: TopicPath, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - _WINDOW_S:
            self._in_window -= self._seconds.popleft()[1]
        if self._in_window >= self._settings.new_per_minute:
            raise TopicNotSupported(
                f"there is no topic {path}, and a notification cannot add it now: {self._in_window} topics were added "
                f"in the last minute, and topics.new_per_minute is {self._settings.new_per_minute}",
                path,
            )
        self._in_window += 1
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + 1)
        else:
            self._seconds.append((second, 1))


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


@dataclass
class Gateway:
    """The working parts behind the operations. All of it is used on the event loop's thread only."""

    settings: GatewaySettings
    topics: TopicSettings
    own: OwnAddresses
    table: RoutingTable
    changes: CommitsChanges
    notifications: NotificationSink
    retained: CurrentMessages
    pulls: PullQueues
    pull_points: PullPoints = field(default_factory=PullPoints)
    registrations: Registrations = field(default_factory=Registrations)
    suspensions: Suspensions = field(default_factory=Suspensions)
    owners: Owners = field(default_factory=Owners)
    outbound: AddressPolicy = field(default_factory=AddressPolicy)
    route: OutboundRoute = DIRECT
    dns_check: DnsCheck | None = None
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

    async def admit(self, topics: Mapping[TopicPath, str]) -> None:
        """See that these topics exist; where the set is open, new ones are in the control log when this returns. With
        each come the prefixes that it was written with, empty for none.

        Raises TopicNotSupported (then none is added) or InfrastructureError.
        """
        tree = self.table.topics
        unknown = [path for path in topics if path not in tree]
        if not unknown:
            return
        records = []
        for path in unknown:
            if path not in self._being_added:
                record = self._admission.admit(tree, path, time.monotonic())
                if record is not None:
                    news = tree.prefixes.unknown(path, topics[path])
                    records.append(msgspec.structs.replace(record, prefixes=news))
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


def check_room(gateway: Gateway, owner: str) -> None:
    """Raises OperationRefused when an owner has as many subscriptions as may be. Those without one are not counted.

    Several requests of one owner at the same moment may go beyond the bound by their number.
    """
    limit = gateway.settings.subscriptions_per_owner
    if not limit or not owner:
        return
    held = gateway.owners.subscriptions(owner)
    if held >= limit:
        raise OperationRefused(
            f"{owner!r} has {held} subscriptions, and {limit} may be: end some that are not needed any more",
            "SubscribeCreationFailedFault",
        )


def check_fan_out(gateway: Gateway, request: Request, topics: Iterable[TopicPath]) -> None:
    """Raises TooManyRequests for a publisher whose notifications have been pushed too often in the last minute.

    Counted by who subscribes to these topics now, in our view: those who subscribe a moment later do not count.
    """
    if gateway.gate is not None:
        table = gateway.table
        gateway.gate.publishes(request.client, lambda: sum(map(table.fan_out, topics)))


def check_sender(gateway: Gateway, request: Request, target: Target, notifications: Sequence[Notification]) -> None:
    """See that the sender of a Notify may publish all of it.

    A notification comes from a registration when the request was posted to the registration's own address (the
    ConsumerReference of the answer to RegisterPublisher), when the message's ProducerReference has the address that
    was registered as PublisherReference, or when its SubscriptionReference is our subscription at that publisher. Each
    is as good as the network lets it be: whoever can read a reference can repeat it. See `check_topics` for errors.
    """
    if gateway.settings.requires_registration or target.kind is Kind.REGISTRATION:
        topics = (notification.topic for notification in notifications)
        check_topics(gateway, target, zip(topics, _senders(request), strict=True))


def check_topics(gateway: Gateway, target: Target, sent: Iterable[tuple[TopicPath, Iterable[str]]]) -> None:
    """Each topic comes with the addresses that may tell where it comes from.

    Raises UnknownResource when the request went to a registration that is not in force, NotRegistered when no
    registration of the sender covers a topic and the settings require one.
    """
    now_ms = times.to_ms(gateway.now())
    named = gateway.registrations.get(target.id) if target.kind is Kind.REGISTRATION else None
    if target.kind is Kind.REGISTRATION and (named is None or named.expired(now_ms)):
        raise UnknownResource(f"there is no registration {target.id[:200]!r} (any more)", target.id)
    if not gateway.settings.requires_registration:
        return
    for topic, addresses in sent:
        known = [one for address in addresses for one in gateway.registrations.known_as(address)]
        if named is not None:
            known.append(named)
        if not any(permits(one, topic, now_ms) for one in known):
            raise NotRegistered(
                f"only registered publishers may publish here, and no registration of this one covers the topic {topic}"
                if known
                else "only registered publishers may publish here: send RegisterPublisher, then Notify to the "
                "ConsumerReference of the answer, or with a wsnt:ProducerReference equal to the PublisherReference"
            )


def _senders(request: Request) -> Iterator[list[str]]:
    for message in request.operation.iterchildren(wsnt("NotificationMessage")):
        references = message.iterchildren(wsnt("ProducerReference"), wsnt("SubscriptionReference"))
        yield [
            (address.text or "").strip()
            for reference in references
            for address in reference.iterdescendants(wsa("Address"))
        ]
