"""Sets of topics that a caller may use: whole subtrees, and single topics.

Only these, and no other patterns, so that it can be decided for good whether all that a subscription selects is
allowed: everything that a pattern selects lies below its anchor, the part in front of its first wildcard. If that lies
in an allowed subtree, no topic that is ever added can make the subscription see something it may not.
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
        """Whether it holds for every topic that may ever be."""
        return "" in self.subtrees

    def holds(self, path: TopicPath) -> bool:
        return path in self.topics or self._below(path)

    def covers(self, filters: Iterable[TopicFilter]) -> bool:
        """Whether all that these filters together select now or later is in it. No filter selects everything."""
        # They are ANDed: what one of them keeps within bounds, no other can widen.
        return self.everything or any(self._covers(each) for each in filters)

    def __or__(self, other: Grant) -> Grant:
        return Grant(self.subtrees | other.subtrees, self.topics | other.topics)

    def _covers(self, one: TopicFilter) -> bool:
        pattern = compile_normal(one.normal)
        # What an XPath selects depends on the whole topic set; nothing bounds it.
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
    """Somebody who has proved who it is."""

    name: str
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Caller:
    """An identity with what it may do. Without authentication operations get None: then all is allowed."""

    identity: Identity
    publish: Grant = NOTHING
    subscribe: Grant = NOTHING
    manage: Grant = NOTHING
    serve: Grant = NOTHING

    @property
    def name(self) -> str:
        """What it is called: the owner of what it makes."""
        return self.identity.name
