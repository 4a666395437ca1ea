"""What Full topic expressions mean, computed the slow way: node sets over a tree that is really there.

Written from the table of the standard, to judge `topic_model.patterns` by; it shares nothing with it. A topic is a
tuple of (namespace, name); the tree that is looked at holds the topic in question and its ancestors. An expression is
(root namespace, steps), each step a separator and a test: `*`, `.`, or a name with an optional namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Topic = tuple[tuple[str, str], ...]


class Step(NamedTuple):
    """`separator` is `/` or `//`; `namespace` None is a name without a prefix."""

    separator: str
    namespace: str | None
    name: str


def naive_matches(root_namespace: str, steps: Sequence[Step], topic: Topic) -> bool:
    """Whether the expression selects the topic."""
    if topic[0][0] != root_namespace:
        return False  # in the tree of another namespace
    tree = [topic[:level] for level in range(len(topic) + 1)]  # () is the root above the root topics
    selected: set[Topic] = {()}
    for step in steps:
        selected = {found for node in selected for found in _from(node, step, tree, root_namespace)}
    return topic in selected


def _from(node: Topic, step: Step, tree: Sequence[Topic], root_namespace: str) -> set[Topic]:
    strictly_below = {other for other in tree if len(other) > len(node) and other[: len(node)] == node}
    if step.name == ".":
        return {node} if step.separator == "/" else {node, *strictly_below}
    within = strictly_below if step.separator == "//" else {n for n in strictly_below if len(n) == len(node) + 1}
    if step.name == "*":
        return within
    return {n for n in within if n[-1] == (_namespace_for(n, step, root_namespace), step.name)}


def _namespace_for(candidate: Topic, step: Step, root_namespace: str) -> str:
    if step.namespace is not None:
        return step.namespace
    return candidate[-2][0] if len(candidate) > 1 else root_namespace
