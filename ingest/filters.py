"""Filter and SubscriptionPolicy of a Subscribe."""

from __future__ import annotations

from dataclasses import dataclass

from lxml import etree

from ingest.errors import UnknownFilters, UnrecognizedPolicy
from ingest.namespaces import wsnt
from ingest.topic_reading import read_filter
from topic_model.errors import FilterError
from topic_model.subscriptions import DeliveryForm, TopicFilter, XPathFilter

XPATH_DIALECT = "http://www.w3.org/TR/1999/REC-xpath-19991116"

_CONTENT = wsnt("MessageContent")
_PRODUCER = wsnt("ProducerProperties")
_TOPICS = wsnt("TopicExpression")
_FAULTS = {
    _CONTENT: "InvalidMessageContentExpressionFault",
    _PRODUCER: "InvalidProducerPropertiesExpressionFault",
}


@dataclass(frozen=True)
class Filters:
    """What a Filter asks for; all of it at once."""

    topics: tuple[TopicFilter, ...] = ()
    content: tuple[XPathFilter, ...] = ()
    producer: tuple[XPathFilter, ...] = ()


def read_filters(element: etree._Element | None) -> Filters:
    """The filters in a wsnt:Filter; none at all selects everything. Raises FilterError."""
    if element is None:
        return Filters()
    known = (_TOPICS, _CONTENT, _PRODUCER)
    unknown = tuple(str(child.tag) for child in element if child.tag not in known)
    if unknown:
        raise UnknownFilters(f"the filter {unknown[0]:.200} is not known", unknown)
    return Filters(
        tuple(read_filter(child) for child in element.iterchildren(_TOPICS)),
        tuple(_read_xpath(child) for child in element.iterchildren(_CONTENT)),
        tuple(_read_xpath(child) for child in element.iterchildren(_PRODUCER)),
    )


def read_form(element: etree._Element | None) -> DeliveryForm:
    """How the subscriber wants its messages, from a wsnt:SubscriptionPolicy. Raises UnrecognizedPolicy."""
    if element is None:
        return "notify"
    unknown = tuple(str(child.tag) for child in element if child.tag != wsnt("UseRaw"))
    if unknown:
        raise UnrecognizedPolicy(f"the subscription policy {unknown[0]:.200} is not known", unknown)
    return "raw" if len(element) else "notify"


def _read_xpath(element: etree._Element) -> XPathFilter:
    text = (element.text or "").strip()
    # CXF's client always sends it; a client that sends none can only mean the one dialect there is.
    dialect = element.get("Dialect", XPATH_DIALECT)
    namespaces = {prefix: uri for prefix, uri in element.nsmap.items() if prefix is not None and uri}
    try:
        if dialect != XPATH_DIALECT:
            raise ValueError(f"the dialect {dialect[:200]!r} is not known; XPath 1.0 is {XPATH_DIALECT}")
        etree.XPath(text, namespaces=namespaces)
    except (etree.XPathError, ValueError) as cause:
        error = FilterError(f"{etree.QName(element).localname}: {text[:200]!r} cannot be used: {cause}")
        error.fault = _FAULTS[str(element.tag)]
        raise error from cause
    return XPathFilter(dialect, text, namespaces)
