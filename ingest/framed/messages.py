"""Between frames and what the engine has: payloads, properties, messages of pull points. Pure.

A payload is one XML element. Text that is none travels in the element that loose content has
(`topic_model.legacy_content`). Properties travel in the ProducerReference of a message, as its metadata, so that a
subscriber with SOAP sees them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from xml.sax.saxutils import escape

from lxml import etree

from arborcast.client.received import read_messages
from arborcast.core.errors import ExpressionError
from arborcast.ingest.elements.filters import DELIVERY, Filters, read_delivery_policy, read_filters
from arborcast.ingest.state.pull_queues import HandedOut
from arborcast.topic_model import legacy_content
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.namespaces import ARBORCAST_POLICY, MESSAGE_TYPE, WSA, WSNT, wsa, wsnt
from arborcast.topic_model.patterns.patterns import EVERYTHING, parse_normal
from arborcast.topic_model.subscriptions import DeliveryPolicy
from arborcast.topic_model.topics import TopicPath
from arborcast.wire import limits
from arborcast.wire.errors import InvalidRequest
from arborcast.wire.fragments import Source
from arborcast.wire.frames import MessageBody, SubscribeBody
from arborcast.wire.xml_reading import read_xml

_ANONYMOUS = "http://www.w3.org/2005/08/addressing/anonymous"

_PROPERTIES, _PROPERTY = f"{{{ARBORCAST_POLICY}}}Properties", f"{{{ARBORCAST_POLICY}}}Property"

_OPEN, _CLOSE = f'<wsnt:GetMessagesResponse xmlns:wsnt="{WSNT}">'.encode(), b"</wsnt:GetMessagesResponse>"

# GetMessagesResponse, NotificationMessage, Message, payload.
_PAYLOAD_DEPTH = 4


@lru_cache(1_000)
def topic_of(text: str) -> TopicPath:
    """The one topic that a friendly text names. Raises ExpressionError."""
    topic = parse_normal(parse_friendly(text).normal).single_topic()
    if topic is None:
        raise ExpressionError(f"{text[:200]!r} selects several topics; a notification is published on one")
    return topic


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


def producer_with(properties: Mapping[str, str]) -> bytes:
    """A wsnt:ProducerReference with these properties, self-contained. Raises InvalidRequest."""
    size = sum(len(name) + len(value) for name, value in properties.items())
    if size > limits.PROPERTY_CHARACTERS:
        raise InvalidRequest(
            f"the properties of a message may have {limits.PROPERTY_CHARACTERS} characters, these have {size}"
        )
    reference = etree.Element(wsnt("ProducerReference"), nsmap={"wsnt": WSNT, "wsa": WSA, "p": ARBORCAST_POLICY})
    etree.SubElement(reference, wsa("Address")).text = _ANONYMOUS
    inside = etree.SubElement(etree.SubElement(reference, wsa("Metadata")), _PROPERTIES)
    for name, value in properties.items():
        if not name:
            raise InvalidRequest("a property has a name")
        try:
            etree.SubElement(inside, _PROPERTY, Name=name).text = value
        except ValueError as error:
            raise InvalidRequest(f"the property {name[:60]!r} has characters that XML has no place for") from error
    return bytes(etree.tostring(reference))


def filters_of(wanted: SubscribeBody) -> Filters:
    """The topics and types that are wanted. Raises ExpressionError or FilterError."""
    expression = parse_friendly(wanted.expression) if wanted.expression else None
    topics = () if expression is None or expression.normal == EVERYTHING else (expression,)
    return replace(read_filters(_filter(wanted.types)), topics=topics)


def policy_of(wanted: SubscribeBody) -> DeliveryPolicy:
    """The delivery that is wanted. Raises InvalidRequest or UnsupportedPolicy."""
    policy = etree.Element(wsnt("SubscriptionPolicy"))
    try:
        etree.SubElement(policy, DELIVERY, dict(wanted.delivery))
    except ValueError as error:
        raise InvalidRequest(f"delivery has the attributes of p:Delivery: {error}") from error
    return read_delivery_policy(policy)


def message_of(handed_out: HandedOut, subscription: str) -> tuple[MessageBody, bool]:
    """A message that a pull point has handed out, and whether its payload is text. Raises PeerError for one that cannot
    be read."""
    root, document = read_xml(_OPEN + handed_out.element + _CLOSE, what="a message of a pull point")
    read = read_messages(root, Source(document, root, _PAYLOAD_DEPTH, bounded=False))
    if len(read) != 1:
        raise InvalidRequest(f"a message of a pull point holds {len(read)} NotificationMessages")
    element, message = root[0], read[0]
    content = element.find(f"{wsnt('Message')}/*")
    loose = content is not None and content.tag == legacy_content.TYPE and not len(content)
    payload = (content.text or "").encode() if content is not None and loose else message.payload
    topic = "" if message.topic is None else str(message.topic)
    body = MessageBody(subscription, topic, payload, handed_out.notification, _properties(element), handed_out.attempt)
    return body, loose


def _properties(element: etree._Element) -> dict[str, str]:
    path = f"{wsnt('ProducerReference')}/{wsa('Metadata')}/{_PROPERTIES}/{_PROPERTY}"
    return {each.get("Name", ""): each.text or "" for each in element.iterfind(path)}


def _filter(types: Sequence[str]) -> etree._Element | None:
    if not types:
        return None
    found = etree.Element(wsnt("Filter"))
    try:
        etree.SubElement(found, MESSAGE_TYPE).text = " ".join(types)
    except ValueError as error:
        raise InvalidRequest(f"types are QNames: {error}") from error
    return found
