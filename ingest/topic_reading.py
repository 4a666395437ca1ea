"""Topic expressions as they stand in requests: an element with text, a dialect and the prefixes in scope."""

from __future__ import annotations

from collections.abc import Mapping

from lxml import etree

from topic_model import expressions
from topic_model.errors import ExpressionError, UnknownDialect
from topic_model.subscriptions import TopicFilter
from topic_model.topics import TopicPath

# What TopicMemory may hold, and what an entry costs beside its key and its value.
_REMEMBERED_BYTES = 8 * 1024 * 1024
_ENTRY_BYTES = 200
_LONGEST = 2_048


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
    text, dialect, scope = _parts(element)
    return expressions.concrete_topic(text, dialect, dict(scope))


class TopicMemory:
    """Topics by the bytes that say them: a publisher uses few, over and over, always written the same way.

    Bounded by bytes: what strangers send must not fill the memory. Full, it forgets everything and begins anew.
    """

    def __init__(self) -> None:
        self._topics: dict[bytes, TopicPath] = {}
        self._left = _REMEMBERED_BYTES

    def read(self, element: etree._Element, identity: bytes, unchecked: dict[bytes, TopicPath]) -> TopicPath:
        """The topic of an element that `identity` stands for (Source.identity). Raises ExpressionError.

        One that is not remembered goes into `unchecked`, for `remember`.
        """
        topic = self._topics.get(identity) or unchecked.get(identity)
        if topic is None:
            topic = unchecked[identity] = read_topic(element)
        return topic

    def remember(self, checked: Mapping[bytes, TopicPath]) -> None:
        """Keep topics whose publisher may publish to them: what is refused leaves nothing behind for others."""
        for identity, topic in checked.items():
            if len(identity) > _LONGEST:
                continue
            self._left -= len(identity) + len(topic) + _ENTRY_BYTES
            if self._left < 0:
                self._topics.clear()
                self._left = _REMEMBERED_BYTES
            self._topics[identity] = topic


def _parts(element: etree._Element) -> tuple[str, str | None, frozenset[tuple[str, str]]]:
    text = (element.text or "").strip()
    if len(element):
        raise ExpressionError("a topic expression is text, not elements", text)
    return text, element.get("Dialect"), frozenset(_scope(element.nsmap).items())


def _scope(declarations: Mapping[str | None, str]) -> dict[str, str]:
    """The default namespace goes by the prefix ""."""
    return {prefix or "": namespace for prefix, namespace in declarations.items() if namespace}
