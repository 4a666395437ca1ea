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

    Without a Dialect it is Simple, so says the standard. Clients that cannot send a Dialect (Apache CXF) yet write
    whole paths and wildcards, which are no Simple expressions: those are read as Full.
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
    """The topic of a notification, and the prefixes that its publisher wrote it with (`tree.prefixes`)."""

    path: TopicPath
    prefixes: str


def read_published(element: etree._Element, colons: bool = False) -> PublishedTopic:
    """The one topic that is to be published on. Raises ExpressionError."""
    text, dialect, namespaces = _parts(element)
    path = expressions.concrete_topic(text, dialect, namespaces, colons=colons)
    return PublishedTopic(path, prefixes_in(text, path, namespaces))


def _parts(element: etree._Element) -> tuple[str, str | None, dict[str, str]]:
    """Its text, its dialect, and the prefixes in scope; the default namespace goes by the prefix ""."""
    text = (element.text or "").strip()
    if len(element):
        raise ExpressionError("a topic expression is text, not elements")
    scope = {prefix or "": namespace for prefix, namespace in element.nsmap.items() if namespace}
    hospitals = _scope_of(text, scope)
    if hospitals is not None:
        scope["ihe"] = hospitals
    dialect = element.get("Dialect")
    return text, SIMPLE if dialect == DSUB else dialect, scope


def _scope_of(text: str, declared: Mapping[str, str]) -> str | None:
    """What the prefix `ihe` means in a topic expression; None where it is not for us to say.

    The profile's own messages do not declare it, or declare a namespace of an earlier draft.
    """
    if _NAMED.match(text) is None:
        return None
    return DSUB if declared.get("ihe", "urn:ihe:iti:").startswith("urn:ihe:iti:") else None
