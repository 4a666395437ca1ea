"""Topic expressions: parsing to patterns, and writing.

    dialects, namespaces    expressions of peers and of people, also with codes of topics; their prefixes
    xpath, conditions       the XPath dialect, and conditions over documents; xpath_syntax is their common part
    item_filter             ONVIF's dialect of conditions, as XPath
    writing                 expressions of outgoing messages

`parse` reads a filter of a Subscribe, `concrete_topic` the topic of a Notify, `parse_friendly` input of a person;
`compile_normal` returns the pattern for a filter's normal form; `write_topic` and `write_full` write expressions for
outgoing messages. Illegal input raises an ExpressionError with the position and the fault of the answer.
"""

from __future__ import annotations

from arborcast.topic_model.expressions import xpath
from arborcast.topic_model.expressions.dialects import (
    CONCRETE,
    CONCRETE_SET,
    DIALECTS,
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
    """The pattern for a normal form of `parse`."""
    return xpath.parse_normal(normal) if normal.startswith(XPATH_SCHEME) else parse_normal(normal)
