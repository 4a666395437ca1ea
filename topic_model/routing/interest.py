"""The interest of an engine: the topics of its subscriptions, as a few simple selectors. Pure.

A summary selects everything that the subscriptions select, and possibly more. A large one is widened: siblings become
the subtree of their parent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from arborcast.core.errors import ExpressionError
from arborcast.topic_model.patterns.alternatives import UNIVERSAL_ROOT, anchors_above, is_virtual
from arborcast.topic_model.patterns.grammar import MAX_ALTERNATIVES
from arborcast.topic_model.patterns.patterns import XPATH_SCHEME, Pattern, parse_normal
from arborcast.topic_model.routing.selectors import SUBTREE, anchor_of, is_one_topic, is_simple, normals_of
from arborcast.topic_model.subscriptions import Subscription

MAX_NODES = MAX_ALTERNATIVES
"""Maximum size of a summary: it is the topic filter of a link."""

MAX_CHARACTERS = 60_000
"""Maximum number of characters of a summary; an expression may have a few more."""


class _Node(NamedTuple):
    """A topic or, with `below`, its subtree; its anchor may be a virtual root."""

    anchor: str
    below: bool

    @property
    def normal(self) -> str:
        return self.anchor + SUBTREE if self.below else self.anchor


def summary_of(subscriptions: Iterable[Subscription], limit: int = MAX_NODES) -> tuple[str, ...]:
    """The sorted normal forms of a summary of these subscriptions. Servers of queues get nothing from other engines."""
    interested = (each for each in subscriptions if each.receives and each.peer is None and not each.queue)
    selectors = {normals_of(each) for each in interested}
    return _summary({node for normals in selectors for node in _nodes(normals)}, limit)


def merged(summaries: Iterable[Iterable[str]], limit: int = MAX_NODES) -> tuple[str, ...]:
    """One summary of several."""
    return _summary({_node(normal) for summary in summaries for normal in summary}, limit)


def is_summary(normals: Iterable[str]) -> bool:
    """Whether these texts from another engine can be a summary: topics and subtrees."""
    return all(is_simple(each) and (is_one_topic(each) or each.endswith(SUBTREE)) for each in normals)


def _nodes(normals: tuple[str, ...]) -> Iterator[_Node]:
    """Nodes that cover the selector of these filters, all of which must match."""
    if len(normals) == 1 and is_simple(normals[0]):
        yield _node(normals[0])
        return
    try:
        patterns = [parse_normal(each) for each in normals if not each.startswith(XPATH_SCHEME)]
    except ExpressionError:
        return  # unreadable filters match nothing
    if not patterns:
        yield _Node(UNIVERSAL_ROOT, True)
        return
    for alternative in min(patterns, key=_width).alternatives:
        yield _Node(alternative.anchor, True) if alternative.rest else _node(alternative.normal)


def _width(pattern: Pattern) -> tuple[int, int]:
    return sum(is_virtual(each.anchor) for each in pattern.alternatives), len(pattern.alternatives)


def _node(simple: str) -> _Node:
    return _Node(simple, False) if is_one_topic(simple) else _Node(anchor_of(simple), True)


def _summary(nodes: set[_Node], limit: int) -> tuple[str, ...]:
    nodes = _uncovered(nodes)
    for least in (2, 1):
        if len(nodes) > limit or _characters(nodes) > MAX_CHARACTERS:
            nodes = _widened(nodes, limit, least)
    return tuple(sorted(node.normal for node in nodes))


def _characters(nodes: Iterable[_Node]) -> int:
    return sum(len(node.normal) + 1 for node in nodes)


def _uncovered(nodes: set[_Node]) -> set[_Node]:
    """The nodes that are not below another one."""
    subtrees = {node.anchor for node in nodes if node.below}
    return {
        node
        for node in nodes
        if (node.below or node.anchor not in subtrees) and subtrees.isdisjoint(anchors_above(node.anchor))
    }


def _widened(nodes: set[_Node], limit: int, least: int) -> set[_Node]:
    """From the lowest level upwards, a node with at least `least` children replaces them, until the summary is small
    enough. In each level, nodes with more children come first."""
    number, characters = len(nodes), _characters(nodes)
    levels: defaultdict[int, set[_Node]] = defaultdict(set)
    for node in nodes:
        levels[sum(1 for _ in anchors_above(node.anchor))].add(node)
    for depth in range(max(levels), 0, -1):
        siblings: defaultdict[str, list[_Node]] = defaultdict(list)
        for node in levels[depth]:
            siblings[next(anchors_above(node.anchor))].append(node)
        for above, children in sorted(siblings.items(), key=lambda item: (-len(item[1]), item[0])):
            if len(children) < least or (least > 1 and is_virtual(above)):
                continue
            subtree, parents = _Node(above, True), levels[depth - 1]
            replaced = [*children, *parents.intersection((_Node(above, False), subtree))]
            levels[depth].difference_update(children)
            parents.difference_update(replaced)
            parents.add(subtree)
            number += 1 - len(replaced)
            characters += _characters((subtree,)) - _characters(replaced)
            if number <= limit and characters <= MAX_CHARACTERS:
                return _uncovered({node for level in levels.values() for node in level})
    return _uncovered({node for level in levels.values() for node in level})
