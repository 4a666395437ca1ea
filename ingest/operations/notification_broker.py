"""The NotificationBroker port type: Notify and Subscribe, and honest refusals of what is not offered."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from lxml import etree

from arborcast.core.errors import ExpressionError, TopicNotSupported
from arborcast.ingest.access.grants import check_fill, check_publish, check_serve, check_subscribe, may_manage, owner_of
from arborcast.ingest.addresses import Target, resource_id
from arborcast.ingest.consumers import check_name
from arborcast.ingest.elements import dsub
from arborcast.ingest.elements.endpoints import judge_consumer
from arborcast.ingest.elements.filters import QUEUE, SubscriptionPolicy, check_server, read_filters, read_policy
from arborcast.ingest.elements.protection import RequestedProtection, secret_element
from arborcast.ingest.elements.publication import Said, apply, of_request
from arborcast.ingest.elements.reply_to import with_reply_to
from arborcast.ingest.elements.topics import TopicMemory
from arborcast.ingest.operations.acceptance import NO_PUBLICATIONS, accept
from arborcast.ingest.operations.current_message import Since, check_few, send_current_messages
from arborcast.ingest.operations.gateway import (
    Gateway,
    Operation,
    Reply,
    Stored,
    check_fan_out,
    check_room,
    check_sender,
)
from arborcast.ingest.soap.shapes import FoundPayload, Shapes
from arborcast.topic_model.expressions import XPathPattern, compile_normal
from arborcast.topic_model.message_types import kept_type
from arborcast.topic_model.namespaces import ACTION_BW, WSA, WSNT, XSI, wsnt
from arborcast.topic_model.patterns.patterns import Pattern
from arborcast.topic_model.records.control import ControlRecord, PullPointRecord, SubscriptionRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing.rest import selects_any
from arborcast.topic_model.subscriptions import EndpointReference, Subscription, TopicFilter
from arborcast.wire import answers, times
from arborcast.wire.endpoints import Kind, read_reference
from arborcast.wire.envelope import PUBLICATION, Request
from arborcast.wire.errors import ConsumerRefused, InvalidRequest, OperationRefused, UnsupportedPolicy
from arborcast.wire.fragments import Node, Source
from arborcast.wire.topics import PublishedTopic
from arborcast.wire.xml_reading import check_payload

PAYLOAD_DEPTH = 6
"""Of a Notify: Envelope, Body, Notify, NotificationMessage, Message, payload."""

# So many messages are read before other requests have their turn: some milliseconds.
_AT_A_TIME = 250

# Envelope, Body, Subscribe, ConsumerReference, (EndpointReference,) ReferenceParameters, parameter.
_PARAMETER_DEPTH = 7

# Bytes.
_MOST_PRODUCER = 16 * 1024

_MESSAGE = wsnt("NotificationMessage")
_TOPIC = wsnt("Topic")
_CONTENT = wsnt("Message")
_PRODUCER = wsnt("ProducerReference")
_NIL = f"{{{XSI}}}nil"

# What is passed on has the standard's namespace, also where an old client put a slash behind it.
_SLASHED = re.compile(rb"([\"'])(http://docs\.oasis-open\.org/wsn/b-2)/\1")

_topics = TopicMemory()

# What stands around a payload says the topic, and the producer (empty for none).
_Said = tuple[PublishedTopic, bytes]
_Known = FoundPayload[_Said]
_shapes: Shapes[_Said] = Shapes()


async def notify(gateway: Gateway, request: Request, target: Target) -> Stored:
    """Accept the messages of a Notify: when this returns they are stored, in their order."""
    topics: dict[bytes, PublishedTopic] = {}
    known = None if target.old else _shapes.find(request)
    notifications, said = await _read_notify(gateway, request, topics, known, old=target.old)
    published = [notification.topic for notification in notifications]
    check_publish(request.caller, published, gateway.table.topics)
    check_sender(gateway, request, target, notifications)
    gateway.check_new(published)
    check_fan_out(gateway, request, published)
    notifications = with_reply_to(
        notifications, request, gateway.table.topics.policy, lambda reference: _answered_at(gateway, request, reference)
    )
    await _check_answered_at(gateway, request, notifications[0])
    _topics.remember(topics)
    if known is None and not target.old:
        _learn(request, notifications[0])
    new = await accept(gateway, notifications, said, owner=owner_of(request.caller))
    return Stored([each.id for each in notifications] if new else ())


async def subscribe(gateway: Gateway, request: Request, _target: Target) -> Reply:
    """Create a subscription, or renew the equal one that is there."""
    now = gateway.now()
    policy = read_policy(request.operation.find(wsnt("SubscriptionPolicy")))
    wanted = _read_subscribe(gateway, request, policy, now)
    if policy.current_message:
        await check_few(gateway, wanted, request.client)
    if not wanted.pull_point:
        await check_name(gateway.dns_check, wanted.consumer.address)
        if gateway.proof is not None and gateway.table.find_equal(wanted) is None:
            await gateway.proof.ask(wanted.consumer.address, wanted.owner)
    async with gateway.locks.hold(("pull point", wanted.pull_point or wanted.id)):
        if wanted.pull_point and gateway.pull_points.get(wanted.pull_point) is None:
            raise ConsumerRefused("the pull point was destroyed at this moment")
        granted, made_secret, since = await _renewed_equal(gateway, wanted, policy.protection)
    if policy.current_message:
        await send_current_messages(gateway, granted, since)
    return subscribe_reply(granted, now, made_secret)


def subscribe_reply(granted: Subscription, now: datetime, made_secret: str = "") -> Reply:
    """SubscribeResponse; with the signing secret that was made for it, empty for none."""
    body = (
        f'<wsnt:SubscribeResponse xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}"><wsnt:SubscriptionReference>'
        f"<wsa:Address>{answers.text(granted.address)}</wsa:Address></wsnt:SubscriptionReference>"
        f"<wsnt:CurrentTime>{times.written(now)}</wsnt:CurrentTime>"
        f"{termination_element(granted)}{secret_element(made_secret)}</wsnt:SubscribeResponse>"
    )
    return Reply(body, f"{ACTION_BW}/NotificationProducer/SubscribeResponse")


async def _renewed_equal(
    gateway: Gateway, wanted: Subscription, requested: RequestedProtection | None
) -> tuple[Subscription, str, Since]:
    """The subscription equal to `wanted`, with its termination time; `wanted` itself where there is none.

    It is protected as requested, else as it was. Also returns the signing secret that was made for it (empty for none),
    and since when it is as it is.
    """
    async with gateway.locks.hold(wanted.identity()):
        while (existing := gateway.table.find_equal(wanted)) is not None:
            async with gateway.locks.hold(existing.id):
                if gateway.table.get(existing.id) != existing:
                    continue  # changed or ended while we waited for it
                # Who subscribes again wants messages, whether or not it remembers that it paused, and in the form in
                # which it speaks now.
                renewed = msgspec.structs.replace(
                    existing,
                    terminates_ms=wanted.terminates_ms,
                    paused=False,
                    addressing=wanted.addressing,
                    queue=wanted.queue,
                )
                renewed, made_secret = _protected(gateway, renewed, requested)
                resumed = gateway.suspensions.taking_back(existing.id)
                now_ms, offset = times.to_ms(gateway.now()), gateway.table.position - 1
                if renewed != existing or resumed:
                    offset = await gateway.changes.commit([SubscriptionRecord(renewed), *resumed])
                return renewed, made_secret, Since(offset, now_ms)
        check_room(gateway, wanted.owner)
        wanted, made_secret = _protected(gateway, wanted, requested)
        made, since = await commit_new(gateway, wanted)
        return made, made_secret, since


async def commit_new(
    gateway: Gateway, subscription: Subscription, also: Sequence[ControlRecord] = ()
) -> tuple[Subscription, Since]:
    """Put a new subscription into the log, made at this moment: what is accepted later belongs to it. With it go the
    records `also`; a provisional pull point that it fills lasts from now on."""
    made = msgspec.structs.replace(subscription, created_ms=times.to_ms(gateway.now()))
    records: list[ControlRecord] = [SubscriptionRecord(made), *also]
    point = gateway.pull_points.get(made.pull_point)
    if point is not None and point.until_ms:
        records.append(msgspec.structs.replace(point, until_ms=0))
    return made, Since(await gateway.changes.commit(records), made.created_ms, new=True)


def _protected(
    gateway: Gateway, subscription: Subscription, requested: RequestedProtection | None
) -> tuple[Subscription, str]:
    if requested is None:
        return subscription, ""
    return gateway.protector.grant(subscription, requested, times.to_ms(gateway.now()))


def termination_element(subscription: Subscription) -> str:
    """wsnt:TerminationTime of an answer; nil for no end."""
    if subscription.terminates_ms is None:
        return f'<wsnt:TerminationTime xmlns:xsi="{XSI}" xsi:nil="true"/>'
    moment = times.from_ms(subscription.terminates_ms)
    return f"<wsnt:TerminationTime>{times.written(moment)}</wsnt:TerminationTime>"


def requested_termination(element: etree._Element, now: datetime, *, initial: bool) -> int | None:
    """The end that a request asks for, in milliseconds; None for none at all (nil, or the end of all time)."""
    if element.get(_NIL, "").strip() in ("1", "true"):
        return None
    moment = times.grant(element.text or "", now, initial=initial)
    return None if moment is None else times.to_ms(moment)


def _learn(request: Request, notification: Notification) -> None:
    """Remember what stands around the payload of a request with one message on a topic that it names."""
    if len(request.operation) != 1:
        return
    parts = [part.tag for part in request.operation[0]]
    if _TOPIC in parts and _CONTENT in parts:
        topic = PublishedTopic(notification.topic, notification.prefixes)
        said = topic, notification.producer
        _shapes.learn(request, request.source(PAYLOAD_DEPTH), parts.index(_CONTENT), said)


async def _read_notify(
    gateway: Gateway, request: Request, topics: dict[bytes, PublishedTopic], known: _Known | None, *, old: bool
) -> Said:
    """The messages; into `topics` those topics that were not known. `old`: as HPwsn's clients write them."""
    accepted_ms = times.to_ms(gateway.now())
    message_id = request.addressing.message_id if request.addressing is not None else ""
    notifications: list[Notification] = []

    def add(topic: PublishedTopic, payload: bytes, producer: bytes, kind: str) -> None:
        notifications.append(
            Notification(
                id=gateway.ids.next(),
                topic=topic.path,
                payload=payload,
                accepted_ms=accepted_ms,
                producer=producer,
                message_id=message_id,
                traceparent=request.traceparent,
                prefixes=topic.prefixes,
                type=kept_type(kind),
            )
        )

    if known is not None:
        check_payload(known.payload, known.element)
        add(known.said[0], known.payload, known.said[1], known.name)
        return _with_said(request, notifications, 1)
    source = request.source(PAYLOAD_DEPTH)
    messages = 0
    for message, node in zip(request.operation, source.node(request.operation).children, strict=True):
        if message.tag == _MESSAGE:
            messages += 1
            topic, payload, producer, kind = _read_message(message, node, source, messages, topics, old=old)
            if topic is None and message.find(f"{_CONTENT}/{dsub.SUBMITTED}") is not None:
                notifications += _submitted(gateway, request, payload, producer)
                continue
            if topic is None and gateway.default_topic is not None:
                topic = PublishedTopic(gateway.default_topic, "")
            if topic is None:
                raise ExpressionError(
                    f"NotificationMessage {messages} has no wsnt:Topic, and this broker delivers by topic"
                )
            add(topic, payload, producer, kind)
            if len(notifications) % _AT_A_TIME == 0:
                await asyncio.sleep(0)
    if not notifications:
        raise InvalidRequest("Notify holds no wsnt:NotificationMessage")
    return _with_said(request, notifications, messages)


def _with_said(request: Request, notifications: list[Notification], messages: int) -> Said:
    said = of_request(request, messages)
    return apply(notifications, said, messages) if said else Said(notifications, NO_PUBLICATIONS)


def _submitted(gateway: Gateway, request: Request, payload: bytes, producer: bytes) -> list[Notification]:
    """What a hospital's registry publishes without a topic; it is the only message of its Notify."""
    if sum(1 for _ in request.operation.iterchildren(_MESSAGE)) != 1:
        raise InvalidRequest("a lcm:SubmitObjectsRequest without a wsnt:Topic must be the only message of its Notify")
    message_id = request.addressing.message_id if request.addressing is not None else ""
    return [
        Notification(
            gateway.ids.next(),
            each.topic,
            each.payload,
            times.to_ms(gateway.now()),
            producer=producer,
            message_id=message_id,
            traceparent=request.traceparent,
            subject=each.subject,
            type=dsub.SUBMITTED,
        )
        for each in dsub.published(payload)
    ]


def _read_message(
    message: etree._Element,
    node: Node,
    source: Source,
    number: int,
    topics: dict[bytes, PublishedTopic],
    *,
    old: bool,
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
            if len(producer) > _MOST_PRODUCER:
                raise InvalidRequest(
                    f"NotificationMessage {number}: a wsnt:ProducerReference has {_MOST_PRODUCER} bytes at most, this "
                    f"one {len(producer)}"
                )
            if old:
                producer = _SLASHED.sub(rb"\g<1>\g<2>\g<1>", producer)
        elif name == PUBLICATION:
            raise InvalidRequest(
                f"NotificationMessage {number} holds a p:Publication: that stands behind the messages, with "
                f'Messages="{number}" where it is not for all of them'
            )
    if payload is None:
        raise InvalidRequest(f"NotificationMessage {number} has no wsnt:Message")
    return topic, payload, producer, kind


def _read_subscribe(gateway: Gateway, request: Request, policy: SubscriptionPolicy, now: datetime) -> Subscription:
    operation = request.operation
    reference = operation.find(wsnt("ConsumerReference"))
    if reference is None:
        raise InvalidRequest("Subscribe has no wsnt:ConsumerReference")
    consumer = read_reference(reference, request.source(_PARAMETER_DEPTH))
    consumer, point = _judged(gateway, consumer)
    if point is not None:
        check_fill(request.caller, point)
        if policy.form != "notify":
            raise OperationRefused("a pull point keeps whole messages, not raw ones", "UnsupportedPolicyRequestFault")
        if policy.queue:
            raise UnsupportedPolicy(
                "with p:Queue requests are pushed: a pull point cannot say that it is idle", (QUEUE,)
            )
    filters = read_filters(operation.find(wsnt("Filter")))
    check_subscribe(request.caller, filters.topics)
    if policy.queue:
        check_serve(request.caller, filters.topics)
    for expression in filters.topics:
        check_supported(gateway, expression)
    if policy.queue:
        check_server(filters, gateway.table.topics)
    identifier = resource_id()
    return Subscription(
        id=identifier,
        consumer=consumer,
        address=gateway.own.resource(Kind.SUBSCRIPTION, identifier),
        topics=filters.topics,
        content=filters.content,
        producer=filters.producer,
        types=filters.types,
        form=policy.form,
        policy=policy.delivery,
        soap=request.soap,
        addressing=request.addressing is not None,
        created_ms=times.to_ms(now),
        terminates_ms=_initial_termination(gateway, operation.find(wsnt("InitialTerminationTime")), now),
        owner=owner_of(request.caller),
        pull_point=point.id if point is not None else "",
        queue=policy.queue,
    )


def _judged(gateway: Gateway, reference: EndpointReference) -> tuple[EndpointReference, PullPointRecord | None]:
    """Where a reference leads, and the pull point of ours that this is. Raises ConsumerRefused."""
    point = judge_consumer(reference, gateway.own, gateway.pull_points, gateway.outbound)
    return (reference, None) if point is None else (EndpointReference(point.address), point)


def _answered_at(gateway: Gateway, request: Request, reference: EndpointReference) -> tuple[EndpointReference, str]:
    """Where a wsa:ReplyTo leads, and the id of the pull point of ours that this is. Raises ConsumerRefused."""
    reference, point = _judged(gateway, reference)
    if point is not None and not may_manage(request.caller, point.owner):
        # As for one that is not there.
        raise ConsumerRefused(f"the ConsumerReference is a pull point that is not there: {point.id!r}")
    return reference, "" if point is None else point.id


async def _check_answered_at(gateway: Gateway, request: Request, notification: Notification) -> None:
    """See that the server of a queue may send an answer there, as for a ConsumerReference. Raises InvalidRequest."""
    if notification.reply_to is None or notification.reply_point:
        return
    try:
        await check_name(gateway.dns_check, notification.reply_to.address)
        if gateway.proof is not None:
            await gateway.proof.ask_once(notification.reply_to.address, owner_of(request.caller))
    except ConsumerRefused as error:
        raise InvalidRequest(str(error).replace("ConsumerReference", "wsa:ReplyTo")) from error


def _initial_termination(gateway: Gateway, element: etree._Element | None, now: datetime) -> int | None:
    if element is not None:
        return requested_termination(element, now, initial=True)
    default = gateway.settings.default_termination_s
    return times.to_ms(now + timedelta(seconds=default)) if default else None


def check_supported(gateway: Gateway, expression: TopicFilter) -> None:
    """Raises ExpressionError for an expression that costs too much, of it TopicNotSupported for one that, with a fixed
    topic set, selects nothing and never will.
    """
    pattern = compile_normal(expression.normal)
    if isinstance(pattern, Pattern) and pattern.steps > gateway.settings.expression_steps:
        raise ExpressionError(
            f"the expression has {pattern.steps} steps from the first wildcard of each alternative on, "
            f"{gateway.settings.expression_steps} are taken: use fewer alternatives, or several subscriptions",
        )
    if not gateway.topics.fixed:
        return
    tree = gateway.table.topics
    if not (pattern.select(tree) if isinstance(pattern, XPathPattern) else selects_any(pattern, tree)):
        raise TopicNotSupported(f"the expression {expression.text!r} selects no topic of the fixed topic set")


OPERATIONS: tuple[Operation, ...] = (
    Operation(wsnt("Notify"), notify, frozenset({Kind.BROKER, Kind.REGISTRATION}), carries_messages=True),
    Operation(wsnt("Subscribe"), subscribe, frozenset({Kind.BROKER})),
)
"""What the broker's address offers. One port type has both sides: a broker is a producer to its subscribers."""
