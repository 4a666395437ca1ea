"""Topic expressions as elements: a text, a dialect and the prefixes in scope."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from lxml import etree

from arborcast.core.errors import ExpressionError, UnknownDialect
from arborcast.topic_model import expressions
from arborcast.topic_model.expressions import SIMPLE
from arborcast.topic_model.namespaces import DSUB
from arborcast.topic_model.subscriptions import TopicFilter
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.prefixes import prefixes_in

# Topics of IHE Document Metadata Subscription.
_NAMED = re.compile("ihe:(?:Extended)?(?:(?:Full|Minimal)DocumentEntry|SubmissionSetMetadata|(?:Update)?Folder)")


def read_filter(element: etree._Element) -> TopicFilter:
    """A TopicExpression of a Subscribe. Raises ExpressionError.

    By the standard it is Simple without a Dialect. But clients that cannot send a Dialect (Apache CXF) write paths and
    wildcards, which are not Simple expressions: those are read as Full.
    """
    text, dialect, namespaces = _parts(element)
    try:
        return expressions.parse(text, dialect, namespaces)
    except UnknownDialect:
        raise
    except ExpressionError:
        if dialect is not None:
            raise
        return expressions.parse(text, expressions.FULL, namespaces)


def read_topic(element: etree._Element) -> TopicPath:
    """The Topic of a NotificationMessage: exactly one topic. Raises ExpressionError."""
    return expressions.concrete_topic(*_parts(element))


class PublishedTopic(NamedTuple):
    """The topic of a notification, and its publisher's prefixes (`tree.prefixes`)."""

    path: TopicPath
    prefixes: str


def read_published(element: etree._Element, colons: bool = False) -> PublishedTopic:
    """The topic of a publication. Raises ExpressionError."""
    text, dialect, namespaces = _parts(element)
    path = expressions.concrete_topic(text, dialect, namespaces, colons=colons)
    return PublishedTopic(path, prefixes_in(text, path, namespaces))


def _parts(element: etree._Element) -> tuple[str, str | None, dict[str, str]]:
    """The text, the dialect, and the prefixes in scope; the default namespace has the prefix ""."""
    text = (element.text or "").strip()
    if len(element):
        raise ExpressionError("a topic expression is text, not elements")
    scope = {prefix or "": namespace for prefix, namespace in element.nsmap.items() if namespace}
    ihe = _ihe_namespace(text, scope)
    if ihe is not None:
        scope["ihe"] = ihe
    dialect = element.get("Dialect")
    return text, SIMPLE if dialect == DSUB else dialect, scope


def _ihe_namespace(text: str, declared: Mapping[str, str]) -> str | None:
    """The namespace of the prefix `ihe` in a topic of the profile; None for other topics and declarations.

    Messages of the profile do not declare it, or declare a namespace of an earlier draft.
    """
    if _NAMED.match(text) is None:
        return None
    return DSUB if declared.get("ihe", "urn:ihe:iti:").startswith("urn:ihe:iti:") else None
