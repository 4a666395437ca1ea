"""Publishing, the same for each protocol: rights, registration, types, new topics, rates, reply addresses, repetitions.

A protocol translates what it receives into a `PublishRequest` and calls `publish`. The protocol of a client that sends
message after message calls the two halves: `check_message` for each, and `store_each` for several together.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar
from xml.sax.saxutils import escape

import msgspec
from lxml import etree

from arborcast.core.errors import ArborcastError, InfrastructureError, PeerError, UnknownResource
from arborcast.core.xml import parse_xml, xml_parser
from arborcast.ingest.access.grants import ClientRequest, check_fill, check_publish, check_reserved, owner_of
from arborcast.ingest.addresses import Target
from arborcast.ingest.elements.publication import NO_ATTRIBUTES, Publication
from arborcast.ingest.http.inflight import SMALL, Reservation
from arborcast.ingest.operations.gateway import Gateway, Stored, check_callable, endpoint_of
from arborcast.ingest.state.repeats import fingerprint
from arborcast.topic_model import legacy_content
from arborcast.topic_model.grants import Caller
from arborcast.topic_model.message_types import stored_type
from arborcast.topic_model.records.notifications import MAX_PRIORITY, UNSTAMPED, Notification, type_of
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.subscriptions import EndpointReference
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from arborcast.wire import times, xml_reading
from arborcast.wire.endpoints import Kind
from arborcast.wire.envelope import Request
from arborcast.wire.errors import ConsumerRefused, Forbidden, InvalidRequest, NotRegistered
from arborcast.wire.xml_reading import memory_to_read

if TYPE_CHECKING:
    from arborcast.ingest.federation.endpoint import PeerEndpoint

P = ParamSpec("P")
T = TypeVar("T")

# Bytes of a payload that is written as canonical XML, which is done on the event loop: a few milliseconds. libxml2's
# time grows with the square of the namespace declarations.
_MOST_CANONICAL = 16 * 1024

UNACCEPTED = 0
"""The time of acceptance of a notification that a protocol has read: `store` sets it."""

NO_PUBLICATIONS: Mapping[str, Publication] = {}

_BROKER = Target(Kind.BROKER)


class PublishingClient(NamedTuple):
    """The client that publishes, and the address to which it sent its request."""

    caller: Caller | None = None
    """None without authentication."""
    client: str = ""
    """The key of its rates."""
    target: Target = _BROKER


class PublishRequest(NamedTuple):
    """The notifications of one request, in their order."""

    notifications: Sequence[Notification]
    publisher: PublishingClient | None
    """None where rights were checked before: a push of another engine, a message whose parts were accepted."""
    publications: Mapping[str, Publication] = NO_PUBLICATIONS
    """Delivery options, by the id of the notification."""
    senders: Callable[[], Sequence[Iterable[str]]] | None = None
    """Producer addresses in each notification; called only where a registration may be required."""
    reply_to: Callable[[], EndpointReference | None] | None = None
    """The address for the answer; called only where one of the topics is a queue."""
    accepted_ms: int | None = None
    """The time of acceptance, where it is not the present: that of a message whose parts arrived earlier."""


class Checked(NamedTuple):
    """A request that may be stored."""

    notifications: Sequence[Notification]
    publications: Mapping[str, Publication]
    owner: str
    accepted_ms: int | None


async def in_thread_if_large(size: int, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """The result of `work`, which reads this number of bytes: many would block the event loop."""
    return work(*arguments, **named) if size <= SMALL else await asyncio.to_thread(work, *arguments, **named)


def read_payload(payload: bytes, content_type: bytes = b"", what: str = "the payload") -> Request:
    """A request around a payload's element, for any thread. Raises UnreadableRequest."""
    root, document = xml_reading.read_payload(payload, content_type, what)
    request = Request("1.1", root, None, document, root)
    request.source(1)
    return request


def loose_payload(text: bytes) -> bytes:
    """The payload around a text. Raises InvalidRequest."""
    try:
        # A bare carriage return would be read as a line feed.
        return legacy_content.wrap(escape(text.decode(), {"\r": "&#13;"}), {})
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"a payload that is not an XML element has to be text in UTF-8 (at byte {error.start}): encode bytes, in "
            "base64 for instance"
        ) from error


def notification_of(
    gateway: Gateway, topic: TopicPath, request: Request, *, producer: bytes = b"", message_id: str = "", kind: str = ""
) -> Notification:
    """A notification with the payload of `read_payload`; of the type `kind`, else of that of its element."""
    source, element = request.source(1), request.operation
    return Notification(
        gateway.ids.next(),
        topic,
        source.fragment(source.node(element)),
        UNACCEPTED,
        producer=producer,
        message_id=message_id,
        traceparent=request.traceparent,
        type=kind or stored_type(str(element.tag)),
    )


def again(gateway: Gateway, client: ClientRequest | None, size: int) -> PublishingClient:
    """Count another request of `size` bytes for an authenticated client; `client` is None without authentication.
    Raises AccessRefused."""
    if gateway.gate is None or client is None:
        return PublishingClient()
    caller = gateway.gate.again(client)
    gateway.gate.rates.received(client.client, size)
    return PublishingClient(caller, client.client)


async def check_message(
    gateway: Gateway,
    publisher: PublishingClient,
    topic: TopicPath,
    payload: bytes,
    publications: Publication,
    *,
    producer: bytes = b"",
    message_id: str = "",
) -> Checked:
    """One message, read within the memory for requests, and checked; its topic exists when this returns. Raises as
    `check`, MalformedMessage, and InfrastructureError without free memory."""
    inflight, reservation = gateway.inflight, Reservation(gateway.inflight)
    try:
        if not inflight.take(reservation, memory_to_read(payload, gateway.settings.max_elements)):
            raise inflight.no_memory()
        request = await in_thread_if_large(len(payload), read_payload, payload)
    finally:
        reservation.release()
    notification = notification_of(gateway, topic, request, producer=producer, message_id=message_id)
    checked = await check(gateway, PublishRequest([notification], publisher, {notification.id: publications}))
    await gateway.admit({topic: ""})
    return checked


async def publish(gateway: Gateway, request: PublishRequest) -> Stored:
    """Check a request and store it: when this returns, it is in the log. Raises as `check` and `store`."""
    checked = await check(gateway, request)
    new = await store(gateway, checked)
    return Stored([each.id for each in checked.notifications] if new else ())


async def check(gateway: Gateway, request: PublishRequest) -> Checked:
    """Check that the request may be stored, and count it for its client's rates.

    Raises Forbidden, NotRegistered, UnknownResource, InvalidRequest, TopicNotSupported, TooManyTopics, TooManyRequests,
    or another InfrastructureError.
    """
    notifications, publisher = request.notifications, request.publisher
    topics = [each.topic for each in notifications]
    if publisher is None:
        check_reserved(topics)
    else:
        check_rights(gateway, publisher, topics, request.senders)
    if gateway.topics.check_types:
        check_types(gateway.table.topics, notifications, request.publications)
    gateway.check_new(topics)
    if publisher is not None:
        check_rate(gateway, publisher, topics)
        if request.reply_to is not None and any(map(gateway.is_queue, topics)):
            notifications = await _with_reply_to(gateway, publisher, notifications, request.reply_to)
    return Checked(
        notifications,
        request.publications,
        "" if publisher is None else owner_of(publisher.caller),
        request.accepted_ms,
    )


async def store(gateway: Gateway, checked: Checked) -> bool:
    """Store a checked request, unless it is a repetition: False, it is stored under other ids.

    Raises TopicNotSupported, TooManyTopics or another InfrastructureError.
    """
    if checked.notifications[0].message_id and gateway.repeats.enabled:
        publications = [checked.publications.get(each.id, NO_ATTRIBUTES) for each in checked.notifications]
        request = fingerprint(checked.notifications, checked.owner, publications)
        return await gateway.repeats.once(request, lambda: _store(gateway, checked, request))
    await _store(gateway, checked)
    return True


async def store_each(gateway: Gateway, requests: Sequence[Checked]) -> list[bool | ArborcastError]:
    """The results of `store` for requests of one owner, in their order: stored together, or one by one if one of them
    is refused. After an InfrastructureError nothing more is stored."""
    try:
        return [await store(gateway, joined(requests))] * len(requests)
    except InfrastructureError as error:
        return [error] * len(requests)
    except PeerError as error:
        if len(requests) == 1:
            return [error]
    results: list[bool | ArborcastError] = []
    for each in requests:
        failed = bool(results) and isinstance(results[-1], InfrastructureError)
        results += results[-1:] if failed else await store_each(gateway, [each])
    return results


def joined(requests: Sequence[Checked]) -> Checked:
    """Requests of one owner without message ids, as one request."""
    first = requests[0]
    if len(requests) == 1:
        return first
    publications = {name: each for request in requests for name, each in request.publications.items()}
    return first._replace(
        notifications=[each for request in requests for each in request.notifications], publications=publications
    )


def check_rights(
    gateway: Gateway,
    publisher: PublishingClient,
    topics: Sequence[TopicPath],
    senders: Callable[[], Sequence[Iterable[str]]] | None = None,
) -> None:
    """Check that a client may publish on these topics: by the policy, the properties of each topic, and its
    registration.

    A notification comes from a registration when the request was sent to the registration's own address (the
    ConsumerReference of the answer to RegisterPublisher), when the message's ProducerReference has the address that was
    registered as PublisherReference, or when its SubscriptionReference is the engine's subscription at that publisher.
    Without encryption a client that can read a reference can use it.

    Raises Forbidden; UnknownResource if the request was sent to an invalid registration; NotRegistered if the settings
    require a registration and none of the sender covers a topic.
    """
    check_publish(publisher.caller, topics, gateway.table.topics)
    target, required = publisher.target, gateway.settings.requires_registration
    if not required and target.kind is not Kind.REGISTRATION:
        return
    now_ms = times.to_ms(gateway.now())
    named = gateway.registrations.get(target.id) if target.kind is Kind.REGISTRATION else None
    if target.kind is Kind.REGISTRATION and (named is None or named.expired(now_ms)):
        raise UnknownResource(f"there is no registration {target.id[:200]!r} (any more)")
    if not required:
        return
    addresses: Sequence[Iterable[str]] = [()] * len(topics) if senders is None else senders()
    if len(addresses) == 1:  # one message may mean several notifications (`elements.dsub`)
        addresses = list(addresses) * len(topics)
    for topic, sent_from in zip(topics, addresses, strict=True):
        sent_from = tuple(sent_from)
        known_as = (gateway.registrations.known_as(address, topic) for address in sent_from)
        candidates = chain([named] if named else (), *known_as)
        if not any(gateway.registrations.permits(one, topic, now_ms) for one in candidates):
            raise NotRegistered(
                f"only registered publishers may publish here, and no registration of this one covers the topic {topic}"
                if named is not None or any(map(gateway.registrations.is_known, sent_from))
                else "only registered publishers may publish here: send RegisterPublisher, then Notify to the "
                "ConsumerReference of the answer, or with a wsnt:ProducerReference equal to the PublisherReference"
            )


def check_rate(gateway: Gateway, publisher: PublishingClient, topics: Iterable[TopicPath]) -> None:
    """Raises TooManyRequests for a publisher whose notifications have been pushed too often in the last minute.

    The count is that of the current subscribers of these topics in this gateway's view.
    """
    if gateway.gate is not None:
        table = gateway.table
        gateway.gate.rates.deliveries(publisher.client, lambda: sum(map(table.fan_out, topics)))


def check_types(
    tree: TopicTree, notifications: Sequence[Notification], publications: Mapping[str, Publication] = NO_PUBLICATIONS
) -> None:
    """Raises InvalidRequest for a notification whose type its topic does not allow; a topic without types allows
    all."""
    for number, each in enumerate(notifications, start=1):
        record = tree.get(each.topic)
        if record is None or not record.message_types:
            continue
        kind = publications.get(each.id, NO_ATTRIBUTES).type or type_of(each)
        if kind not in record.message_types:
            raise InvalidRequest(
                f"message {number} is of the type {kind:.200}, and the topic {each.topic:.200} takes "
                f"{' '.join(record.message_types):.500}"
            )


async def _with_reply_to(
    gateway: Gateway,
    publisher: PublishingClient,
    notifications: Sequence[Notification],
    read: Callable[[], EndpointReference | None],
) -> Sequence[Notification]:
    """The notifications of a queue with the address for their answers, checked as a ConsumerReference. Raises
    InvalidRequest."""
    reply_to = read()
    if reply_to is None:
        return notifications
    if not notifications[0].message_id:
        raise InvalidRequest("a request with a wsa:ReplyTo needs a wsa:MessageID, which its answer names")
    if len(notifications) > 1:
        raise InvalidRequest("a Notify with a wsa:ReplyTo may have only one message, for one answer")
    try:
        reply_to, point = endpoint_of(gateway, reply_to)
        if point is None:
            await check_callable(gateway, reply_to.address, owner_of(publisher.caller), once=True)
        else:
            check_fill(publisher.caller, point)
    except (ConsumerRefused, Forbidden) as error:
        raise InvalidRequest(str(error).replace("ConsumerReference", "wsa:ReplyTo")) from error
    return [msgspec.structs.replace(notifications[0], reply_to=reply_to, reply_point="" if point is None else point.id)]


def merge_key(payload: bytes, key: str) -> bytes:
    """The key of equal requests: the payload as exclusive canonical XML, a long one byte for byte, and the publisher's
    key. Empty for an unreadable payload."""
    if len(payload) > _MOST_CANONICAL:
        return hashlib.blake2b(key.encode() + b"\0\0" + payload, digest_size=16).digest()
    try:
        root = parse_xml(payload, xml_parser())
        written = etree.tostring(root, method="c14n", exclusive=True, with_comments=False)
    except (etree.XMLSyntaxError, etree.C14NError):
        return b""
    return hashlib.blake2b(key.encode() + b"\0" + written, digest_size=16).digest()


def _accepted(
    notification: Notification,
    table: RoutingTable,
    publications: Publication,
    request: tuple[int, bytes, int],
    split_bytes: int,
    federation: PeerEndpoint | None,
) -> Notification:
    """A notification in its stored form: `request` has the time of acceptance, the fingerprint and the size of its
    request; options are those of the publisher, else of the topic. `split_bytes` applies to topics with the option
    split."""
    tree = table.topics
    policy, priority = tree.policy(notification.topic), publications.priority
    accepted_ms, known_as, request_size = request
    distribution, fast = "", False
    if federation is not None:
        # The engine that accepted it first determined the distribution, if any.
        distribution = notification.distribution or tree.distribution(notification.topic)
        fast = tree.is_fast(notification.topic, federation.fast_in_group)
    if priority is None:
        # A directory may have a value out of range.
        priority = max(-MAX_PRIORITY, min(policy.priority, MAX_PRIORITY))
    return msgspec.structs.replace(
        notification,
        prefixes=tree.prefixes.complete(notification.topic, notification.prefixes),
        accepted_ms=accepted_ms,
        request=known_as,
        request_size=request_size,
        control=table.position,
        valid_until_ms=publications.until_ms(accepted_ms),
        priority=priority,
        type=publications.type or notification.type,
        reliable=publications.reliable or notification.reliable or policy.reliable,
        split_bytes=split_bytes if policy.split else 0,
        queue=policy.queue,
        merge=merge_key(notification.payload, publications.merge) if policy.queue and policy.merge else b"",
        distribution=distribution,
        fast=fast,
        unchanged=UNSTAMPED if notification.only else table.changed_before(notification.topic),
    )


async def _store(gateway: Gateway, checked: Checked, request: bytes = b"") -> None:
    """`request` is the fingerprint of the request; each record has it, for the time after a restart."""
    # All topics first: an await between two messages of a request would allow another request between them.
    notifications, publications, table = checked.notifications, checked.publications, gateway.table
    if new := {each.topic: each.prefixes for each in notifications if each.topic not in table.topics}:
        await gateway.admit(new)
    await gateway.changes.keep_up()
    # The recipients are fixed now, and computed at matching.
    accepted_ms = times.to_ms(gateway.now()) if checked.accepted_ms is None else checked.accepted_ms
    facts = accepted_ms, request, len(notifications) if request else 1
    split_bytes, federation = gateway.fragments.bytes, gateway.federation
    stored = [
        _accepted(each, table, publications.get(each.id, NO_ATTRIBUTES), facts, split_bytes, federation)
        for each in notifications
    ]
    # The last of each topic that keeps it.
    retained = {each.topic: each for each in stored if gateway.retains(each.topic)}
    context = stored[0].traceparent
    if gateway.tracing is None or not context:
        await gateway.notifications.append(stored, list(retained.values()))
        return
    with gateway.tracing.span("append", "producer", context, {"arborcast.notifications": len(stored)}):
        await gateway.notifications.append(stored, list(retained.values()))
