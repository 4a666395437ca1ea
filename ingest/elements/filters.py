"""Filter and SubscriptionPolicy of a Subscribe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

from lxml import etree

from arborcast.core.errors import ContentExpressionError, ProducerExpressionError
from arborcast.ingest.elements import dsub
from arborcast.ingest.elements.protection import CREDENTIALS, SIGNING, RequestedProtection, read_protection
from arborcast.ingest.elements.publication import duration_ms, is_number, priority_of
from arborcast.ingest.settings import LEAST_PART
from arborcast.topic_model.expressions import compile_normal
from arborcast.topic_model.expressions.conditions import check_conditions
from arborcast.topic_model.expressions.item_filter import ITEM_FILTER, to_xpath
from arborcast.topic_model.message_types import read_type
from arborcast.topic_model.namespaces import ARBORCAST_POLICY, CURRENT_MESSAGE, DSUB, MESSAGE_TYPE, wsnt
from arborcast.topic_model.patterns.patterns import Pattern
from arborcast.topic_model.subscriptions import (
    DEFAULT_POLICY,
    DeliveryForm,
    DeliveryPolicy,
    Order,
    Per,
    Reliability,
    TopicFilter,
    XPathFilter,
)
from arborcast.topic_model.tree.tree import TopicTree
from arborcast.wire import limits
from arborcast.wire.errors import InvalidRequest, UnknownFilters, UnrecognizedPolicy, UnsupportedPolicy
from arborcast.wire.topics import read_filter

DELIVERY = f"{{{ARBORCAST_POLICY}}}Delivery"

QUEUE = f"{{{ARBORCAST_POLICY}}}Queue"

# The wrapper of a part has 400, with a topic of ordinary length.
_MOST_FRAGMENT = 999_999_999

_ATTRIBUTES = (
    "Reliability",
    "Order",
    "Priority",
    "MaximumAttempts",
    "Lifespan",
    "Deadline",
    "DeadlinePer",
    "MinimumInterval",
    "IntervalPer",
    "FragmentBytes",
)

# Results of matching arrive up to a quarter of a second later.
_SHORTEST_DEADLINE_MS = 500

# After a crash, intervals that began within this time are read back from the log.
_LONGEST_INTERVAL = 86_400_000, "a day"


def read_delivery_policy(policy: etree._Element) -> DeliveryPolicy:
    """The delivery policy of a wsnt:SubscriptionPolicy. Raises InvalidRequest, or UnsupportedPolicy for a
    contradiction.

        <p:Delivery xmlns:p="urn:arborcast:policy" Order="strict" MaximumAttempts="3" Lifespan="PT2H" Deadline="PT5M"
            Priority="5" MinimumInterval="PT1S"/>

    The default of each attribute is the engine's setting.
    """
    element = policy.find(DELIVERY)
    if element is None:
        return DEFAULT_POLICY
    unknown = sorted(set(map(str, element.attrib)) - set(_ATTRIBUTES))
    if unknown:
        raise InvalidRequest(f"p:Delivery has {', '.join(_ATTRIBUTES)}, no {unknown[0]:.100}")
    reliability = _word(element, "Reliability", get_args(Reliability), "adaptive")
    order = _word(element, "Order", ("acceptance", "strict"), "acceptance")
    lifespan, deadline, interval = (element.get(name) for name in ("Lifespan", "Deadline", "MinimumInterval"))
    attempts = _number(element, "MaximumAttempts", 1, limits.ATTEMPTS)
    if reliability != "adaptive" and attempts is not None:
        why = "tried until they are delivered" if reliability == "strict" else "pushed once"
        raise UnsupportedPolicy(
            f'p:Delivery: with Reliability="{reliability}" messages are {why}, so there is no MaximumAttempts',
            (DELIVERY,),
        )
    if reliability == "timely" and order == "strict":
        raise UnsupportedPolicy(
            'p:Delivery: with Reliability="timely" no message waits for earlier ones, so there is no Order="strict"',
            (DELIVERY,),
        )
    deadline_ms = None if deadline is None else duration_ms(deadline, "p:Delivery: Deadline", _SHORTEST_DEADLINE_MS)
    interval_ms = 0
    if interval is not None:
        interval_ms = duration_ms(interval, "p:Delivery: MinimumInterval", 0, _LONGEST_INTERVAL)
    if deadline_ms is not None and deadline_ms < interval_ms:
        raise UnsupportedPolicy(
            f"p:Delivery: with a Deadline of {deadline:.100}, which is below the MinimumInterval of {interval:.100}, "
            "the deadline would always be missed",
            (DELIVERY,),
        )
    return DeliveryPolicy(
        reliability=cast(Reliability, reliability),
        order=cast(Order, order),
        priority=priority_of(element.get("Priority", "0"), "p:Delivery"),
        lifespan_ms=None if lifespan is None else duration_ms(lifespan, "p:Delivery: Lifespan"),
        maximum_attempts=attempts,
        deadline_ms=deadline_ms,
        deadline_per=_per(element, "DeadlinePer", "subscription", "Deadline"),
        interval_ms=interval_ms,
        interval_per=_per(element, "IntervalPer", "topic", "MinimumInterval"),
        fragment_bytes=_number(element, "FragmentBytes", LEAST_PART, _MOST_FRAGMENT) or 0,
    )


def _per(element: etree._Element, name: str, otherwise: Per, needed: str) -> Per:
    per = _word(element, name, get_args(Per), otherwise)
    if name in element.attrib and needed not in element.attrib:
        raise InvalidRequest(f"p:Delivery: {name} needs a {needed}")
    return cast(Per, per)


def _word(element: etree._Element, name: str, words: tuple[str, ...], otherwise: str) -> str:
    word = element.get(name, otherwise)
    if word not in words:
        raise InvalidRequest(f"p:Delivery: {name} is {_either(words)}, not {word:.100}")
    return word


def _number(element: etree._Element, name: str, least: int, most: int) -> int | None:
    text = element.get(name)
    if text is None:
        return None
    if not is_number(text, least, most):
        raise InvalidRequest(f"p:Delivery: {name} is a number from {least} to {most}, not {text:.100}")
    return int(text)


def write_delivery_policy(policy: DeliveryPolicy) -> str:
    """The element for `read_delivery_policy`; empty for a policy with the engine's settings only."""
    written = {
        "Reliability": "" if policy.reliability == "adaptive" else policy.reliability,
        "Order": "strict" if policy.order == "strict" else "",
        "Priority": str(policy.priority) if policy.priority else "",
        "MaximumAttempts": "" if policy.maximum_attempts is None else str(policy.maximum_attempts),
        "Lifespan": _seconds(policy.lifespan_ms),
        "Deadline": _seconds(policy.deadline_ms),
        "DeadlinePer": "topic" if policy.deadline_per == "topic" else "",
        "MinimumInterval": _seconds(policy.interval_ms or None),
        "IntervalPer": "subscription" if policy.interval_ms and policy.interval_per == "subscription" else "",
        "FragmentBytes": str(policy.fragment_bytes) if policy.fragment_bytes else "",
    }
    attributes = "".join(f' {name}="{text}"' for name, text in written.items() if text)
    return f'<p:Delivery xmlns:p="{ARBORCAST_POLICY}"{attributes}/>' if attributes else ""


def read_old_delivery(policy: etree._Element | None) -> DeliveryPolicy:
    """The delivery policy of a subscriber in the older form, which has FragmentBytes only. Raises as
    read_delivery_policy."""
    if policy is None:
        return DEFAULT_POLICY
    requested = read_delivery_policy(policy)
    only = DeliveryPolicy(fragment_bytes=requested.fragment_bytes)
    if requested != only:
        raise UnsupportedPolicy(
            "a subscription with a SubscriberAddress, which is identified by address and topic, permits only "
            "FragmentBytes in p:Delivery",
            (DELIVERY,),
        )
    return only


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _seconds(ms: int | None) -> str:
    if ms is None:
        return ""
    parts = f"{ms // 1000}.{ms % 1000:03}".rstrip("0").removesuffix(".")
    return f"PT{parts}S"


_TOPICS = wsnt("TopicExpression")

_CONTENT = wsnt("MessageContent")

_PRODUCER = wsnt("ProducerProperties")

_FILTERS = frozenset({_TOPICS, _CONTENT, _PRODUCER, dsub.QUERY, MESSAGE_TYPE})

_USE_RAW = wsnt("UseRaw")

CLOUD_EVENTS = f"{{{ARBORCAST_POLICY}}}CloudEvents"

# The values of its attribute Mode, the content modes of the HTTP binding.
_MODES: dict[str, DeliveryForm] = {
    "binary": "cloudevents-binary",
    "structured": "cloudevents-structured",
    "batched": "cloudevents-batched",
}

_POLICIES = frozenset({_USE_RAW, CLOUD_EVENTS, CURRENT_MESSAGE, SIGNING, CREDENTIALS, DELIVERY, QUEUE})

_EVERY_TYPE = "*"


@dataclass(frozen=True)
class Filters:
    """The filters of a Subscribe, all of which must match; without filters everything does."""

    topics: tuple[TopicFilter, ...] = ()
    content: tuple[XPathFilter, ...] = ()
    producer: tuple[XPathFilter, ...] = ()
    types: tuple[str, ...] = ()


def read_filters(element: etree._Element | None) -> Filters:
    """The filters in a wsnt:Filter.

    Raises FilterError, also for unknown filters: an error is better than messages that the subscriber excluded.
    """
    if element is None:
        return Filters()
    unknown = tuple(str(child.tag) for child in element if child.tag not in _FILTERS)
    if unknown:
        raise UnknownFilters(f"the filter {unknown[0]:.200} is not offered", unknown)
    content = tuple(each for child in element.iterchildren(_CONTENT, dsub.QUERY) for each in _content(child))
    producer = tuple(map(_condition, element.iterchildren(_PRODUCER)))
    if len(content) > limits.CONDITIONS:
        raise ContentExpressionError(f"a Filter may have {limits.CONDITIONS} wsnt:MessageContent, not {len(content)}")
    if len(producer) > limits.CONDITIONS:
        raise ProducerExpressionError(
            f"a Filter may have {limits.CONDITIONS} wsnt:ProducerProperties, not {len(producer)}"
        )
    check_conditions(content)
    check_conditions(producer, ProducerExpressionError)
    topics = tuple(read_filter(child) for child in element.iterchildren(_TOPICS))
    return Filters(topics, content, producer, _types(element.findall(MESSAGE_TYPE)))


def _types(elements: list[etree._Element]) -> tuple[str, ...]:
    """The selected types; none for all. Raises UnknownFilters."""
    if not elements:
        return ()
    if len(elements) > 1:
        raise UnknownFilters("a Filter may have one p:MessageType, with all types that are wanted", (MESSAGE_TYPE,))
    (element,) = elements
    words = [] if len(element) else (element.text or "").split()
    if words == [_EVERY_TYPE]:
        return ()
    if not 0 < len(words) <= limits.TYPES:
        raise UnknownFilters(
            f"p:MessageType has QNames separated by spaces, from 1 to {limits.TYPES}, or * for all types",
            (MESSAGE_TYPE,),
        )
    try:
        return tuple(sorted({read_type(word, element.nsmap) for word in words}))
    except ValueError as error:
        raise UnknownFilters(f"p:MessageType: {error}", (MESSAGE_TYPE,)) from error


def _content(element: etree._Element) -> tuple[XPathFilter, ...]:
    if element.tag == dsub.QUERY:
        return dsub.read_query(element)
    dialect = element.get("Dialect", "").strip()
    if dialect == DSUB and len(element) == 1 and element[0].tag == dsub.QUERY:
        return dsub.read_query(element[0])
    if dialect == ITEM_FILTER:
        namespaces = {prefix: uri for prefix, uri in element.nsmap.items() if prefix and uri}
        return (to_xpath("" if len(element) else element.text or "", namespaces),)
    return (_condition(element),)


def _condition(element: etree._Element) -> XPathFilter:
    """The expression as sent, with the used prefixes only: it is part of every record."""
    text = "" if len(element) else (element.text or "").strip()
    scope = {prefix: uri for prefix, uri in element.nsmap.items() if prefix and uri and f"{prefix}:" in text}
    return XPathFilter(element.get("Dialect", ""), text, scope)


@dataclass(frozen=True)
class SubscriptionPolicy:
    """The policy of a Subscribe: the form of messages, whether it gets current messages, the protection of pushes, the
    delivery; and the number of parallel requests of a queue, 0 for no queue."""

    form: DeliveryForm = "notify"
    current_message: bool = False
    protection: RequestedProtection | None = None
    delivery: DeliveryPolicy = DEFAULT_POLICY
    queue: int = 0


def read_policy(element: etree._Element | None) -> SubscriptionPolicy:
    """The policy in a wsnt:SubscriptionPolicy. Raises UnrecognizedPolicy, UnsupportedPolicy, or InvalidRequest."""
    if element is None:
        return SubscriptionPolicy()
    names = [str(child.tag) for child in element]
    unknown = tuple(name for name in names if name not in _POLICIES)
    if unknown:
        raise UnrecognizedPolicy(f"the subscription policy {unknown[0]:.200} is not known", unknown)
    delivery = read_delivery_policy(element)
    return SubscriptionPolicy(
        _form(element, names),
        CURRENT_MESSAGE in names,
        read_protection(element),
        delivery,
        _capacity(element.find(QUEUE), names),
    )


def _form(policy: etree._Element, names: list[str]) -> DeliveryForm:
    """Raises UnsupportedPolicy."""
    element = policy.find(CLOUD_EVENTS)
    if element is None:
        return "raw" if _USE_RAW in names else "notify"
    if _USE_RAW in names:
        raise UnsupportedPolicy("p:CloudEvents and wsnt:UseRaw are two forms: choose one", (CLOUD_EVENTS, _USE_RAW))
    mode = element.get("Mode", "binary")
    if mode not in _MODES:
        raise UnsupportedPolicy(f"p:CloudEvents: Mode is {_either(tuple(_MODES))}, not {mode:.100}", (CLOUD_EVENTS,))
    return _MODES[mode]


def write_form(form: DeliveryForm) -> str:
    """The policy element of a form; empty for the default."""
    modes = {name: mode for mode, name in _MODES.items()}
    if form in modes:
        return f'<p:CloudEvents xmlns:p="{ARBORCAST_POLICY}" Mode="{modes[form]}"/>'
    return "<wsnt:UseRaw/>" if form == "raw" else ""


def _capacity(element: etree._Element | None, names: list[str]) -> int:
    """The number of requests of its queue that a server processes in parallel. A delivery policy is refused, since the
    queue has one for all its servers. Raises UnsupportedPolicy."""
    if element is None:
        return 0
    for other in (_USE_RAW, CLOUD_EVENTS, CURRENT_MESSAGE, DELIVERY):
        if other in names:
            raise UnsupportedPolicy(
                f"with p:Queue there is no {etree.QName(other).localname}: how requests are delivered is the queue's",
                (QUEUE, other),
            )
    text = element.get("Capacity", "1").strip()
    if not is_number(text, 1, limits.CAPACITY):
        raise UnsupportedPolicy(f"p:Queue: Capacity is a number from 1 to {limits.CAPACITY}, not {text:.100}", (QUEUE,))
    return int(text)


def check_server(filters: Filters, tree: TopicTree) -> None:
    """Raises UnsupportedPolicy for filters that a server of a queue cannot have: it is subscribed to one topic, which
    is a queue, and cannot pick among the requests."""
    others = filters.content or filters.producer or filters.types
    pattern = compile_normal(filters.topics[0].normal) if len(filters.topics) == 1 and not others else None
    topic = pattern.single_topic() if isinstance(pattern, Pattern) else None
    if topic is None:
        raise UnsupportedPolicy(
            "with p:Queue a Subscribe has one filter, a wsnt:TopicExpression that names one topic: a worker takes what "
            "its queue has next",
            (QUEUE,),
        )
    if not tree.policy(topic).queue:
        raise UnsupportedPolicy(
            f"the topic {topic:.200} is no queue: an operator makes it one (arborcast topics add --queue)", (QUEUE,)
        )
