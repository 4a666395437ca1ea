"""Reading answers: from status and bytes to what a call returns, or to the error that it raises."""

from __future__ import annotations

from datetime import datetime

from lxml import etree

from core.errors import PeerError
from ingest.client.received import PAYLOAD_DEPTH, ReceivedMessage, read_messages
from ingest.client.values import (
    BrokerUnavailable,
    FaultReceived,
    Remote,
    RemotePullPoint,
    RemoteRegistration,
    RemoteSubscription,
    UnreadableAnswer,
)
from ingest.elements.endpoints import read_reference
from ingest.elements.protection import SECRET, SIGNING
from ingest.soap.envelope import Request, parse
from topic_model.namespaces import SOAP11, SOAP12, WSRF_BF, wsn_br, wsnt

Reply = Request | None
"""A SOAP message whose `operation` is the response element; None for an answer without a body."""

_REFERENCE_DEPTH = 7
# Envelope, Body, GetCurrentMessageResponse, payload.
_CURRENT_DEPTH = 4


def read_reply(address: str, status: int, retry_after: str, content_type: str, content: bytes) -> Reply:
    """The message in an HTTP answer. Raises BrokerUnavailable, FaultReceived, UnreadableAnswer."""
    if status == 503:
        # Whatever stands in it, it comes back later; proxies send pages.
        raise BrokerUnavailable(f"{address} asks to come back later", retry_after_s(retry_after))
    successful = 200 <= status < 300
    if not content.strip():
        if successful:
            return None
        raise UnreadableAnswer(f"{address} answered {status} without a message")
    try:
        reply = parse(content, content_type.encode("latin-1", "replace"))
    except PeerError as error:
        shown = content[:200].decode(errors="replace")
        raise UnreadableAnswer(f"{address} answered {status} and no SOAP message: {shown!r}") from error
    if reply.name in (f"{{{SOAP11}}}Fault", f"{{{SOAP12}}}Fault"):
        raise _fault(reply.operation)
    if not successful:
        raise UnreadableAnswer(f"{address} answered {status}: {content[:200].decode(errors='replace')!r}")
    return reply


def retry_after_s(header: str) -> float | None:
    """Seconds in a Retry-After header; None without one (or with a date, which nobody sends for this)."""
    return float(header) if header.isdigit() else None


def nothing(_reply: Reply) -> None:
    """Answers that only say that it is done."""


def subscription(reply: Reply) -> RemoteSubscription:
    """A SubscribeResponse."""
    remote = _reference(reply, wsnt("SubscriptionReference"), "Subscribe")
    return RemoteSubscription(remote.address, remote.parameters, _terminates(reply), told_secret(reply))


def told_secret(reply: Reply) -> str:
    """The signing secret that the broker has made, empty when it did not."""
    return "" if reply is None else (reply.operation.findtext(f"{SIGNING}/{SECRET}") or "").strip()


def renewed(reply: Reply, remote: Remote) -> RemoteSubscription:
    """A RenewResponse about `remote`."""
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
    """A GetCurrentMessageResponse: the payload, self-contained; None where there is none."""
    if reply is None:
        return None
    if not len(reply.operation):
        raise UnreadableAnswer("the broker's answer to GetCurrentMessage holds no message")
    source = reply.source(_CURRENT_DEPTH)
    return source.fragment(source.node(reply.operation[0]))


def _reference(reply: Reply, element: str, operation: str) -> Remote:
    found = None if reply is None else reply.operation.find(element)
    if reply is None or found is None:
        raise UnreadableAnswer(f"the broker's answer to {operation} holds no {etree.QName(element).localname}")
    try:
        reference = read_reference(found, reply.source(_REFERENCE_DEPTH))
    except PeerError as error:
        raise UnreadableAnswer(f"the broker's answer to {operation}: {error}") from error
    return Remote(reference.address, reference.reference_parameters)


def _terminates(reply: Reply) -> datetime | None:
    text = "" if reply is None else (reply.operation.findtext(wsnt("TerminationTime")) or "").strip()
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError as error:
        raise UnreadableAnswer(f"the broker's TerminationTime {text[:60]!r} is no time") from error


def _fault(fault: etree._Element) -> FaultReceived:
    namespace = etree.QName(fault).namespace
    if namespace == SOAP11:
        reason, detail = fault.findtext("faultstring"), fault.find("detail")
    else:
        reason = fault.findtext(f"{{{namespace}}}Reason/{{{namespace}}}Text")
        detail = fault.find(f"{{{namespace}}}Detail")
    if detail is None or not len(detail):
        return FaultReceived((reason or "no reason given").strip(), "")
    description = detail[0].findtext(f"{{{WSRF_BF}}}Description")
    return FaultReceived((description or reason or "no reason given").strip(), etree.QName(detail[0]).localname)
