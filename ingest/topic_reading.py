"""Topic expressions as they stand in requests: an element with text, a dialect and the prefixes in scope."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from lxml import etree

from topic_model import expressions
from topic_model.errors import ExpressionError, UnknownDialect
from topic_model.subscriptions import TopicFilter
from topic_model.topics import TopicPath

# A publisher uses few topics, over and over, always with the same declarations.
_REMEMBERED = 20_000


def read_filter(element: etree._Element) -> TopicFilter:
    """A TopicExpression of a Subscribe. Raises ExpressionError.

    Without a Dialect it is Simple, so says the standard. Clients that cannot send a Dialect (Apache CXF) yet write
    whole paths and wildcards, which are no Simple expressions: those are read as Full.
    """
    text, dialect, scope = _parts(element)
    namespaces = dict(scope)
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
    return _concrete(*_parts(element))


@lru_cache(_REMEMBERED)
def _concrete(text: str, dialect: str | None, scope: frozenset[tuple[str, str]]) -> TopicPath:
    return expressions.concrete_topic(text, dialect, dict(scope))


def _parts(element: etree._Element) -> tuple[str, str | None, frozenset[tuple[str, str]]]:
    text = (element.text or "").strip()
    if len(element):
        raise ExpressionError("a topic expression is text, not elements", text)
    return text, element.get("Dialect"), frozenset(_scope(element.nsmap).items())


def _scope(declarations: Mapping[str | None, str]) -> dict[str, str]:
    """The default namespace goes by the prefix ""."""
    return {prefix or "": namespace for prefix, namespace in declarations.items() if namespace}
