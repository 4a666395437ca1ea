"""The topic tree: topics in an operator's words, and single changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from arborcast.admin import control_log, operations
from arborcast.admin.operations import commit
from arborcast.core.errors import TopicError
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.expressions import XPATH, XPathPattern, compile_normal, parse, parse_friendly, with_codes
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records.control import ControlRecord, TopicRecord, TopicRemoved
from arborcast.topic_model.records.operations import control_changes
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.plans import (
    Created,
    plan_create,
    plan_move,
    plan_remove,
    plan_rename,
    plan_update,
    without_place,
)
from arborcast.topic_model.tree.tree import TopicTree


class TopicNode(msgspec.Struct, frozen=True):
    """A node of the tree; `topic` is False for one that only has topics below."""

    path: TopicPath
    topic: bool
    children: tuple[TopicNode, ...]


class TreeChange(NamedTuple):
    """The topics that were added or replaced, and those that were removed."""

    put: tuple[TopicPath, ...]
    removed: tuple[TopicPath, ...]


def one_topic(text: str, namespaces: Mapping[str, str]) -> TopicPath:
    """The topic of an operator's text: `a/b`, `a:b`, `{urn:t}a/b`, `p:a/b`. Raises TopicError for several topics."""
    topic = parse_normal(parse_friendly(text, namespaces).normal).single_topic()
    if topic is None:
        raise TopicError(f"{text!r} names more than one topic; exactly one is needed here")
    return topic


def topic_named(text: str, tree: TopicTree, namespaces: Mapping[str, str] = MappingProxyType({})) -> TopicPath:
    """The topic of an operator's text, by its path or by its code (`code:1.4.A`). Raises TopicError,
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


def listed(tree: TopicTree, expression: str, namespaces: Mapping[str, str]) -> list[TopicRecord]:
    """The topics that an expression selects, with their properties. Raises ExpressionError."""
    return _records(tree, matching(tree, expression, namespaces))


def with_code(tree: TopicTree, code: str) -> list[TopicRecord]:
    """The topics with this code. An edited directory may have several: the first one counts. Raises TopicError without
    one."""
    found = _records(tree, tree.paths_with_code(code))
    if not found:
        raise TopicError(f"no topic has the code {code!r}; `arborcast topics list` shows them")
    return found


def nodes(tree: TopicTree, depth: int | None = None) -> list[TopicNode]:
    """The tree from its roots, down to this level."""
    return [_node(tree, path, depth) for path in sorted(tree.roots())]


def add(kafka: KafkaSettings, record: TopicRecord, *, update: bool = False) -> TreeChange:
    """Add a topic; with `update`, replace the properties of an existing one. Raises TopicError, InfrastructureError, as
    the other changes."""

    def plan(tree: TopicTree) -> list[ControlRecord]:
        return plan_update(tree, record) if update and record.path in tree else plan_create(tree, record)

    return _change(kafka, "topics add", plan)


def remove(kafka: KafkaSettings, path: TopicPath, *, recursive: bool = False) -> TreeChange:
    """Remove a topic; with `recursive`, a topic or node with every topic below."""
    return _change(kafka, "topics remove", lambda tree: plan_remove(tree, path, recursive=recursive))


def move(kafka: KafkaSettings, old: TopicPath, new: TopicPath) -> TreeChange:
    """Move a topic, with all topics below it, to a free path; or complete an interrupted move."""
    what = "topics move"
    return _change(kafka, what, lambda tree: plan_move(tree, old, new, _created_by(kafka, what)))


def rename(kafka: KafkaSettings, path: TopicPath, name: str) -> TreeChange:
    """Change the last step of a topic's path; or complete an interrupted change."""
    what = "topics rename"
    return _change(kafka, what, lambda tree: plan_rename(tree, path, name, _created_by(kafka, what)))


def _created_by(kafka: KafkaSettings, what: str) -> Created:
    """Whether an unfinished operation of this kind has created a topic."""
    changes = cache(lambda: operations.unfinished(kafka, what))  # read only if there is a topic in the way
    return lambda topic: changes() >= {*control_changes([without_place(topic)], lambda _: None)[0]}


def _change(kafka: KafkaSettings, what: str, plan: Callable[[TopicTree], Sequence[ControlRecord]]) -> TreeChange:
    tree = control_log.read_tree(kafka)
    records = plan(tree)
    commit(kafka, what, records, lambda path: tree.get(TopicPath(path)))
    return TreeChange(
        tuple(each.path for each in records if isinstance(each, TopicRecord)),
        tuple(each.path for each in records if isinstance(each, TopicRemoved)),
    )


def _records(tree: TopicTree, paths: Iterable[TopicPath]) -> list[TopicRecord]:
    return [record for path in paths if (record := tree.get(path)) is not None]


def _node(tree: TopicTree, path: TopicPath, depth: int | None) -> TopicNode:
    # A path has at most 64 levels, so recursion is safe.
    below = [] if depth == 1 else sorted(tree.children(path))
    return TopicNode(path, path in tree, tuple(_node(tree, child, depth and depth - 1) for child in below))
