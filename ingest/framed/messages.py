"""Conversions between frames and payloads, properties, messages of pull points. Pure.

A payload is one XML element. Other text is wrapped in the element for loose content (`topic_model.legacy_content`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from lxml import etree

from arborcast.client.calls import single_topic
from arborcast.ingest.elements.filters import DELIVERY, Filters, read_delivery_policy, read_filters
from arborcast.ingest.elements.properties import properties_of, read_stored
from arborcast.ingest.state.pull_queues import ClaimedMessage
from arborcast.topic_model import legacy_content
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.namespaces import MESSAGE_TYPE, wsnt
from arborcast.topic_model.patterns.patterns import EVERYTHING
from arborcast.topic_model.subscriptions import DeliveryPolicy
from arborcast.wire.errors import InvalidRequest
from arborcast.wire.frames import MessageBody, SubscribeBody

topic_of = lru_cache(1_000)(single_topic)


def filters_of(body: SubscribeBody) -> Filters:
    """The requested topics and types. Raises ExpressionError or FilterError."""
    expression = parse_friendly(body.expression) if body.expression else None
    topics = () if expression is None or expression.normal == EVERYTHING else (expression,)
    return replace(read_filters(_filter(body.types)), topics=topics)


def policy_of(body: SubscribeBody) -> DeliveryPolicy:
    """The requested delivery policy. Raises InvalidRequest or UnsupportedPolicy."""
    policy = etree.Element(wsnt("SubscriptionPolicy"))
    try:
        etree.SubElement(policy, DELIVERY, dict(body.delivery))
    except ValueError as error:
        raise InvalidRequest(f"delivery has the attributes of p:Delivery: {error}") from error
    return read_delivery_policy(policy)


def message_of(handed_out: ClaimedMessage, subscription: str) -> tuple[MessageBody, bool]:
    """A message from a pull point, and whether its payload is text. Raises PeerError for an unreadable one."""
    element, message = read_stored(handed_out.element)
    content = element.find(f"{wsnt('Message')}/*")
    loose = content is not None and content.tag == legacy_content.TYPE and not len(content)
    payload = (content.text or "").encode() if content is not None and loose else message.payload
    topic = "" if message.topic is None else str(message.topic)
    body = MessageBody(
        subscription, topic, payload, handed_out.notification, properties_of(element), handed_out.attempt
    )
    return body, loose


def _filter(types: Sequence[str]) -> etree._Element | None:
    if not types:
        return None
    found = etree.Element(wsnt("Filter"))
    try:
        etree.SubElement(found, MESSAGE_TYPE).text = " ".join(types)
    except ValueError as error:
        raise InvalidRequest(f"types are QNames: {error}") from error
    return found
