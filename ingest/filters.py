"""Filter and SubscriptionPolicy of a Subscribe."""

from __future__ import annotations

from lxml import etree

from ingest.errors import UnknownFilters, UnrecognizedPolicy
from ingest.namespaces import wsnt
from ingest.topic_reading import read_filter
from topic_model.subscriptions import DeliveryForm, TopicFilter

_TOPICS = wsnt("TopicExpression")


def read_filters(element: etree._Element | None) -> tuple[TopicFilter, ...]:
    """The topic filters in a wsnt:Filter, all of which must match; none at all selects everything.

    Raises FilterError. Filters over content and producer properties are refused like unknown ones: a subscriber that
    gets more than it asked for is worse off than one that is told.
    """
    if element is None:
        return ()
    unknown = tuple(str(child.tag) for child in element if child.tag != _TOPICS)
    if unknown:
        raise UnknownFilters(f"the filter {unknown[0]:.200} is not offered", unknown)
    return tuple(read_filter(child) for child in element)


def read_form(element: etree._Element | None) -> DeliveryForm:
    """How the subscriber wants its messages, from a wsnt:SubscriptionPolicy. Raises UnrecognizedPolicy."""
    if element is None:
        return "notify"
    unknown = tuple(str(child.tag) for child in element if child.tag != wsnt("UseRaw"))
    if unknown:
        raise UnrecognizedPolicy(f"the subscription policy {unknown[0]:.200} is not known", unknown)
    return "raw" if len(element) else "notify"
