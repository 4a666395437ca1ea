"""The topic tree: which topics an operator means, and what they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from arborcast.admin import control_log
from arborcast.core.errors import TopicError
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.expressions import XPATH, XPathPattern, compile_normal, parse, parse_friendly, with_codes
from arborcast.topic_model.patterns.alternatives import Reach
from arborcast.topic_model.records.control import ControlRecord
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree


def one_topic(text: str, namespaces: Mapping[str, str]) -> TopicPath:
    """The one topic that a person names: `a/b`, `a:b`, `{urn:t}a/b`, `p:a/b`. Raises TopicError for anything wider."""
    pattern = compile_normal(parse_friendly(text, namespaces).normal)
    if not isinstance(pattern, XPathPattern) and len(pattern.alternatives) == 1:
        (only,) = pattern.alternatives
        if not only.rest and only.reach is Reach.SELF:
            return TopicPath(only.anchor)
    raise TopicError(f"{text!r} names more than one topic; exactly one is needed here")


def topic_named(text: str, tree: TopicTree, namespaces: Mapping[str, str] = MappingProxyType({})) -> TopicPath:
    """The one topic that a person names, by its path or by its code (`code:1.4.A`). Raises TopicError,
    ExpressionError."""
    return one_topic(with_codes(text, namespaces, tree.paths_with_code), namespaces)


def matching(
    tree: TopicTree, expression: str, namespaces: Mapping[str, str], *, xpath: bool = False
) -> list[TopicPath]:
    """The topics that an expression selects, sorted. Raises ExpressionError."""
    if xpath:
        chosen = parse(expression, XPATH, namespaces)
    else:
        chosen = parse_friendly(with_codes(expression, namespaces, tree.paths_with_code), namespaces)
    pattern = compile_normal(chosen.normal)
    if isinstance(pattern, XPathPattern):
        return sorted(pattern.select(tree))
    return sorted(tree.select(pattern))


def change_tree(kafka: KafkaSettings, plan: Callable[[TopicTree], Sequence[ControlRecord]]) -> Sequence[ControlRecord]:
    """Plan a change on the tree as it is and append it; returns what was appended when it is stored.

    Raises TopicError when the change cannot be, InfrastructureError when Kafka is away.
    """
    records = plan(control_log.read_tree(kafka))
    control_log.append(kafka, records)
    return records
