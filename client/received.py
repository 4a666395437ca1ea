"""Parsing messages from a broker: pushes, messages of a pull point, and answers to requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import MAXYEAR, datetime
from typing import IO

from lxml import etree

from arborcast.client.later import DeferredResult, OpenPush
from arborcast.client.transport import retry_after_s
from arborcast.client.values import (
    BrokerUnavailable,
    ClientError,
    FaultReceived,
    Remote,
    RemotePullPoint,
    RemoteRegistration,
    RemoteSubscription,
    UnreadableAnswer,
)
from arborcast.core.errors import PeerError
from arborcast.core.security.signatures import TOLERANCE_S, check, key_of, new_secret
from arborcast.topic_model.legacy_content import unwrap
from arborcast.topic_model.namespaces import (
    ARBORCAST_DELIVERY,
    ARBORCAST_POLICY,
    HPWSN_PUSH,
    SOAP11,
    SOAP_FAULTS,
    WSRF_BF,
    wsa,
    wsn_br,
    wsnt,
)
from arborcast.topic_model.records.packages import (
    PACKAGE_HEADER,
    Fragment,
    read_content,
    read_package_header,
    unwrap_part,
)
from arborcast.topic_model.topics import TopicPath
from arborcast.wire import times
from arborcast.wire.endpoints import read_reference
from arborcast.wire.envelope import Request, parse
from arborcast.wire.errors import InvalidRequest
from arborcast.wire.fragments import Source
from arborcast.wire.topics import read_topic

__all__ = ["ReceivedMessage", "SignedWith", "new_secret", "read_messages", "read_push", "read_push_request"]


class SignedWith:
    """A `verify` of listeners: raises SignatureError for a push that is not signed with any of these secrets, or too
    old.

    While a secret is being replaced, pass both. The constructor raises SecretError for an invalid secret.
    """

    def __init__(self, *secrets: str, tolerance_s: float = TOLERANCE_S) -> None:
        self.trust(*secrets)
        self._tolerance_s = tolerance_s

    def trust(self, *secrets: str) -> None:
        """Replace the accepted secrets."""
        self._keys = tuple(key_of(secret) for secret in secrets)

    def __call__(self, headers: Mapping[str, str], body: bytes) -> None:
        check(self._keys, headers, body, time.time(), self._tolerance_s)


# Envelope, Body, Notify or GetMessagesResponse, NotificationMessage, Message, payload.
PAYLOAD_DEPTH = 6

_RAW_DEPTH = 3

# Envelope, Header, Delivery, Request, ReplyTo, ReferenceParameters, parameter.
_ASKER_DEPTH = 7

# In an answer through a pull point, which does not store headers.
_RELATED = f"{wsnt('ProducerReference')}/{wsa('ReferenceParameters')}/{wsa('RelatesTo')}"

# In pull points, which keep no headers.
_METADATA = f"{wsnt('SubscriptionReference')}/{wsa('Metadata')}/{{{ARBORCAST_DELIVERY}}}"

# Brokers of the HPwsn family push one message, with its content as text.
_OLD_PUSH = f"{{{HPWSN_PUSH}}}notificationProcess"

_SECRET = f"{{{ARBORCAST_POLICY}}}Signing/{{{ARBORCAST_POLICY}}}Secret"


@dataclass(frozen=True)
class Requester:
    """A client that awaits an answer: the ids of its notification and of its request, and the address for the
    answer."""

    notification_id: str
    message_id: str
    reply_to: Remote


@dataclass(frozen=True)
class ReceivedPart:
    """A part of a message: the id of the message, the number of the part, and its content. `subscription` is the id of
    the pushed subscription, empty from old brokers."""

    identification: str
    fragment: Fragment
    content: bytes = field(repr=False)
    subscription: str = ""


@dataclass(frozen=True)
class ReceivedMessage:
    """A received notification.

    `payload` is self-contained XML in UTF-8; from old brokers the pushed content, which may be any text. `topic` and
    `subscription` (the subscription manager's address) are None in raw and old pushes. `notification_id` is the same on
    every attempt, empty if the broker sends none; `attempt` counts from 1. `replay` is the name of the replay, empty
    for an ordinary push. `part` is set for a part of a message. `file` has the content of a large message that was
    joined from parts, with an empty payload; the receiver closes it. `sequence` is the number of earlier pushes,
    `requesters` are the clients that await an answer, and `relates_to` is, for an answer, the message id of the
    request.
    """

    payload: bytes
    topic: TopicPath | None = None
    subscription: str | None = None
    notification_id: str = ""
    attempt: int = 1
    replay: str = ""
    part: ReceivedPart | None = None
    file: IO[bytes] | None = field(default=None, compare=False)
    sequence: int = 0
    requesters: tuple[Requester, ...] = ()
    relates_to: str = ""
    push: OpenPush | None = field(default=None, repr=False, compare=False)

    def later(self) -> DeferredResult:
        """Defer the result: the push is acknowledged now, and the result reported with the returned object. Raises
        ClientError if the broker does not accept later results."""
        if self.push is None:
            raise ClientError("only the result of a push to a listener can be deferred")
        return self.push.later()


OnMessage = Callable[[ReceivedMessage], None]

Verify = Callable[[Mapping[str, str], bytes], None]

"""Checks a push by its HTTP headers (names in lower case) and its body; raises to refuse it."""


def read_push(
    body: bytes, content_type: bytes, ids: str = "", attempt: int = 1, packages: str = "", subscription: str = ""
) -> list[ReceivedMessage]:
    """The messages in a push: those of a wsnt:Notify, or the single message of a raw or an old push. Raises PeerError.

    `ids` are the notifications' ids in order, separated by commas, as in Arborcast's HTTP header; `packages` are the
    values of PACKAGE_HEADER for parts, in the same form. `subscription` is the subscription's id.
    """
    request = parse(body, content_type)
    if request.name == _OLD_PUSH:
        text, first_id = request.operation.text or "", ids.partition(",")[0]
        unwrapped = unwrap_part(text)
        if unwrapped is not None:
            fragment, identification, content = unwrapped
            part = ReceivedPart(identification, fragment, content.encode(), subscription)
            return [ReceivedMessage(part.content, notification_id=first_id, attempt=attempt, part=part)]
        messages = [ReceivedMessage(text.encode(), notification_id=first_id, attempt=attempt)]
    else:
        messages = _read_messages(request, ids.split(",") if ids else [], attempt)
    if not packages:
        return messages
    values = iter(packages.split(","))
    old = request.name == _OLD_PUSH
    return [_as_part(message, next(values, "-"), subscription, as_pushed=old) for message in messages]


def _as_part(message: ReceivedMessage, package: str, subscription: str, *, as_pushed: bool = False) -> ReceivedMessage:
    """The message with its `part`; unchanged if `package` is not a part. `as_pushed`: the payload is the content."""
    part = read_package_header(package)
    if part is None:
        return message
    content = message.payload if as_pushed else read_content(unwrap(message.payload).decode()).encode()
    return replace(message, part=ReceivedPart(part[1], part[0], content, subscription))


def _read_messages(request: Request, ids: Sequence[str], attempt: int) -> list[ReceivedMessage]:
    related = _related(request)
    if request.name != wsnt("Notify"):
        source = request.source(_RAW_DEPTH)
        payload = source.fragment(source.node(request.operation))
        return [ReceivedMessage(payload, None, None, ids[0] if ids else "", attempt, relates_to=related)]
    messages = read_messages(request.operation, request.source(PAYLOAD_DEPTH), ids, attempt)
    requesters = _requesters(request)
    if requesters or related:
        messages = [replace(each, requesters=requesters, relates_to=each.relates_to or related) for each in messages]
    return messages


def _related(request: Request) -> str:
    header = _header(request)
    return "" if header is None else (header.findtext(wsa("RelatesTo")) or "").strip()


def _requesters(request: Request) -> tuple[Requester, ...]:
    """The clients that await an answer to a pushed request of a queue."""
    header = _header(request)
    found = (
        [] if header is None else header.findall(f"{{{ARBORCAST_DELIVERY}}}Delivery/{{{ARBORCAST_DELIVERY}}}Request")
    )
    if not found:
        return ()
    source = Source(request.document, request.root, _ASKER_DEPTH, header)
    requesters = []
    for each in found:
        element = each.find(wsa("ReplyTo"))
        if element is not None:
            reference = read_reference(element, source)
            reply_to = Remote(reference.address, reference.reference_parameters)
            requesters.append(Requester(each.get("id", ""), (each.findtext(wsa("MessageID")) or "").strip(), reply_to))
    return tuple(requesters)


def _header(request: Request) -> etree._Element | None:
    parent = request.operation.getparent()
    return None if parent is None else parent.getprevious()


def read_push_request(headers: Mapping[str, str], body: bytes) -> list[ReceivedMessage]:
    """The messages in a push over HTTP; `headers` by names in lower case. Raises PeerError."""
    attempt = headers.get("arborcast-attempt", "1")
    messages = read_push(
        body,
        headers.get("content-type", "").encode("latin-1", "replace"),
        headers.get("arborcast-notification-id", ""),
        int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 10 else 1,
        headers.get(PACKAGE_HEADER.lower(), ""),
        headers.get("arborcast-subscription", ""),
    )
    sequence = headers.get("arborcast-sequence", "")
    if sequence.isascii() and sequence.isdigit() and len(sequence) < 10:
        messages = [replace(message, sequence=int(sequence)) for message in messages]
    replays = headers.get("arborcast-replay")
    if replays is None:
        return messages
    labels = (label.strip() for label in replays.split(","))
    # No message is dropped, even if the header has fewer values.
    return [message if (label := next(labels, "-")) == "-" else replace(message, replay=label) for message in messages]


def read_messages(
    parent: etree._Element, source: Source, ids: Sequence[str] = (), attempt: int = 1
) -> list[ReceivedMessage]:
    """The NotificationMessages below an element. Raises PeerError."""
    received = []
    nodes = source.node(parent).children
    number = 0
    for message, node in zip(parent, nodes, strict=True):
        if message.tag != wsnt("NotificationMessage"):
            continue
        content, topic = message.find(wsnt("Message")), message.find(wsnt("Topic"))
        if content is None or not len(content):
            raise InvalidRequest("a NotificationMessage without a payload")
        address = message.findtext(f"{wsnt('SubscriptionReference')}/{wsa('Address')}")
        payload = node.children[message.index(content)].children[0]
        address = address.strip() if address else None
        found = ReceivedMessage(
            source.fragment(payload),
            None if topic is None else read_topic(topic),
            address,
            ids[number] if number < len(ids) else (message.findtext(f"{_METADATA}Notification") or "").strip(),
            attempt,
            relates_to=(message.findtext(_RELATED) or "").strip(),
        )
        package = message.findtext(f"{_METADATA}Package")
        received.append(_as_part(found, package, address or "") if package else found)
        number += 1
    return received


Reply = Request | None
"""A SOAP message whose `operation` is the response element; None for an answer without a body."""

_REFERENCE_DEPTH = 7
# Envelope, Body, GetCurrentMessageResponse, payload.
_CURRENT_DEPTH = 4


def read_reply(address: str, status: int, retry_after: str, content_type: str, content: bytes) -> Reply:
    """The message in an HTTP answer. Raises BrokerUnavailable, FaultReceived, UnreadableAnswer."""
    if status == 503:
        # The body is ignored: proxies send HTML pages.
        raise BrokerUnavailable(f"{address} is temporarily unavailable (503)", retry_after_s(retry_after))
    successful = 200 <= status < 300
    if not content.strip():
        if successful:
            return None
        raise UnreadableAnswer(f"{address} answered {status} without a message: is it the address of a broker?")
    try:
        reply = parse(content, content_type.encode("latin-1", "replace"), bounded=False)
    except PeerError as error:
        shown = content[:200].decode(errors="replace")
        raise UnreadableAnswer(
            f"{address} answered {status} without a SOAP message: is it the address of a broker? It sent {shown!r}"
        ) from error
    if reply.name in SOAP_FAULTS:
        raise _fault(reply.operation, status)
    if not successful:
        raise UnreadableAnswer(f"{address} answered {status}: {content[:200].decode(errors='replace')!r}")
    return reply


def nothing(_reply: Reply) -> None:
    """An answer without a result."""


def subscription(reply: Reply) -> RemoteSubscription:
    """A SubscribeResponse."""
    remote = _reference(reply, wsnt("SubscriptionReference"), "Subscribe")
    return RemoteSubscription(remote.address, remote.parameters, _terminates(reply), returned_secret(reply))


def trigger_id(reply: Reply) -> str:
    """The id of the trigger in a CreateTriggerResponse; empty if missing."""
    return "" if reply is None else reply.operation.get("Id", "")


def returned_secret(reply: Reply) -> str:
    """The signing secret generated by the broker; empty for none."""
    return "" if reply is None else (reply.operation.findtext(_SECRET) or "").strip()


def renewed(reply: Reply, remote: Remote) -> RemoteSubscription:
    """A RenewResponse for `remote`."""
    return RemoteSubscription(remote.address, remote.parameters, _terminates(reply))


def pull_point(reply: Reply) -> RemotePullPoint:
    """A CreatePullPointResponse."""
    remote = _reference(reply, wsnt("PullPoint"), "CreatePullPoint")
    return RemotePullPoint(remote.address, remote.parameters)


def registration(reply: Reply) -> RemoteRegistration:
    """A RegisterPublisherResponse."""
    remote = _reference(reply, wsn_br("PublisherRegistrationReference"), "RegisterPublisher")
    consumer = None
    if reply is not None and reply.operation.find(wsn_br("ConsumerReference")) is not None:
        consumer = _reference(reply, wsn_br("ConsumerReference"), "RegisterPublisher").address
    return RemoteRegistration(remote.address, remote.parameters, consumer)


def messages(reply: Reply) -> list[ReceivedMessage]:
    """A GetMessagesResponse."""
    if reply is None:
        raise UnreadableAnswer("the broker's answer to GetMessages is empty")
    try:
        return read_messages(reply.operation, reply.source(PAYLOAD_DEPTH))
    except PeerError as error:
        raise UnreadableAnswer(f"the broker's answer to GetMessages cannot be read: {error}") from error


def current_message(reply: Reply) -> bytes | None:
    """A GetCurrentMessageResponse: the self-contained payload; None without one."""
    if reply is None:
        return None
    if not len(reply.operation):
        raise UnreadableAnswer("the broker's answer to GetCurrentMessage has no message")
    source = reply.source(_CURRENT_DEPTH)
    return source.fragment(source.node(reply.operation[0]))


def _reference(reply: Reply, element: str, operation: str) -> Remote:
    found = None if reply is None else reply.operation.find(element)
    if reply is None or found is None:
        raise UnreadableAnswer(f"the broker's answer to {operation} has no {etree.QName(element).localname}")
    try:
        reference = read_reference(found, reply.source(_REFERENCE_DEPTH))
    except PeerError as error:
        raise UnreadableAnswer(f"the broker's answer to {operation}: {error}") from error
    return Remote(reference.address, reference.reference_parameters)


def _terminates(reply: Reply) -> datetime | None:
    text = "" if reply is None else (reply.operation.findtext(wsnt("TerminationTime")) or "").strip()
    try:
        # .NET's last day, and years that no datetime can have, mean no end.
        if not text or int(text.partition("-")[0]) >= MAXYEAR:
            return None
        return times.date_time(text) if "T24" in text else datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise UnreadableAnswer(f"the broker's TerminationTime {text[:60]!r} is not a time") from error


def _fault(fault: etree._Element, status: int) -> FaultReceived:
    namespace = etree.QName(fault).namespace
    if namespace == SOAP11:
        reason, detail = fault.findtext("faultstring"), fault.find("detail")
    else:
        reason = fault.findtext(f"{{{namespace}}}Reason/{{{namespace}}}Text")
        detail = fault.find(f"{{{namespace}}}Detail")
    if detail is None or not len(detail):
        return FaultReceived((reason or "no reason given").strip(), "", status)
    description = detail[0].findtext(f"{{{WSRF_BF}}}Description")
    name = etree.QName(detail[0]).localname
    return FaultReceived((description or reason or "no reason given").strip(), name, status)
