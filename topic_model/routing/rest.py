"""Patterns with steps below their anchor, such as `a//b` or `a/*/c//.`, found by where they begin and how they end.

A table may hold thousands of these. Asking all of them about each new topic would make a growing tree slow, so they
are kept by (anchor, name of the last step): a node asks only those that begin above it and end in its own name, or
in `*`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from topic_model.patterns import Alternative, Pattern, Reach, anchors_above
from topic_model.topics import TopicPath, last_step


class Target(NamedTuple):
    """A selector that a key leads to, and the patterns that must match as well."""

    selector: str
    others: tuple[Pattern, ...] = ()


class _Kept(NamedTuple):
    target: Target
    nodes: Alternative  # the alternative without its reach: it matches the nodes at which the reach applies
    reach: Reach


class RestIndex:
    """Rest alternatives by anchor and last name."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str | None], dict[tuple[str, Alternative], _Kept]] = {}

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, target: Target, alternative: Alternative) -> None:
        """Keep an alternative with steps for this target."""
        nodes = nodes_of(alternative)
        kept = self._kept.setdefault((alternative.anchor, alternative.rest[-1].name), {})
        kept[target.selector, alternative] = _Kept(target, nodes, alternative.reach)

    def remove(self, target: Target, alternative: Alternative) -> None:
        """Forget what `add` was told."""
        key = (alternative.anchor, alternative.rest[-1].name)
        del self._kept[key][target.selector, alternative]
        if not self._kept[key]:
            del self._kept[key]

    def at(self, node: TopicPath) -> Iterator[tuple[Target, Reach]]:
        """The targets that select something at this node, and what."""
        name = last_step(node).rpartition("}")[2]
        for anchor in anchors_above(node):
            for last in (name, None):
                for target, nodes, reach in self._kept.get((anchor, last), _NOTHING).values():
                    if nodes.matches(node):
                        yield target, reach


_NOTHING: dict[tuple[str, Alternative], _Kept] = {}


def nodes_of(alternative: Alternative) -> Alternative:
    """Matches the nodes at which the alternative's reach applies."""
    return Alternative(alternative.anchor, alternative.rest, Reach.SELF)
