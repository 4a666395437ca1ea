"""Filter and SubscriptionPolicy of a Subscribe."""

from __future__ import annotations

from dataclasses import dataclass

from lxml import etree

from ingest.delivery_wish import DELIVERY, read_delivery
from ingest.errors import UnknownFilters, UnrecognizedPolicy
from ingest.namespaces import CURRENT_MESSAGE, wsnt
from ingest.protection import CREDENTIALS, SIGNING, Wish, read_wish
from ingest.topic_reading import read_filter
from topic_model.conditions import check_content, check_producer
from topic_model.errors import ContentExpressionError, ProducerExpressionError
from topic_model.subscriptions import DEFAULT_POLICY, DeliveryForm, DeliveryPolicy, TopicFilter, XPathFilter

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
    than one that is told.
    """
    if element is None:
        return Filters()
    unknown = tuple(str(child.tag) for child in element if child.tag not in (_TOPICS, _CONTENT, _PRODUCER))
    if unknown:
        raise UnknownFilters(f"the filter {unknown[0]:.200} is not offered", unknown)
    content = tuple(map(_condition, element.iterchildren(_CONTENT)))
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
    return Filters(tuple(read_filter(child) for child in element.iterchildren(_TOPICS)), content, producer)


def _condition(element: etree._Element) -> XPathFilter:
    """The expression as sent, with those of the prefixes in scope that occur in it: it travels with every record."""
    text = "" if len(element) else (element.text or "").strip()
    scope = {prefix: uri for prefix, uri in element.nsmap.items() if prefix and uri and f"{prefix}:" in text}
    return XPathFilter(element.get("Dialect", ""), text, scope)


@dataclass(frozen=True)
class Policy:
    """What a Subscribe asks for beyond its filters: how messages are wanted, whether current ones are at once, how the
    pushes are to be known as ours, and how hard to try."""

    form: DeliveryForm = "notify"
    current_message: bool = False
    protection: Wish | None = None
    delivery: DeliveryPolicy = DEFAULT_POLICY


def read_policy(element: etree._Element | None) -> Policy:
    """The policy in a wsnt:SubscriptionPolicy. Raises UnrecognizedPolicy, or InvalidRequest."""
    if element is None:
        return Policy()
    names = [str(child.tag) for child in element]
    unknown = tuple(name for name in names if name not in _POLICIES)
    if unknown:
        raise UnrecognizedPolicy(f"the subscription policy {unknown[0]:.200} is not known", unknown)
    return Policy(
        "raw" if _USE_RAW in names else "notify", CURRENT_MESSAGE in names, read_wish(element), read_delivery(element)
    )
