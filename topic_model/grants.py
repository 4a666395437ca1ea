"""Sets of topics that a caller may use: subtrees and single topics.

Other patterns are not supported, so that it is decidable whether all topics of a subscription are allowed: they are
below its anchor, the part before the first wildcard, and if the anchor is in an allowed subtree, no future topic can
leak.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from arborcast.topic_model.expressions import XPathPattern, compile_normal
from arborcast.topic_model.patterns.alternatives import Alternative, Reach, anchors_above, is_virtual
from arborcast.topic_model.subscriptions import TopicFilter
from arborcast.topic_model.topics import TopicPath


@dataclass(frozen=True, slots=True)
class Grant:
    """`subtrees` are anchors (`""` is above everything, `{urn:t}` above all trees of that namespace)."""

    subtrees: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()

    @property
    def everything(self) -> bool:
        """Whether it covers every possible topic."""
        return "" in self.subtrees

    def holds(self, path: TopicPath) -> bool:
        return path in self.topics or self._below(path)

    def covers(self, filters: Iterable[TopicFilter]) -> bool:
        """Whether all current and future topics that these filters together select are covered. Without a filter, all
        topics are selected."""
        # Filters are ANDed, so one covered filter is enough.
        return self.everything or any(self._covers(each) for each in filters)

    def __or__(self, other: Grant) -> Grant:
        return Grant(self.subtrees | other.subtrees, self.topics | other.topics)

    def _covers(self, one: TopicFilter) -> bool:
        pattern = compile_normal(one.normal)
        # The selection of an XPath depends on the whole topic set and is unbounded.
        return not isinstance(pattern, XPathPattern) and all(self._covers_one(each) for each in pattern.alternatives)

    def _covers_one(self, one: Alternative) -> bool:
        if one.reach is Reach.SELF and not one.rest and not is_virtual(one.anchor):
            return self.holds(TopicPath(one.anchor))
        return self._below(one.anchor)

    def _below(self, anchor: str) -> bool:
        subtrees = self.subtrees
        return anchor in subtrees or any(above in subtrees for above in anchors_above(anchor))


NOTHING = Grant()


ALL = Grant(frozenset({""}))


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated client."""

    name: str
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Caller:
    """An identity with its rights. Without authentication operations get None, and everything is allowed."""

    identity: Identity
    publish: Grant = NOTHING
    subscribe: Grant = NOTHING
    manage: Grant = NOTHING
    serve: Grant = NOTHING

    @property
    def name(self) -> str:
        """The name, which is the owner of created resources."""
        return self.identity.name
