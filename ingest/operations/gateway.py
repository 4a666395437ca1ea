"""The common state of all operations: the views, the logs, the clock, and the type of operations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from arborcast.core.errors import InfrastructureError, UnknownResource
from arborcast.core.recent import BoundedDict
from arborcast.core.security.outbound import DIRECT, AddressPolicy, OutboundRoute
from arborcast.core.single_flight import SharedRounds, SingleFlight, shared
from arborcast.core.telemetry.tracing import Tracing
from arborcast.ingest.access.gate import Gate
from arborcast.ingest.addresses import NotificationIds, OwnAddresses, Target
from arborcast.ingest.consumers import DnsCheck, OwnershipProof, check_name
from arborcast.ingest.elements.endpoints import check_consumer
from arborcast.ingest.elements.protection import Protector
from arborcast.ingest.elements.topics import TopicSets
from arborcast.ingest.http.inflight import Inflight, MemoryTrimmer
from arborcast.ingest.operations.admission import Admitted, TopicAdmission
from arborcast.ingest.operations.push_results import PushResults
from arborcast.ingest.settings import FragmentSettings, GatewaySettings, TopicSettings
from arborcast.ingest.soap.wsdl import RESOURCES, ServiceDescriptions
from arborcast.ingest.state.changes import CommitsChanges, KeyedLocks
from arborcast.ingest.state.fragment_log import CommitsFragments
from arborcast.ingest.state.pull_queues import PullQueues
from arborcast.ingest.state.repeats import Repeats
from arborcast.topic_model.control_view import ControlView, Projection
from arborcast.topic_model.namespaces import wsa
from arborcast.topic_model.projections.concurrent_changes import ConcurrentChanges
from arborcast.topic_model.projections.owners import Owners
from arborcast.topic_model.projections.pull_points import PullPoints
from arborcast.topic_model.projections.registrations import Registrations
from arborcast.topic_model.records.control import PullPointRecord, TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.endpoints import Kind
from arborcast.wire.envelope import Request
from arborcast.wire.errors import ConsumerRefused, OperationRefused
from arborcast.wire.times import utc_now
from arborcast.wire.xml_reading import COPIES, NODE_MEMORY

if TYPE_CHECKING:
    from arborcast.ingest.cameras.worker import CameraWorker
    from arborcast.ingest.federation.endpoint import PeerEndpoint
    from arborcast.ingest.operations.current_message import StateStart

_MOST_UNSENT = 10_000

# Parallel appends of new topics. With one, a request just after its beginning would wait for two.
_ADDED_AT_ONCE = 2


class NotificationSink(Protocol):
    """Where accepted notifications go; see NotificationLog.append."""

    def append(
        self, notifications: Sequence[Notification], retained: Sequence[Notification] = ()
    ) -> asyncio.Future[None]: ...

    async def settled(self) -> None: ...


class CurrentMessages(Protocol):
    """Where the current messages of topics are; see RetainedMessages."""

    async def topics(
        self, matches: Callable[[TopicPath], bool], among: Sequence[TopicPath] | None = None
    ) -> list[TopicPath]: ...

    async def latest(self, paths: Sequence[TopicPath]) -> list[Notification]: ...

    async def end(self) -> int: ...

    async def remove(self, paths: Sequence[TopicPath], end: int) -> None: ...


class GatewayView(ControlView):
    """The fold over the control log with what the operations read."""

    def __init__(self, *projections: Projection) -> None:
        self.pull_points = PullPoints()
        self.registrations = Registrations()
        self.owners = Owners()
        self.concurrent = ConcurrentChanges()
        super().__init__(self.pull_points, self.owners, self.registrations, self.concurrent, *projections)


@dataclass
class Gateway:
    """The working parts behind the operations. All of it is used on the event loop's thread only."""

    settings: GatewaySettings
    topics: TopicSettings
    own: OwnAddresses
    view: GatewayView
    changes: CommitsChanges
    notifications: NotificationSink
    retained: CurrentMessages
    pulls: PullQueues
    protector: Protector
    results: PushResults
    parts: CommitsFragments
    fragments: FragmentSettings = field(default_factory=FragmentSettings)
    outbound: AddressPolicy = field(default_factory=AddressPolicy)
    route: OutboundRoute = DIRECT
    dns_check: DnsCheck | None = None
    proof: OwnershipProof | None = None
    repeats: Repeats = field(default_factory=Repeats)
    descriptions: ServiceDescriptions | None = None
    gate: Gate | None = None
    federation: PeerEndpoint | None = None
    cameras: CameraWorker | None = None
    tracing: Tracing | None = None
    now: Callable[[], datetime] = utc_now
    ids: NotificationIds = field(default_factory=NotificationIds)
    locks: KeyedLocks = field(default_factory=KeyedLocks)
    unsent: BoundedDict[str, StateStart] = field(default_factory=lambda: BoundedDict(_MOST_UNSENT))
    """The durable subscriptions that were made here, and did not get their current messages."""
    started: Callable[[], bool] = lambda: True
    """Whether the logs are read to their ends. Before that a missing subscription is not unknown, and a missing topic
    is not new."""

    def __post_init__(self) -> None:
        view, settings = self.view, self.settings
        self.table, self.suspensions, self.pull_points = view.table, view.suspensions, view.pull_points
        self.registrations, self.owners, self.concurrent = view.registrations, view.owners, view.concurrent
        self.default_topic = self.topics.default_path
        # Memory for the largest body and its parsing, beside other requests.
        body = 2 * ((1 + COPIES) * settings.max_body_bytes + NODE_MEMORY * settings.max_elements)
        answer = 5 * self.fragments.max_bytes  # two copies of the largest message in the half for answers
        self.inflight = Inflight(max(settings.inflight_bytes, body, answer), MemoryTrimmer().trim_soon)
        """The memory for unanswered requests of all protocols."""
        self.topic_sets = TopicSets(self.table.topics)
        self._admission = TopicAdmission(self.topics)
        self._being_added: SingleFlight[TopicPath, None] = SingleFlight()
        # A thousand new topics cost a few appends and reads of the log.
        self._new_topics: SharedRounds[list[TopicRecord], None] = SharedRounds("new-topics", self._add, _ADDED_AT_ONCE)

    def check_started(self) -> None:
        """Raises InfrastructureError before the start is complete."""
        if not self.started():
            raise InfrastructureError("the gateway is starting: the logs are not read to their ends", 1.0)

    def named_in(self, request: Request, kind: Kind) -> str:
        """The id of the resource of this kind that a message to the broker names inside, as some clients do, or in
        wsa:To; empty when it names none."""
        addresses = [element.text or "" for element in request.operation.iterdescendants(wsa("Address"))]
        if request.addressing is not None:
            addresses.append(request.addressing.to)
        return next(filter(None, (self.own.id_in(each.strip(), kind) for each in addresses)), "")

    async def resource_of(self, request: Request, target: Target, kind: Kind) -> str:
        """The id of the resource of this kind that a request was sent to, or that it names, in a current view. Raises
        UnknownResource."""
        if target.kind is kind:
            return target.id
        identifier = self.named_in(request, kind)
        if not identifier:
            name = kind.name.lower().replace("_", " ")
            raise UnknownResource(f"no {name} is named: send this to the address in {RESOURCES[kind]}")
        await self.changes.catch_up()  # the caller has resolved the address in a current view
        return identifier

    def is_queue(self, path: TopicPath) -> bool:
        """Whether the messages of a topic are requests, each for one of its servers."""
        return self.table.topics.policy(path).queue

    def retains(self, path: TopicPath) -> bool:
        """Whether a topic retains its last message: by its policy, else by topics.retain_all.

        A removed topic has none, but may have left one. Requests are not states: a queue retains none.
        """
        policy = self.table.topics.policy(path)
        if policy.queue:
            return False
        return self.topics.retain_all if policy.retain is None else policy.retain

    def check_new(self, paths: Iterable[TopicPath]) -> None:
        """Check that the unknown ones of these topics may be added now. Raises as `admit`, and counts nothing."""
        tree = self.table.topics
        new = [path for path in paths if path not in tree]
        if new:
            self._admission.check(self.table, self._unknown(new), time.monotonic())

    async def admit(self, topics: Mapping[TopicPath, str]) -> None:
        """Ensure that these topics exist; in an open set, new ones are in the control log when this returns. The values
        are the prefixes of the written topics, empty for none.

        Raises TopicNotSupported, TooManyTopics (without adding any) or another InfrastructureError.
        """
        tree = self.table.topics
        paths = [path for path in topics if path not in tree]
        if not paths:
            return
        waiting = {added: None for path in paths if (added := self._being_added.get(path)) is not None}
        admitted = self._admission.admit(self.table, self._unknown(paths), time.monotonic())
        if admitted.records:
            records = [
                msgspec.structs.replace(each, prefixes=tree.prefixes.unknown(each.path, topics[each.path]))
                for each in admitted.records
            ]
            added = self._being_added.begin([record.path for record in records], self._new_topics.join(records))
            added.add_done_callback(lambda future: self._added(future, admitted))
            waiting[added] = None
        for each in waiting:
            await shared(each)

    async def _add(self, waiting: list[list[TopicRecord]]) -> None:
        await self.changes.commit([record for records in waiting for record in records])

    def _unknown(self, paths: Iterable[TopicPath]) -> Iterator[TopicPath]:
        return (path for path in paths if path not in self._being_added)

    def _added(self, future: asyncio.Future[None], admitted: Admitted) -> None:
        if future.cancelled() or future.exception() is not None:
            self._admission.give_back(admitted)


@dataclass(frozen=True)
class Reply:
    """The answer of an operation: the child of the body as text, and its action."""

    body: str
    action: str
    finish: Callable[[bool], None] | None = None
    """Called in any case, with whether the answer has left."""


def reply_of(
    name: tuple[str, str, str],
    content: str = "",
    *,
    port_type: str = "",
    attributes: str = "",
    finish: Callable[[bool], None] | None = None,
) -> Reply:
    """An answer in an element with this prefix, namespace and local name. Its action begins with `port_type`, else with
    the namespace. `attributes` are serialised, such as declarations of further prefixes."""
    prefix, namespace, local = name
    element = f'{prefix}:{local} xmlns:{prefix}="{namespace}"{attributes}'
    body = f"<{element}>{content}</{prefix}:{local}>" if content else f"<{element}/>"
    return Reply(body, f"{port_type or namespace}/{local}", finish)


@dataclass(frozen=True)
class Stored:
    """An empty 202 with the ids of stored notifications in a header, in their order; none for a repetition, which is
    stored under other ids, and in a pull point."""

    ids: Sequence[str] = ()


Handler = Callable[[Gateway, Request, Target], Awaitable[Reply | Stored]]
"""Performs an operation. Raises PeerError or InfrastructureError."""


AT_BROKER = frozenset({Kind.BROKER})
"""What the broker's address offers, and those of its other port types."""

AT_SUBSCRIPTION = frozenset({Kind.SUBSCRIPTION, Kind.BROKER})
"""What a subscription's address offers; at the broker's address the subscription must be named in the message."""


@dataclass(frozen=True)
class Operation:
    """An operation: its function, and the kinds of address that offer it."""

    name: str
    handler: Handler
    kinds: frozenset[Kind] = AT_BROKER
    carries_messages: bool = False
    """Whether a request may be as large as a body may; others are small, and read element by element."""


def check_room(
    gateway: Gateway, owner: str, held: int, there: int, limit: int, what: str, fault: str, remedy: str = ""
) -> None:
    """Raises OperationRefused when the total or the share of an owner is used up. The share does not apply without an
    owner."""
    if there >= limit:
        refusal = f"there are {there} {what}, and gateway.{what.replace(' ', '_')} allows no more"
        raise OperationRefused(f"{refusal}: {remedy}" if remedy else refusal, fault)
    most = max(1, limit * gateway.settings.share_per_owner // 100)
    if owner and held >= most:
        raise OperationRefused(
            f"{owner!r} has {held} {what}, and gateway.share_per_owner allows {most}: "
            + (remedy or "end some that are not needed any more"),
            fault,
        )


def endpoint_of(
    gateway: Gateway, reference: EndpointReference, outbound: AddressPolicy | None = None
) -> tuple[EndpointReference, PullPointRecord | None]:
    """An endpoint of a client, and the pull point at this address, None for one to call; `outbound` replaces the
    gateway's policy. Raises ConsumerRefused."""
    if named := gateway.own.id_in(reference.address, Kind.PULL_POINT):
        point = gateway.pull_points.get(named)
        if point is not None:
            return EndpointReference(point.address), point
        if gateway.own.is_ours(reference.address):
            raise ConsumerRefused(f"the ConsumerReference names a pull point that does not exist: {named[:200]!r}")
    check_consumer(reference, gateway.own, outbound or gateway.outbound)
    return reference, None


async def check_callable(gateway: Gateway, url: str, owner: str, *, once: bool = False, hook: bool = False) -> None:
    """Check that the host of an endpoint may be called and, if required, that the endpoint consents; `once`: a consent
    within the last hour is reused; `hook`: with the validation of web hooks. Raises ConsumerRefused, or
    InfrastructureError if the check is impossible now."""
    await check_name(gateway.dns_check, url)
    if gateway.proof is not None:
        base = gateway.own.base if hook else ""
        await (gateway.proof.prove_once(url, owner) if once else gateway.proof.prove(url, owner, base))
