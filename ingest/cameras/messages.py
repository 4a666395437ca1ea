"""Requests to cameras in SOAP 1.2, and their answers as outcomes of a conversation."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import uuid4

from lxml import etree

from arborcast.core.http_client import HttpAnswer
from arborcast.ingest.cameras.conversation import (
    LEASE_S,
    Broken,
    CameraOperation,
    Clock,
    Done,
    Fault,
    Granted,
    Outcome,
    Request,
    Services,
)
from arborcast.ingest.cameras.credentials import Credentials
from arborcast.ingest.operations.onvif import TDS, TEV, TT
from arborcast.topic_model.namespaces import ACTION_BW, SOAP12, SOAP_FAULTS, WSA, WSNT, wsnt
from arborcast.topic_model.subscriptions import EndpointReference, parameter_blocks
from arborcast.wire import answers, times
from arborcast.wire.endpoints import read_reference
from arborcast.wire.errors import InvalidRequest, MalformedMessage, TooLarge
from arborcast.wire.fragments import Node, Source
from arborcast.wire.xml_reading import Xml, read_xml

MESSAGES_AT_ONCE = 100

_ACTIONS = {
    CameraOperation.CLOCK: f"{TDS}/GetSystemDateAndTime",
    CameraOperation.SERVICES: f"{TDS}/GetCapabilities",
    CameraOperation.CREATE: f"{TEV}/EventPortType/CreatePullPointSubscriptionRequest",
    CameraOperation.SUBSCRIBE: f"{ACTION_BW}/NotificationProducer/SubscribeRequest",
    CameraOperation.PULL: f"{TEV}/PullPointSubscription/PullMessagesRequest",
    CameraOperation.RENEW: f"{ACTION_BW}/SubscriptionManager/RenewRequest",
    CameraOperation.SYNCHRONIZE: f"{TEV}/PullPointSubscription/SetSynchronizationPointRequest",
}

# Envelope, Body, PullMessagesResponse, NotificationMessage, Message, payload; also that of reference parameters.
_DEPTH = 7

_DENIED = re.compile(r"not\s?authori.ed|unauthori.ed|authentication|invalidsecurity|sender not auth", re.IGNORECASE)
_UNSUPPORTED = re.compile(
    r"not\s?(?:supported|implemented)|unsupported|unknown (?:action|method|operation)", re.IGNORECASE
)
_NO_OPERATION = frozenset({404, 405, 410, 501})

# Control characters that XML does not allow; some cameras send them in names of users and rules.
_ILLEGAL = bytes({*range(0x20)} - {0x09, 0x0A, 0x0D})

# If the answer has no usable time.
_UNKNOWN_LEASE_S = 60.0

_MOST_TEXT = 300


class Notice(NamedTuple):
    """A wsnt:NotificationMessage of a camera: its element, and its payload as it was sent."""

    element: etree._Element
    payload: etree._Element
    fragment: bytes


def written(request: Request, credentials: Credentials, clock: datetime, consumer: str) -> tuple[bytes, str]:
    """The message and its media type. `clock` is the time of the camera's clock, `consumer` the address for pushes."""
    action = _ACTIONS[request.operation]
    secured = "" if request.operation is CameraOperation.CLOCK else credentials.header(clock)
    to = request.to.address if request.to is not None else request.url
    parameters = parameter_blocks(request.to.reference_parameters) if request.to is not None else ""
    message = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<s:Envelope xmlns:s="{SOAP12}" xmlns:wsa="{WSA}" xmlns:wsnt="{WSNT}" '
        f'xmlns:tev="{TEV}" xmlns:tds="{TDS}"><s:Header><wsa:Action>{action}</wsa:Action>'
        f"<wsa:MessageID>urn:uuid:{uuid4()}</wsa:MessageID><wsa:To>{answers.text(to)}</wsa:To>{parameters}{secured}"
        f"</s:Header><s:Body>{_body(request, clock, consumer)}</s:Body></s:Envelope>"
    )
    return message.encode(), f'application/soap+xml; charset=utf-8; action="{action}"'


def _body(request: Request, clock: datetime, consumer: str) -> str:
    # Whole seconds: cameras misread minutes, fractions and offsets.
    until = times.written(clock + timedelta(seconds=LEASE_S)) if request.absolute else f"PT{LEASE_S}S"
    match request.operation:
        case CameraOperation.CLOCK:
            return "<tds:GetSystemDateAndTime/>"
        case CameraOperation.SERVICES:
            return "<tds:GetCapabilities><tds:Category>Events</tds:Category></tds:GetCapabilities>"
        case CameraOperation.CREATE:
            return (
                f"<tev:CreatePullPointSubscription><tev:InitialTerminationTime>{until}</tev:InitialTerminationTime>"
                "</tev:CreatePullPointSubscription>"
            )
        case CameraOperation.SUBSCRIBE:
            return (
                f"<wsnt:Subscribe><wsnt:ConsumerReference><wsa:Address>{answers.text(consumer)}</wsa:Address>"
                f"</wsnt:ConsumerReference><wsnt:InitialTerminationTime>{until}</wsnt:InitialTerminationTime>"
                "</wsnt:Subscribe>"
            )
        case CameraOperation.PULL:
            return (
                f"<tev:PullMessages><tev:Timeout>PT{request.wait_s}S</tev:Timeout>"
                f"<tev:MessageLimit>{MESSAGES_AT_ONCE}</tev:MessageLimit></tev:PullMessages>"
            )
        case CameraOperation.RENEW:
            return f"<wsnt:Renew><wsnt:TerminationTime>{until}</wsnt:TerminationTime></wsnt:Renew>"
        case CameraOperation.SYNCHRONIZE:
            return "<tev:SetSynchronizationPoint/>"


def read_answer(request: Request, answer: HttpAnswer, now: datetime) -> tuple[Outcome, list[Notice]]:
    """The outcome of a request, and the messages of a pull."""
    try:
        xml = read_xml(answer.body.translate(None, _ILLEGAL), what="the answer")
    except MalformedMessage as error:
        if answer.status in (401, 403):
            return Fault(f"HTTP {answer.status}", denied=True), []
        if answer.status in _NO_OPERATION:
            return Fault(f"HTTP {answer.status}", unsupported=True), []
        if 200 <= answer.status < 300 and not answer.body.strip() and request.operation is CameraOperation.SYNCHRONIZE:
            return Done(), []
        return Broken(f"HTTP {answer.status} and no SOAP message: {error}"), []
    fault = next(xml.root.iter(*SOAP_FAULTS), None)
    if fault is not None or answer.status >= 400:
        return _fault(fault, answer.status), []
    try:
        return _good(request, xml, now)
    except (ValueError, OverflowError, InvalidRequest, TooLarge, MalformedMessage) as error:
        return Broken(f"the answer to {request.operation.value} cannot be read: {error}"), []


def _fault(fault: etree._Element | None, status: int) -> Fault:
    text = f"HTTP {status}" if fault is None else " ".join(" ".join(map(str, fault.itertext())).split())
    denied = status in (401, 403) or bool(_DENIED.search(text))
    unsupported = status in _NO_OPERATION or bool(_UNSUPPORTED.search(text))
    return Fault(text[:_MOST_TEXT], denied, unsupported and not denied)


def _good(request: Request, xml: Xml, now: datetime) -> tuple[Outcome, list[Notice]]:
    root = xml.root
    match request.operation:
        case CameraOperation.CLOCK:
            return Clock((_camera_time(root) - now).total_seconds()), []
        case CameraOperation.SERVICES:
            return Services((root.findtext(f".//{{{TT}}}Events/{{{TT}}}XAddr") or "").strip()), []
        case CameraOperation.CREATE | CameraOperation.SUBSCRIBE:
            return Granted(_granted_s(root, now), _reference(xml)), []
        case CameraOperation.RENEW:
            return Granted(_granted_s(root, now)), []
        case CameraOperation.PULL:
            if root.find(f".//{{{TEV}}}PullMessagesResponse") is None:
                raise ValueError("it has no PullMessagesResponse")
            found = notices(xml)
            return Done(len(found)), found
        case CameraOperation.SYNCHRONIZE:
            return Done(), []


def notices(xml: Xml) -> list[Notice]:
    """The notification messages of a document that have a payload. Raises TooLarge."""
    parent = next((each.getparent() for each in xml.root.iter(wsnt("NotificationMessage"))), None)
    if parent is None:
        return []
    source = Source(xml.document, xml.root, _DEPTH)
    found = []
    for message, node in zip(parent, source.node(parent).children, strict=True):
        payload = _payload(message, node) if message.tag == wsnt("NotificationMessage") else None
        if payload is not None:
            found.append(Notice(message, payload[0], source.fragment(payload[1])))
    return found


def _payload(message: etree._Element, node: Node) -> tuple[etree._Element, Node] | None:
    for part, part_node in zip(message, node.children, strict=True):
        if part.tag == wsnt("Message") and len(part):
            return part[0], part_node.children[0]
    return None


def _reference(xml: Xml) -> EndpointReference:
    element = next((each for each in xml.root.iter("{*}SubscriptionReference")), None)
    if element is None:
        raise ValueError("it has no SubscriptionReference")
    return read_reference(element, Source(xml.document, xml.root, _DEPTH))


def _granted_s(root: etree._Element, now: datetime) -> float:
    ends, current = (_time(root.find(f".//{wsnt(name)}")) for name in ("TerminationTime", "CurrentTime"))
    if ends is None:
        return _UNKNOWN_LEASE_S
    # By the camera's clock, where it sends it.
    return max(1.0, (ends - (current or now)).total_seconds())


def _time(element: etree._Element | None) -> datetime | None:
    try:
        return times.date_time(element.text or "") if element is not None else None
    except (ValueError, OverflowError):
        return None


def _camera_time(root: etree._Element) -> datetime:
    utc = root.find(f".//{{{TT}}}UTCDateTime")
    if utc is None:
        raise ValueError("it has no UTCDateTime")

    def numbers(part: str, names: tuple[str, ...]) -> list[int]:
        return [int(utc.findtext(f"{{{TT}}}{part}/{{{TT}}}{name}") or "") for name in names]

    year, month, day = numbers("Date", ("Year", "Month", "Day"))
    hour, minute, second = numbers("Time", ("Hour", "Minute", "Second"))
    return datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
