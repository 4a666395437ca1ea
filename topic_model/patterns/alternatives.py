"""Parts of patterns: an anchor in the topic tree, steps from there, and the nodes selected at the end.

`patterns` parses them from normal forms and combines them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from arborcast.topic_model.patterns.grammar import Axis
from arborcast.topic_model.topics import Step, TopicPath, ancestors, split_path

UNIVERSAL_ROOT: Final = ""
"""Anchor above all trees of all namespaces."""


class Reach(enum.Enum):
    """The nodes selected at the end of an alternative."""

    SELF = ""
    CHILDREN = "/*"
    DESCENDANTS = "//*"  # not the node itself
    SUBTREE = "//."  # the node and its descendants


@dataclass(frozen=True, slots=True)
class StepTest:
    """One step below the anchor. `namespace` None means the parent's, `name` None means `*` (of any namespace)."""

    axis: Axis
    namespace: str | None
    name: str | None

    def accepts(self, step: Step, parent_namespace: str) -> bool:
        """Whether a step of a topic matches; the axis is ignored."""
        if self.name is None:
            return True
        expected = parent_namespace if self.namespace is None else self.namespace
        return step == (expected, self.name)


@dataclass(frozen=True, slots=True)
class Alternative:
    """From `anchor`, the steps of `rest` lead to nodes; `reach` of each of these nodes is selected.

    `anchor` is a canonical path, or `{namespace}` for the virtual root of that namespace's trees (`{}`: no
    namespace), or UNIVERSAL_ROOT. Virtual roots are not topics: their SUBTREE is all topics below, their CHILDREN are
    root topics. `alternative` creates alternatives in normal form.
    """

    anchor: str
    rest: tuple[StepTest, ...]
    reach: Reach

    @property
    def normal(self) -> str:
        return self.written(self.anchor, lambda namespace, name: f"{{{namespace}}}{name}")

    def written(self, anchor: str, qualified: Callable[[str, str], str]) -> str:
        """This alternative as text, with its anchor in this form, and `qualified` for names with a namespace."""
        virtual = is_virtual(self.anchor)
        parts = [anchor]
        for step in self.rest:
            # `{urn:t}*` and not `{urn:t}/*`: a virtual root has no name before the slash.
            if step.axis is Axis.DESCENDANT or len(parts) > 1 or not virtual:
                parts.append(step.axis.value)
            name = "*" if step.name is None else step.name
            parts.append(name if step.namespace is None else qualified(step.namespace, name))
        parts.append("*" if self.reach is Reach.CHILDREN and virtual and not self.rest else self.reach.value)
        return "".join(parts)

    def matches(self, path: TopicPath) -> bool:
        """Whether the topic is selected. The worst case takes levels of the topic times steps of this alternative."""
        if not self.rest and not is_virtual(self.anchor):
            if self.reach is Reach.SELF:
                return path == self.anchor
            if path == self.anchor:
                return self.reach is Reach.SUBTREE
        if not is_below(path, self.anchor):
            return False
        if not self.rest and self.reach is not Reach.CHILDREN:
            return True
        return self._walk(path)

    def _walk(self, path: TopicPath) -> bool:
        """Walk down from the anchor with the set of possible positions in `rest`.

        The set is a bit mask, so a pattern with many `//` needs no backtracking.
        """
        steps = list(split_path(path))
        depth, parent_namespace = 0, self.anchor[1:-1]
        if not is_virtual(self.anchor):
            depth = sum(1 for _ in split_path(self.anchor))
            parent_namespace = steps[depth - 1][0]
        reached = 1
        levels_above_end = len(steps) - depth
        for step in steps[depth:]:
            if reached & self.arrived and self._selects_at(levels_above_end):
                return True
            reached = self.advance(reached, step, parent_namespace)
            parent_namespace = step[0]
            levels_above_end -= 1
        return bool(reached & self.arrived) and self.reach in (Reach.SELF, Reach.SUBTREE)

    @property
    def arrived(self) -> int:
        """The bit of the position after the last step, at which `reach` is selected."""
        return 1 << len(self.rest)

    def advance(self, reached: int, step: Step, parent_namespace: str) -> int:
        """The possible positions one level further down, after a step of a topic; at the anchor the set is 1."""
        following = 0
        for index, test in enumerate(self.rest):
            if reached & (1 << index):
                if test.axis is Axis.DESCENDANT:
                    following |= 1 << index
                if test.accepts(step, parent_namespace):
                    following |= 2 << index
        return following

    def _selects_at(self, levels_above_end: int) -> bool:
        if self.reach is Reach.CHILDREN:
            return levels_above_end == 1
        return self.reach in (Reach.DESCENDANTS, Reach.SUBTREE)


def is_virtual(anchor: str) -> bool:
    """Whether an anchor is the root of all topics or of a namespace, not a topic."""
    return not anchor or anchor[-1] == "}"


def is_below(path: TopicPath, anchor: str) -> bool:
    """Whether the topic is strictly below the anchor."""
    if not is_virtual(anchor):
        return len(path) > len(anchor) and path.startswith(anchor) and path[len(anchor)] == "/"
    if anchor == "{}":
        return path[0] != "{"
    return path.startswith(anchor)


def anchors_above(anchor: str) -> Iterator[str]:
    """All anchors above the given one, nearest first: topics, the virtual root of its namespace, the universal root."""
    if not is_virtual(anchor):
        path = TopicPath(anchor)
        yield from ancestors(path)
        yield root_anchor(path)
    if anchor:
        yield UNIVERSAL_ROOT


def root_anchor(path: TopicPath) -> str:
    """The virtual root of a topic's namespace."""
    return path[: path.index("}") + 1] if path[0] == "{" else "{}"
