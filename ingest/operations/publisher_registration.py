"""RegisterPublisher and DestroyRegistration of WS-BrokeredNotification."""

from __future__ import annotations

from datetime import datetime

from lxml import etree

from arborcast.core.errors import ExpressionError, UnknownDialect, UnknownResource
from arborcast.ingest.access.grants import check_offer, may_manage, owner_of
from arborcast.ingest.addresses import Target, resource_id
from arborcast.ingest.elements.endpoints import check_consumer, read_endpoint
from arborcast.ingest.operations.gateway import Gateway, Operation, Reply, check_callable, check_room, reply_of
from arborcast.ingest.operations.notification_broker import reference_element, requested_termination
from arborcast.ingest.operations.subscribing import check_size, check_supported
from arborcast.topic_model.expressions import XPATH
from arborcast.topic_model.namespaces import ACTION_BRW, WSN_BR, wsn_br
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.publishers import Registration
from arborcast.topic_model.records.control import (
    ControlRecord,
    EndReason,
    RegistrationEnded,
    RegistrationRecord,
    Tombstone,
)
from arborcast.topic_model.subscriptions import EndpointReference, TopicFilter
from arborcast.wire import limits, times
from arborcast.wire.endpoints import Kind
from arborcast.wire.envelope import Request
from arborcast.wire.errors import ConsumerRefused, OperationRefused, UnacceptableTermination
from arborcast.wire.topics import read_filter

# Envelope, Body, RegisterPublisher, PublisherReference, (EndpointReference,) ReferenceParameters, parameter.
_PARAMETER_DEPTH = 7


async def register_publisher(gateway: Gateway, request: Request, _target: Target) -> Reply:
    """Register a publisher. Its topics are created; a fixed topic set must have them."""
    now = gateway.now()
    owner, limit, there = owner_of(request.caller), gateway.settings.registrations, len(gateway.registrations)
    held, fault = gateway.registrations.of_owner(owner), "PublisherRegistrationRejectedFault"
    check_room(gateway, owner, held, there, limit, "registrations", fault)
    try:
        registration = _read(gateway, request, now)
        if registration.demand and registration.publisher is not None:
            await check_callable(gateway, registration.publisher.address, registration.owner)
    except ConsumerRefused as error:
        rejected = ConsumerRefused(str(error).replace("ConsumerReference", "PublisherReference", 1), error.rule)
        rejected.fault = fault
        raise rejected from error
    singles = (parse_normal(topic.normal).single_topic() for topic in registration.topics)
    await gateway.admit({path: "" for path in singles if path is not None})
    await gateway.changes.commit([RegistrationRecord(registration)])
    return reply_of(
        ("wsn-br", WSN_BR, "RegisterPublisherResponse"),
        reference_element("wsn-br:PublisherRegistrationReference", registration.address)
        + reference_element("wsn-br:ConsumerReference", consumer_address(gateway, registration)),
        port_type=f"{ACTION_BRW}/RegisterPublisher",
    )


async def destroy_registration(gateway: Gateway, request: Request, target: Target) -> Reply:
    """End a registration. Our subscriptions at its publisher are ended soon after."""
    identifier = await gateway.resource_of(request, target, Kind.REGISTRATION)
    async with gateway.locks.hold(identifier):
        find_registration(gateway, request, identifier)
        await gateway.changes.commit(ending(identifier, "destroyed", times.to_ms(gateway.now())))
    name = "wsn-br", WSN_BR, "DestroyRegistrationResponse"
    return reply_of(name, port_type=f"{ACTION_BRW}/PublisherRegistrationManager")


def find_registration(gateway: Gateway, request: Request, identifier: str) -> Registration:
    """The registration in force with this id, if it is the caller's to see. Raises UnknownResource."""
    registration = gateway.registrations.get(identifier)
    if (
        registration is None
        or registration.expired(times.to_ms(gateway.now()))
        or not may_manage(request.caller, registration.owner, registration.topics)
    ):
        raise UnknownResource(f"there is no registration {identifier[:200]!r} (any more)")
    return registration


def ending(registration_id: str, reason: EndReason, at_ms: int) -> list[ControlRecord]:
    """The records that end a registration: one with the reason, for followers, and a tombstone for compaction."""
    return [RegistrationEnded(registration_id, reason, at_ms), Tombstone.of("pub", registration_id)]


def consumer_address(gateway: Gateway, registration: Registration) -> str:
    """The address for a publisher's notifications: with required registration one that identifies the publisher."""
    # Not `registration.address`: the gateway may have had another address at the registration.
    own = gateway.own
    return own.resource(Kind.REGISTRATION, registration.id) if gateway.settings.requires_registration else own.broker


def _read(gateway: Gateway, request: Request, now: datetime) -> Registration:
    operation = request.operation
    reference = operation.find(wsn_br("PublisherReference"))
    publisher = read_endpoint(reference, request.source(_PARAMETER_DEPTH)) if reference is not None else None
    topics = _read_topics(list(operation.iterchildren(wsn_br("Topic"))))
    check_size(topics)
    check_offer(request.caller, topics)
    for topic in topics:
        check_supported(gateway, topic)
    demand = (operation.findtext(wsn_br("Demand")) or "").strip() in ("1", "true")
    if demand:
        _check_demand(gateway, publisher, topics)
    identifier = resource_id()
    return Registration(
        id=identifier,
        address=gateway.own.resource(Kind.REGISTRATION, identifier),
        publisher=publisher,
        topics=topics,
        demand=demand,
        soap=request.soap,
        addressing=request.addressing is not None,
        created_ms=times.to_ms(now),
        owner=owner_of(request.caller),
        terminates_ms=_read_termination(operation.find(wsn_br("InitialTerminationTime")), now),
    )


def _read_topics(elements: list[etree._Element]) -> tuple[TopicFilter, ...]:
    if len(elements) > limits.REGISTERED_TOPICS:
        raise _rejected(f"a registration may name {limits.REGISTERED_TOPICS} topics, this one names {len(elements)}")
    topics: dict[str, TopicFilter] = {}
    for element in elements:
        try:
            topic = read_filter(element)
        except UnknownDialect as error:
            # RegisterPublisher declares no fault of its own for the dialect.
            raise ExpressionError(str(error)) from error
        if topic.dialect == XPATH:
            raise ExpressionError("a publisher's topics are named by a path dialect, not by an XPath")
        topics.setdefault(topic.normal, topic)
    return tuple(topics.values())


def _check_demand(gateway: Gateway, publisher: EndpointReference | None, topics: tuple[TopicFilter, ...]) -> None:
    if publisher is None:
        raise _rejected("Demand needs a wsn-br:PublisherReference: the address for Subscribe")
    if not topics:
        raise _rejected("Demand needs at least one wsn-br:Topic: the topics for Subscribe")
    check_consumer(publisher, gateway.own, gateway.outbound)


def _read_termination(element: etree._Element | None, now: datetime) -> int | None:
    """A dateTime; the schema allows no duration."""
    if element is None:
        return None
    text = (element.text or "").strip()
    if text.startswith(("P", "-P")):
        raise UnacceptableTermination(
            f"InitialTerminationTime of RegisterPublisher is a dateTime, not a duration like {text[:60]!r}",
            now,
            initial=True,
        )
    return requested_termination(element, now, initial=True)


def _rejected(reason: str) -> OperationRefused:
    return OperationRefused(reason, "PublisherRegistrationRejectedFault")


OPERATIONS: tuple[Operation, ...] = (
    Operation(wsn_br("RegisterPublisher"), register_publisher),
    Operation(wsn_br("DestroyRegistration"), destroy_registration, frozenset({Kind.BROKER, Kind.REGISTRATION})),
)
"""RegisterPublisher at the broker and at /wsn/registrations, DestroyRegistration where the registration is."""
