"""Patterns with steps below their anchor, such as `a//b` or `a/*/c//.`, evaluated along a topic's path.

A table may have thousands of expressions with hundreds of such patterns. Expanded over the tree, each would cost a walk
over all topics and links to its matches. Instead the steps of all patterns form a trie. A topic walks down the trie
along its path, once for all patterns; only places reachable from its ancestors cost time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from arborcast.topic_model.patterns.alternatives import UNIVERSAL_ROOT, Alternative, Reach, root_anchor
from arborcast.topic_model.patterns.grammar import Axis
from arborcast.topic_model.patterns.patterns import Pattern
from arborcast.topic_model.topics import Step, TopicPath, ancestors, last_step, split_path
from arborcast.topic_model.tree.tree import TopicTree


class LinkTarget(NamedTuple):
    """A selector under a key, and the patterns that must match as well."""

    selector: str
    others: tuple[Pattern, ...] = ()


Arrival = tuple[LinkTarget, Reach]
"""A target that selects something at a node, and its reach."""

_Test = tuple[str | None, str | None]  # namespace (None: the parent's) and name (None: any)

_ANY: _Test = (None, None)


class _Place:
    """A place in the trie: the further steps, and the patterns that end here."""

    __slots__ = ("child", "deeper", "ends")

    def __init__(self) -> None:
        self.child: dict[_Test, _Place] = {}
        self.deeper: dict[_Test, _Place] = {}  # steps at any depth
        self.ends: dict[tuple[str, Reach], LinkTarget] = {}

    def __bool__(self) -> bool:
        return bool(self.child or self.deeper or self.ends)


class RestIndex:
    """Patterns by their steps."""

    def __init__(self) -> None:
        self._anchors: dict[str, _Place] = {}
        # The results for the last topic and its ancestors, which a resolver requests next.
        self._cached: dict[str, Sequence[Arrival]] = {}
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._anchors)

    def __len__(self) -> int:
        """The number of alternatives."""
        return self._size

    def add(self, target: LinkTarget, alternative: Alternative) -> None:
        """Add an alternative with steps for this target."""
        self._cached = {}
        place = self._anchors.setdefault(alternative.anchor, _Place())
        for step in alternative.rest:
            following = place.deeper if step.axis is Axis.DESCENDANT else place.child
            place = following.setdefault((step.namespace, step.name), _Place())
        self._size += (target.selector, alternative.reach) not in place.ends
        place.ends[target.selector, alternative.reach] = target

    def remove(self, selector: str, alternative: Alternative) -> None:
        self._cached = {}
        place = self._anchors[alternative.anchor]
        way: list[tuple[dict[_Test, _Place], _Test]] = []
        for step in alternative.rest:
            following = place.deeper if step.axis is Axis.DESCENDANT else place.child
            test = (step.namespace, step.name)
            way.append((following, test))
            place = following[test]
        del place.ends[selector, alternative.reach]
        self._size -= 1
        while way and not place:
            following, test = way.pop()
            del following[test]
            place = way[-1][0][way[-1][1]] if way else self._anchors[alternative.anchor]
        if not self._anchors[alternative.anchor]:
            del self._anchors[alternative.anchor]

    def at(self, node: TopicPath) -> Sequence[Arrival]:
        """The targets that select something at this node, and their reach."""
        found = self._cached.get(node)
        if found is None:
            self._cached = self._walk(node)
            found = self._cached[node]
        return found

    def over(self, tree: TopicTree) -> Iterator[tuple[TopicPath, Sequence[Arrival]]]:
        """The nodes of a tree with their selecting targets: one walk for all alternatives."""
        if not self:
            return
        waiting: list[tuple[TopicPath, Step, _ReachedPlaces | None]] = [
            (root, (root_anchor(root)[1:-1], last_step(root).rpartition("}")[2]), None) for root in tree.roots()
        ]
        while waiting:
            node, step, above = waiting.pop()
            way = self._further(above, node, step)
            if found := _arrivals(way):
                yield node, found
            for child in tree.children(node):
                namespace, colon, name = last_step(child).rpartition("}")
                waiting.append((child, (namespace[1:] if colon else step[0], name), way))

    def _walk(self, node: TopicPath) -> dict[str, Sequence[Arrival]]:
        """The selecting targets at a node and its ancestors."""
        path = [*reversed(list(ancestors(node))), node]
        anchors = self._anchors
        if (
            UNIVERSAL_ROOT not in anchors
            and root_anchor(node) not in anchors
            and not any(map(anchors.__contains__, path))
        ):
            return dict.fromkeys(path, ())
        found: dict[str, Sequence[Arrival]] = {}
        way: _ReachedPlaces | None = None
        for here, step in zip(path, split_path(node), strict=True):
            way = self._further(way, here, step)
            found[here] = _arrivals(way)
        return found

    def _further(self, above: _ReachedPlaces | None, node: TopicPath, step: Step) -> _ReachedPlaces:
        """The way from a node's parent to the node; None above a root topic."""
        arrived: list[_Place] = []
        roaming: dict[_Place, None] = {}
        if above is not None:
            active = above.active
            fresh = [place for place in active if place.deeper and place not in above.roaming]
            roaming = {**above.roaming, **dict.fromkeys(fresh)} if fresh else above.roaming
            arrived = _reached(active, roaming, step, above.namespace)
        else:
            for virtual in (UNIVERSAL_ROOT, root_anchor(node)):
                if (place := self._anchors.get(virtual)) is not None:
                    arrived += _reached((place,), (place,), step, virtual[1:-1])
                    roaming[place] = None
        return _ReachedPlaces(arrived, roaming, self._anchors.get(node), step[0])


class _ReachedPlaces(NamedTuple):
    """The reached places at a node: `arrived` there, and `roaming`, which began further up and continue at any depth.
    `begins` at the node continue below it."""

    arrived: list[_Place]
    roaming: dict[_Place, None]
    begins: _Place | None
    namespace: str

    @property
    def active(self) -> list[_Place]:
        """The places with further steps."""
        return self.arrived if self.begins is None else [*self.arrived, self.begins]


def _arrivals(way: _ReachedPlaces) -> Sequence[Arrival]:
    return [(target, reach) for place in way.arrived for (_, reach), target in place.ends.items()]


def _reached(active: Iterable[_Place], roaming: Iterable[_Place], step: Step, parent_namespace: str) -> list[_Place]:
    """The places one level down, without repetitions: each has one predecessor and one step to it."""
    tests: list[_Test] = [step, _ANY]
    if step[0] == parent_namespace:
        tests.append((None, step[1]))
    places = [place.child[test] for place in active for test in tests if test in place.child]
    places += [place.deeper[test] for place in roaming for test in tests if test in place.deeper]
    return places


def selects_any(pattern: Pattern, tree: TopicTree) -> bool:
    """Whether the pattern selects an existing topic: one walk over the tree for all alternatives."""
    index = RestIndex()
    for each in pattern.alternatives:
        if each.rest:
            index.add(LinkTarget(""), each)
    plain = Pattern(pattern.normal, tuple(each for each in pattern.alternatives if not each.rest))
    if next(tree.select(plain), None) is not None:
        return True
    return any(
        node in tree
        if reach is Reach.SELF
        else any(child in tree for child in tree.children(node))
        if reach is Reach.CHILDREN
        else tree.has_children(node) or (reach is Reach.SUBTREE and node in tree)
        for node, found in index.over(tree)
        for _, reach in found
    )
