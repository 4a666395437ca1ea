"""The NotificationBroker port type: Notify and Subscribe, and faults for unsupported operations."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from lxml import etree

from arborcast.core.errors import ExpressionError
from arborcast.ingest.addresses import Target
from arborcast.ingest.elements import dsub
from arborcast.ingest.elements.endpoints import read_endpoint
from arborcast.ingest.elements.filters import read_filters, read_policy
from arborcast.ingest.elements.protection import secret_element
from arborcast.ingest.elements.publication import by_id, of_request
from arborcast.ingest.elements.topics import TopicMemory
from arborcast.ingest.operations import publishing
from arborcast.ingest.operations.gateway import Gateway, Operation, Reply, Stored, reply_of
from arborcast.ingest.operations.publishing import NO_PUBLICATIONS, UNACCEPTED, PublishingClient, PublishRequest
from arborcast.ingest.operations.subscribing import SubscriptionRequest, create_subscription
from arborcast.ingest.soap.shapes import FoundPayload, Shapes
from arborcast.topic_model.message_types import stored_type
from arborcast.topic_model.namespaces import ACTION_BW, WSA, WSNT, XSI, wsa, wsnt
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.wire import answers, limits, times
from arborcast.wire.endpoints import Kind
from arborcast.wire.envelope import PUBLICATION, Request
from arborcast.wire.errors import InvalidRequest
from arborcast.wire.fragments import Node, Source
from arborcast.wire.topics import PublishedTopic
from arborcast.wire.xml_reading import check_payload

PAYLOAD_DEPTH = 6
"""Of a Notify: Envelope, Body, Notify, NotificationMessage, Message, payload."""

AT_A_TIME = 250
"""Messages read in one step, of some milliseconds; then the event loop serves other requests."""

# Envelope, Body, Subscribe, ConsumerReference, (EndpointReference,) ReferenceParameters, parameter.
_PARAMETER_DEPTH = 7

# Envelope, Header, ReplyTo, ReferenceParameters, parameter.
_REPLY_DEPTH = 5

_MESSAGE = wsnt("NotificationMessage")
_TOPIC = wsnt("Topic")
_CONTENT = wsnt("Message")
_PRODUCER = wsnt("ProducerReference")
_NIL = f"{{{XSI}}}nil"

# The forwarded element has the standard's namespace, also if an old client added a slash.
_SLASHED = re.compile(rb"([\"'])(http://docs\.oasis-open\.org/wsn/b-2)/\1")

_topics = TopicMemory()

# The bytes around a payload determine the topic, and the producer (empty for none).
_TopicAndProducer = tuple[PublishedTopic, bytes]
_Known = FoundPayload[_TopicAndProducer]
_shapes: Shapes[_TopicAndProducer] = Shapes()


async def notify(gateway: Gateway, request: Request, target: Target) -> Stored:
    """Accept the messages of a Notify: when this returns they are stored, in their order."""
    topics: dict[bytes, PublishedTopic] = {}
    known = None if target.old else _shapes.find(request)
    notifications, messages = await _read_notify(gateway, request, topics, known, old=target.old)
    options = of_request(request, messages)
    stored = await publishing.publish(
        gateway,
        PublishRequest(
            notifications,
            PublishingClient(request.caller, request.client, target),
            by_id(notifications, options, messages) if options else NO_PUBLICATIONS,
            senders=lambda: list(_senders(request)),
            reply_to=lambda: _reply_to(request),
        ),
    )
    # A refused request has no effect on other publishers.
    if topics:
        _topics.remember(topics)
    if known is None and not target.old:
        _learn(request, notifications[0])
    return stored


async def subscribe(gateway: Gateway, request: Request, _target: Target) -> Reply:
    """Create a subscription, or renew an equal one."""
    operation, now = request.operation, gateway.now()
    policy = read_policy(operation.find(wsnt("SubscriptionPolicy")))
    reference = operation.find(wsnt("ConsumerReference"))
    if reference is None:
        raise InvalidRequest("Subscribe has no wsnt:ConsumerReference")
    created = await create_subscription(
        gateway,
        SubscriptionRequest(
            read_filters(operation.find(wsnt("Filter"))),
            request.caller,
            request.client,
            read_endpoint(reference, request.source(_PARAMETER_DEPTH)),
            policy,
            _initial_termination(gateway, operation.find(wsnt("InitialTerminationTime")), now),
            soap=request.soap,
            addressing=request.addressing is not None,
        ),
    )
    return subscribe_reply(created.subscription, now, created.secret)


def subscribe_reply(granted: Subscription, now: datetime, made_secret: str = "") -> Reply:
    """SubscribeResponse; with the signing secret that was made for it, empty for none."""
    return reply_of(
        ("wsnt", WSNT, "SubscribeResponse"),
        f"{reference_element('wsnt:SubscriptionReference', granted.address)}"
        f"<wsnt:CurrentTime>{times.written(now)}</wsnt:CurrentTime>"
        f"{termination_element(granted)}{secret_element(made_secret)}",
        port_type=f"{ACTION_BW}/NotificationProducer",
    )


def reference_element(name: str, address: str) -> str:
    """An endpoint reference to one of the engine's addresses."""
    return f'<{name} xmlns:wsa="{WSA}"><wsa:Address>{answers.text(address)}</wsa:Address></{name}>'


def termination_element(subscription: Subscription) -> str:
    """wsnt:TerminationTime of an answer."""
    return time_element("wsnt:TerminationTime", subscription.terminates_ms)


def time_element(name: str, at_ms: int | None) -> str:
    """A time of an answer; nil for none."""
    if at_ms is None:
        return f'<{name} xmlns:xsi="{XSI}" xsi:nil="true"/>'
    return f"<{name}>{times.written(times.from_ms(at_ms))}</{name}>"


def requested_termination(element: etree._Element, now: datetime, *, initial: bool) -> int | None:
    """The requested termination time in milliseconds; None without one (nil, or the maximum time)."""
    if is_nil(element):
        return None
    moment = times.grant(element.text or "", now, initial=initial)
    return None if moment is None else times.to_ms(moment)


def is_nil(element: etree._Element) -> bool:
    """Whether an element has no value."""
    return element.get(_NIL, "").strip() in ("1", "true")


def _learn(request: Request, notification: Notification) -> None:
    """Cache the bytes around the payload of a request with one message and an explicit topic."""
    if len(request.operation) != 1:
        return
    parts = [part.tag for part in request.operation[0]]
    if _TOPIC in parts and _CONTENT in parts:
        topic = PublishedTopic(notification.topic, notification.prefixes)
        value = topic, notification.producer
        _shapes.remember(request, request.source(PAYLOAD_DEPTH), parts.index(_CONTENT), value)


async def _read_notify(
    gateway: Gateway, request: Request, topics: dict[bytes, PublishedTopic], known: _Known | None, *, old: bool
) -> tuple[list[Notification], int]:
    """The notifications and the number of their messages; uncached topics are added to `topics`. `old`: in the form of
    HPwsn's clients."""
    message_id = request.addressing.message_id if request.addressing is not None else ""
    notifications: list[Notification] = []

    def add(topic: PublishedTopic, payload: bytes, producer: bytes, kind: str, subject: bytes = b"") -> None:
        notifications.append(
            Notification(
                id=gateway.ids.next(),
                topic=topic.path,
                payload=payload,
                accepted_ms=UNACCEPTED,
                producer=producer,
                message_id=message_id,
                traceparent=request.traceparent,
                prefixes=topic.prefixes,
                subject=subject,
                type=stored_type(kind),
            )
        )

    if known is not None:
        check_payload(known.payload, known.element)
        add(known.value[0], known.payload, known.value[1], str(known.element.tag))
        return notifications, 1
    source = request.source(PAYLOAD_DEPTH)
    messages = 0
    for message, node in zip(request.operation, source.node(request.operation).children, strict=True):
        if message.tag == _MESSAGE:
            messages += 1
            topic, payload, producer, kind = _read_message(message, node, source, messages, topics, old=old)
            if topic is None and message.find(f"{_CONTENT}/{dsub.SUBMITTED}") is not None:
                for each in await _submitted(request, payload):
                    add(PublishedTopic(each.topic, ""), each.payload, producer, dsub.SUBMITTED, each.subject)
                continue
            if topic is None and gateway.default_topic is not None:
                topic = PublishedTopic(gateway.default_topic, "")
            if topic is None:
                raise ExpressionError(
                    f"NotificationMessage {messages} has no wsnt:Topic, and this broker delivers by topic"
                )
            add(topic, payload, producer, kind)
            if len(notifications) % AT_A_TIME == 0:
                await asyncio.sleep(0)
    if not notifications:
        raise InvalidRequest("Notify has no wsnt:NotificationMessage")
    return notifications, messages


async def _submitted(request: Request, payload: bytes) -> list[dsub.EntryNotification]:
    """Notifications of a hospital's registry, which publishes without a topic; a Notify has one such message."""
    if sum(1 for _ in request.operation.iterchildren(_MESSAGE)) != 1:
        raise InvalidRequest("a lcm:SubmitObjectsRequest without a wsnt:Topic must be the only message of its Notify")
    return await publishing.in_thread_if_large(len(payload), dsub.published, payload)


def _read_message(
    message: etree._Element, node: Node, source: Source, number: int, topics: dict[bytes, PublishedTopic], *, old: bool
) -> tuple[PublishedTopic | None, bytes, bytes, str]:
    """Topic (None for none), payload, producer (empty for none) and the payload's name of one NotificationMessage."""
    topic: PublishedTopic | None = None
    payload: bytes | None = None
    producer, kind = b"", ""
    for part, part_node in zip(message, node.children, strict=True):
        name = part.tag
        if name == _TOPIC:
            topic = _topics.read(part, source.identity(part_node), topics, colons=old)
        elif name == _CONTENT:
            if len(part) != 1:
                raise InvalidRequest(
                    f"NotificationMessage {number} has a wsnt:Message with {len(part)} elements; exactly one is needed"
                )
            payload, kind = source.fragment(part_node.children[0]), str(part[0].tag)
            check_payload(payload, part[0])
        elif name == _PRODUCER:
            producer = source.fragment(part_node)
            if len(producer) > limits.PRODUCER:
                raise InvalidRequest(
                    f"NotificationMessage {number}: a wsnt:ProducerReference has {limits.PRODUCER} bytes at most, this "
                    f"one {len(producer)}"
                )
            if old:
                producer = _SLASHED.sub(rb"\g<1>\g<2>\g<1>", producer)
        elif name == PUBLICATION:
            raise InvalidRequest(
                f"NotificationMessage {number} has a p:Publication: it must follow the messages, with "
                f'Messages="{number}" where it is not for all of them'
            )
    if payload is None:
        raise InvalidRequest(f"NotificationMessage {number} has no wsnt:Message")
    return topic, payload, producer, kind


def _reply_to(request: Request) -> EndpointReference | None:
    """The wsa:ReplyTo of a Notify to a work queue; None where no answer is awaited, or only on the connection of the
    request. Raises InvalidRequest."""
    header = next((child for child in request.root if etree.QName(child).localname == "Header"), None)
    element = None if header is None else header.find(wsa("ReplyTo"))
    if element is None or (element.findtext(wsa("Address")) or "").strip().startswith(WSA):
        return None
    return read_endpoint(element, Source(request.document, request.root, _REPLY_DEPTH, header))


def _initial_termination(gateway: Gateway, element: etree._Element | None, now: datetime) -> int | None:
    if element is not None:
        return requested_termination(element, now, initial=True)
    default = gateway.settings.default_termination_s
    return times.to_ms(now + timedelta(seconds=default)) if default else None


def _senders(request: Request) -> Iterator[list[str]]:
    """The addresses in each message by which a registration is found."""
    for message in request.operation.iterchildren(_MESSAGE):
        references = message.iterchildren(_PRODUCER, wsnt("SubscriptionReference"))
        yield [
            (address.text or "").strip()
            for reference in references
            for address in reference.iterdescendants(wsa("Address"))
        ]


OPERATIONS: tuple[Operation, ...] = (
    Operation(wsnt("Notify"), notify, frozenset({Kind.BROKER, Kind.REGISTRATION}), carries_messages=True),
    Operation(wsnt("Subscribe"), subscribe),
)
"""What the broker's address offers. One port type has both sides: a broker is a producer to its subscribers."""
