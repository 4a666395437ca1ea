"""Patterns with steps below their anchor, such as `a//b` or `a/*/c//.`, found by walking a topic's path.

A subscriber may ask for hundreds of these in one expression, and a table may hold thousands of such expressions. Laid
over the tree each would cost a walk over all topics, and a link for each that it finds. So nothing is laid over the
tree: the steps of all of them form a trie, and a topic walks down the trie by its own path, once for all of them. It
meets only those places that the topics above it lead to: what begins otherwise costs nothing.
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
    """A selector that a key leads to, and the patterns that must match as well."""

    selector: str
    others: tuple[Pattern, ...] = ()


Arrival = tuple[LinkTarget, Reach]
"""A target that selects something at a node, and what."""

_Test = tuple[str | None, str | None]  # namespace (None: the parent's) and name (None: any)

_ANY: _Test = (None, None)


class _Place:
    """Where the steps so far have led: the steps that go on from here, and what ends here."""

    __slots__ = ("child", "deeper", "ends")

    def __init__(self) -> None:
        self.child: dict[_Test, _Place] = {}
        self.deeper: dict[_Test, _Place] = {}  # of steps that may be taken from any level below too
        self.ends: dict[tuple[str, Reach], LinkTarget] = {}

    def __bool__(self) -> bool:
        return bool(self.child or self.deeper or self.ends)


class RestIndex:
    """Rest alternatives by their steps."""

    def __init__(self) -> None:
        self._anchors: dict[str, _Place] = {}
        # What the topic that was asked about last, and those above it, have: a resolver asks for these next.
        self._asked: dict[str, Sequence[Arrival]] = {}
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._anchors)

    def __len__(self) -> int:
        """How many alternatives there are."""
        return self._size

    def add(self, target: LinkTarget, alternative: Alternative) -> None:
        """Keep an alternative with steps for this target."""
        self._asked = {}
        place = self._anchors.setdefault(alternative.anchor, _Place())
        for step in alternative.rest:
            following = place.deeper if step.axis is Axis.DESCENDANT else place.child
            place = following.setdefault((step.namespace, step.name), _Place())
        self._size += (target.selector, alternative.reach) not in place.ends
        place.ends[target.selector, alternative.reach] = target

    def remove(self, target: LinkTarget, alternative: Alternative) -> None:
        self._asked = {}
        place = self._anchors[alternative.anchor]
        way: list[tuple[dict[_Test, _Place], _Test]] = []
        for step in alternative.rest:
            following = place.deeper if step.axis is Axis.DESCENDANT else place.child
            test = (step.namespace, step.name)
            way.append((following, test))
            place = following[test]
        del place.ends[target.selector, alternative.reach]
        self._size -= 1
        while way and not place:
            following, test = way.pop()
            del following[test]
            place = way[-1][0][way[-1][1]] if way else self._anchors[alternative.anchor]
        if not self._anchors[alternative.anchor]:
            del self._anchors[alternative.anchor]

    def at(self, node: TopicPath) -> Sequence[Arrival]:
        """The targets that select something at this node, and what."""
        found = self._asked.get(node)
        if found is None:
            self._asked = self._walk(node)
            found = self._asked[node]
        return found

    def over(self, tree: TopicTree) -> Iterator[tuple[TopicPath, Sequence[Arrival]]]:
        """The nodes of a tree at which something selects, with what does: one walk for all alternatives."""
        if not self:
            return
        waiting: list[tuple[TopicPath, Step, _Way | None]] = [
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
        """What selects something at a node and at those above it."""
        path = [*reversed(list(ancestors(node))), node]
        anchors = self._anchors
        if (
            UNIVERSAL_ROOT not in anchors
            and root_anchor(node) not in anchors
            and not any(map(anchors.__contains__, path))
        ):
            return dict.fromkeys(path, ())
        found: dict[str, Sequence[Arrival]] = {}
        way: _Way | None = None
        for here, step in zip(path, split_path(node), strict=True):
            way = self._further(way, here, step)
            found[here] = _arrivals(way)
        return found

    def _further(self, above: _Way | None, node: TopicPath, step: Step) -> _Way:
        """The way to a node from the one to the node above it; None above a root topic."""
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
        return _Way(arrived, roaming, self._anchors.get(node), step[0])


class _Way(NamedTuple):
    """How far the steps have come at a node: `arrived` there, and `roaming`, begun further up and good for any depth.

    What `begins` at the node goes on below it.
    """

    arrived: list[_Place]
    roaming: dict[_Place, None]
    begins: _Place | None
    namespace: str

    @property
    def active(self) -> list[_Place]:
        """The places from which steps go on."""
        return self.arrived if self.begins is None else [*self.arrived, self.begins]


def _arrivals(way: _Way) -> Sequence[Arrival]:
    return [(target, reach) for place in way.arrived for (_, reach), target in place.ends.items()]


def _reached(active: Iterable[_Place], roaming: Iterable[_Place], step: Step, parent_namespace: str) -> list[_Place]:
    """The places one level further down. None is there twice: each has one place before it, and one step to it."""
    tests: list[_Test] = [step, _ANY]
    if step[0] == parent_namespace:
        tests.append((None, step[1]))
    places = [place.child[test] for place in active for test in tests if test in place.child]
    places += [place.deeper[test] for place in roaming for test in tests if test in place.deeper]
    return places


def selects_any(pattern: Pattern, tree: TopicTree) -> bool:
    """Whether there is a topic that the pattern selects: one walk over the tree, however many alternatives it has."""
    index = RestIndex()
    plain = []
    for each in pattern.alternatives:
        if each.rest:
            index.add(LinkTarget(""), each)
        else:
            plain.append(each)
    if any(next(tree.select(Pattern(each.normal, (each,))), None) is not None for each in plain):
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
