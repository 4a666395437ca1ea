"""Filter and SubscriptionPolicy of a Subscribe."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from lxml import etree

from core.errors import ContentExpressionError, ProducerExpressionError
from ingest.elements import dsub
from ingest.elements.protection import CREDENTIALS, SIGNING, RequestedProtection, read_protection
from ingest.elements.topics import read_filter
from ingest.errors import InvalidRequest, UnknownFilters, UnrecognizedPolicy
from ingest.soap import times
from topic_model.expressions.conditions import check_content, check_producer
from topic_model.expressions.item_filter import ITEM_FILTER, to_xpath
from topic_model.namespaces import ARBORCAST_POLICY, CURRENT_MESSAGE, DSUB, wsnt
from topic_model.subscriptions import DEFAULT_POLICY, DeliveryForm, DeliveryPolicy, Order, TopicFilter, XPathFilter

DELIVERY = f"{{{ARBORCAST_POLICY}}}Delivery"

_ORDERS = ("acceptance", "strict")

_MOST_ATTEMPTS = 1_000

_LONGEST_LIFESPAN_S = 366 * 86_400


def read_delivery_policy(policy: etree._Element) -> DeliveryPolicy:
    """The delivery that a wsnt:SubscriptionPolicy asks for. Raises InvalidRequest.

        <p:Delivery xmlns:p="urn:arborcast:policy" Order="strict" MaximumAttempts="3" Lifespan="PT2H"/>

    Each attribute may be left out; then the engine's setting holds.
    """
    element = policy.find(DELIVERY)
    if element is None:
        return DEFAULT_POLICY
    unknown = sorted(set(map(str, element.attrib)) - {"Order", "MaximumAttempts", "Lifespan"})
    if unknown:
        raise InvalidRequest(f"p:Delivery has Order, MaximumAttempts and Lifespan, no {unknown[0]:.100}")
    order = element.get("Order", "acceptance")
    if order not in _ORDERS:
        raise InvalidRequest(f"p:Delivery: Order is acceptance or strict, not {order:.100}")
    return DeliveryPolicy(
        order=cast(Order, order),
        lifespan_ms=_lifespan_ms(element.get("Lifespan")),
        maximum_attempts=_attempts(element.get("MaximumAttempts")),
    )


def _attempts(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= _MOST_ATTEMPTS):
        raise InvalidRequest(f"p:Delivery: MaximumAttempts is a number from 1 to {_MOST_ATTEMPTS}, not {text:.100}")
    return int(text)


def _lifespan_ms(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        seconds = times.duration_s(text, datetime.now(UTC))
    except ValueError as error:
        raise InvalidRequest(f"p:Delivery: Lifespan: {error}") from error
    if not 0 < seconds <= _LONGEST_LIFESPAN_S:
        raise InvalidRequest(f"p:Delivery: Lifespan is more than nothing and at most a year, not {text:.100}")
    return int(seconds * 1000)


_TOPICS = wsnt("TopicExpression")

_CONTENT = wsnt("MessageContent")

_PRODUCER = wsnt("ProducerProperties")

_USE_RAW = wsnt("UseRaw")

_POLICIES = frozenset({_USE_RAW, CURRENT_MESSAGE, SIGNING, CREDENTIALS, DELIVERY})

# Each is evaluated for every notification of the topics.
_MAX_CONDITIONS = 16


@dataclass(frozen=True)
class Filters:
    """The filters of a Subscribe, all of which must match; none at all selects everything."""

    topics: tuple[TopicFilter, ...] = ()
    content: tuple[XPathFilter, ...] = ()
    producer: tuple[XPathFilter, ...] = ()


def read_filters(element: etree._Element | None) -> Filters:
    """The filters in a wsnt:Filter.

    Raises FilterError, also for filters that we do not know: a subscriber that gets more than it asked for is worse off
    than one that gets an error.
    """
    if element is None:
        return Filters()
    unknown = tuple(str(child.tag) for child in element if child.tag not in (_TOPICS, _CONTENT, _PRODUCER, dsub.QUERY))
    if unknown:
        raise UnknownFilters(f"the filter {unknown[0]:.200} is not offered", unknown)
    content = tuple(each for child in element.iterchildren(_CONTENT, dsub.QUERY) for each in _content(child))
    producer = tuple(map(_condition, element.iterchildren(_PRODUCER)))
    if len(content) > _MAX_CONDITIONS:
        raise ContentExpressionError(f"a Filter may have {_MAX_CONDITIONS} wsnt:MessageContent, not {len(content)}")
    if len(producer) > _MAX_CONDITIONS:
        raise ProducerExpressionError(
            f"a Filter may have {_MAX_CONDITIONS} wsnt:ProducerProperties, not {len(producer)}"
        )
    for each in content:
        check_content(each)
    for each in producer:
        check_producer(each)
    topics = tuple(read_filter(child) for child in element.iterchildren(_TOPICS))
    for topic in topics:
        dsub.check_topic(topic)
    return Filters(topics, content, producer)


def _content(element: etree._Element) -> tuple[XPathFilter, ...]:
    if element.tag == dsub.QUERY:
        return dsub.read_query(element)
    match element.get("Dialect", "").strip():
        case dialect if dialect == DSUB and len(element) == 1 and element[0].tag == dsub.QUERY:
            return dsub.read_query(element[0])
        case dialect if dialect == ITEM_FILTER:
            namespaces = {prefix: uri for prefix, uri in element.nsmap.items() if prefix and uri}
            return (to_xpath("" if len(element) else element.text or "", namespaces),)
    return (_condition(element),)


def _condition(element: etree._Element) -> XPathFilter:
    """The expression as sent, with those of the prefixes in scope that occur in it: it travels with every record."""
    text = "" if len(element) else (element.text or "").strip()
    scope = {prefix: uri for prefix, uri in element.nsmap.items() if prefix and uri and f"{prefix}:" in text}
    return XPathFilter(element.get("Dialect", ""), text, scope)


@dataclass(frozen=True)
class SubscriptionPolicy:
    """What a Subscribe asks for beyond its filters: how messages are wanted, whether current ones are at once, how the
    pushes are to be known as ours, and how hard to try."""

    form: DeliveryForm = "notify"
    current_message: bool = False
    protection: RequestedProtection | None = None
    delivery: DeliveryPolicy = DEFAULT_POLICY


def read_policy(element: etree._Element | None) -> SubscriptionPolicy:
    """The policy in a wsnt:SubscriptionPolicy. Raises UnrecognizedPolicy, or InvalidRequest."""
    if element is None:
        return SubscriptionPolicy()
    names = [str(child.tag) for child in element]
    unknown = tuple(name for name in names if name not in _POLICIES)
    if unknown:
        raise UnrecognizedPolicy(f"the subscription policy {unknown[0]:.200} is not known", unknown)
    return SubscriptionPolicy(
        "raw" if _USE_RAW in names else "notify",
        CURRENT_MESSAGE in names,
        read_protection(element),
        read_delivery_policy(element),
    )
