"""Topic expressions: from what subscribers, publishers and people write to patterns, and back.

    dialects, namespaces    what peers and people write, also topics by their codes; prefixes in it
    xpath, conditions       the XPath dialect, and conditions over documents; xpath_syntax is what they share
    item_filter             ONVIF's dialect of conditions, as XPath
    writing                 what we write

`parse` reads a filter of a Subscribe, `concrete_topic` the topic of a Notify, `parse_friendly` what a person types;
`compile_normal` gives the pattern behind a filter's normal form; `write_topic` and `write_full` write expressions for
messages of ours. Everything illegal raises an ExpressionError with the position and the fault to answer with.
"""

from __future__ import annotations

from arborcast.topic_model.expressions import xpath
from arborcast.topic_model.expressions.dialects import (
    CONCRETE,
    CONCRETE_SET,
    FULL,
    SIMPLE,
    XPATH,
    concrete_topic,
    parse,
    parse_friendly,
    with_codes,
)
from arborcast.topic_model.expressions.writing import write_full, write_topic
from arborcast.topic_model.expressions.xpath import XPathPattern
from arborcast.topic_model.patterns.patterns import XPATH_SCHEME, Pattern, parse_normal

DIALECTS = (SIMPLE, CONCRETE, FULL, CONCRETE_SET, XPATH)
"""Every dialect that `parse` reads, as the resource property TopicExpressionDialect lists them."""

__all__ = [
    "CONCRETE",
    "CONCRETE_SET",
    "DIALECTS",
    "FULL",
    "SIMPLE",
    "XPATH",
    "XPathPattern",
    "compile_normal",
    "concrete_topic",
    "parse",
    "parse_friendly",
    "with_codes",
    "write_full",
    "write_topic",
]


def compile_normal(normal: str) -> Pattern | XPathPattern:
    """What selects topics, for any normal form that `parse` gave out."""
    return xpath.parse_normal(normal) if normal.startswith(XPATH_SCHEME) else parse_normal(normal)
