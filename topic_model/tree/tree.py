"""The topic tree: topics with their properties, a fold over the topic records of the control log. To change it, plan
the change (`tree.plans`), append its records, and apply the log.

A node is a topic only if it has a record. `a/b` makes a node of `a`, which is not a topic and disappears with the last
topic below it; a first notification on `a/b` in an open topic set adds one topic.

A topic without properties costs its path and two dictionary slots (160 bytes at a million topics in branches of ten,
340 in branches of two), in every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Final

from lxml import etree

from arborcast.topic_model.namespaces import WSTOP
from arborcast.topic_model.patterns.alternatives import Alternative, Reach, is_virtual, root_anchor
from arborcast.topic_model.patterns.patterns import EVERYTHING, Pattern
from arborcast.topic_model.records.control import ControlRecord, TopicPolicy, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import Step, TopicPath, ancestors, last_step, parent_of, split_path
from arborcast.topic_model.tree.distribution import distribution_of
from arborcast.topic_model.tree.prefixes import KnownPrefixes

TOPIC_SET: Final = f"{{{WSTOP}}}TopicSet"

IS_TOPIC: Final = f"{{{WSTOP}}}topic"

_MANY = 16  # as a part of all


class TopicSetBuilder:
    """Builds the topic set as an element tree: one element per node, `wstop:topic="true"` for topics, without text.

    A child in its parent's namespace is an element without a namespace, as in the TopicSets of real devices, so that
    the XPath `//tns:a/b` finds it. A child in another namespace is an element of that namespace.
    """

    def __init__(self, prefixes: dict[str, str] | None = None) -> None:
        self.root = etree.Element(TOPIC_SET, nsmap={**(prefixes or {}), "wstop": WSTOP})
        self._elements: dict[TopicPath, etree._Element] = {}

    def paths_of(self, elements: Set[etree._Element]) -> Iterable[TopicPath]:
        """The paths of elements below the root. Many are looked up: from an element, its path takes microseconds."""
        if len(elements) > len(self._elements) // _MANY:
            return (path for path, element in self._elements.items() if element in elements)
        return map(path_of, elements)

    def add(self, path: TopicPath) -> etree._Element:
        """The element of a topic."""
        element = self._node(path)
        element.set(IS_TOPIC, "true")
        return element

    def remove(self, path: TopicPath) -> None:
        """Remove a topic that was added, with its element and those above that have no topics."""
        del self._elements[path].attrib[IS_TOPIC]
        for node in (path, *ancestors(path)):
            element = self._elements[node]
            if IS_TOPIC in element.attrib or next(element.iterchildren(), None) is not None:
                return
            parent = element.getparent()
            if parent is not None:
                parent.remove(element)
            del self._elements[node]

    def _node(self, path: TopicPath) -> etree._Element:
        element = self._elements.get(path)
        if element is None:
            above = parent_of(path)
            parent = self.root if above is None else self._node(above)
            # A step of a path is already lxml's tag: `{namespace}name`, or the name alone.
            element = self._elements[path] = etree.SubElement(parent, last_step(path))
        return element


def topic_set(paths: Iterable[TopicPath], prefixes: dict[str, str] | None = None) -> etree._Element:
    """The TopicSet of these topics, with these namespaces by prefix."""
    builder = TopicSetBuilder(prefixes)
    for path in paths:
        builder.add(path)
    return builder.root


def path_of(element: etree._Element) -> TopicPath:
    """The path of an element's node in its TopicSet."""
    steps: list[str] = []
    node: etree._Element | None = element
    while node is not None and node.tag != TOPIC_SET:
        steps.append(str(node.tag))
        node = node.getparent()
    return TopicPath("/".join(reversed(steps)))


_TOP = TopicPath("")  # the virtual root's key among the parents, not a topic

_NO_POLICY = TopicPolicy()


class TopicTree:
    """Topics by path, by code, and by parent. `prefixes` are the original ones of its namespaces.

    `children`, `descendants`, `roots`, `paths`, `queues` and `select` have no particular order, and the tree must not
    change while one is being read. `version` grows with every change.
    """

    def __init__(self) -> None:
        # None is a record without properties.
        self._records: dict[TopicPath, TopicRecord | None] = {}
        self._children: dict[TopicPath, dict[TopicPath, None]] = {}  # of nodes with children; a dict keeps its order
        self._codes: dict[str, tuple[TopicPath, ...]] = {}
        self._queues: set[TopicPath] = set()
        self._topic_set: TopicSetBuilder | None = None
        self.prefixes = KnownPrefixes()
        self.version = 0

    def apply(self, record: ControlRecord) -> None:
        """Apply one record of the control log; other records change nothing."""
        if isinstance(record, TopicRecord):
            self.put(record)
        elif isinstance(record, TopicRemoved):
            self.remove(record.path)

    def put(self, record: TopicRecord) -> None:
        """Add the topic, or replace its properties. The path is canonical."""
        path = record.path
        if record.prefixes:
            self.prefixes.add(path, record.prefixes)
            record = record.facts
        if path in self._records:
            self._forget_code(path)
        elif path not in self._children:
            self._link(path)
        self._records[path] = None if _is_plain(record) else record
        if self._topic_set is not None:
            self._topic_set.add(path)
        if record.policy.queue:
            self._queues.add(path)
        else:
            self._queues.discard(path)
        if record.code:
            # An edited directory may have two topics with one code: both stay, the smallest path is found.
            self._codes[record.code] = tuple(sorted((*self._codes.get(record.code, ()), path)))
        self.version += 1

    def remove(self, path: TopicPath) -> bool:
        """Remove the topic, not the topics below it. Returns False if it does not exist."""
        if path not in self._records:
            return False
        self._forget_code(path)
        del self._records[path]
        self._queues.discard(path)
        self._prune(path)
        if self._topic_set is not None:
            self._topic_set.remove(path)
        self.version += 1
        return True

    def get(self, path: TopicPath) -> TopicRecord | None:
        """The topic's record; None if it is not a topic (it may be a node)."""
        if path not in self._records:
            return None
        return self._records[path] or TopicRecord(path)

    def policy(self, path: TopicPath) -> TopicPolicy:
        """The policy of the topic; the default without one."""
        record = self._records.get(path)
        return _NO_POLICY if record is None else record.policy

    def distribution(self, path: TopicPath) -> str:
        """The routing word (`tree.distribution`) of the topic or the nearest one above it."""
        return distribution_of(self.policy(each).routing for each in (path, *ancestors(path)))

    def is_fast(self, path: TopicPath, otherwise: bool) -> bool:
        """Whether messages of the topic are sent as datagrams if possible, by the nearest policy with a word for it;
        `otherwise` is the default."""
        policies = map(self.policy, (path, *ancestors(path)))
        return next((each.fast for each in policies if each.fast or each.reliable), otherwise)

    def paths_with_code(self, code: str) -> tuple[TopicPath, ...]:
        """All topics with this code, sorted; several must be corrected in the directory."""
        return self._codes.get(code, ())

    def queues(self) -> Iterator[TopicPath]:
        """The topics that are work queues."""
        return iter(self._queues)

    def is_node(self, path: TopicPath) -> bool:
        """Whether this is a topic, or one is below."""
        return path in self._records or path in self._children

    def has_children(self, path: TopicPath) -> bool:
        """Whether a topic is below."""
        return path in self._children

    def roots(self) -> Iterator[TopicPath]:
        """The nodes directly below the virtual root, of all namespaces."""
        return iter(self._children.get(_TOP, ()))

    def children(self, path: TopicPath) -> Iterator[TopicPath]:
        """The nodes directly below, topics or not."""
        return iter(self._children.get(path, ()))

    def descendants(self, path: TopicPath) -> Iterator[TopicPath]:
        """The topics below."""
        waiting = [path]
        while waiting:
            for node in self._children.get(waiting.pop(), ()):
                if node in self._records:
                    yield node
                if node in self._children:
                    waiting.append(node)

    def paths(self) -> Iterator[TopicPath]:
        return iter(self._records)

    def records(self) -> Iterator[TopicRecord]:
        for path, record in self._records.items():
            yield record or TopicRecord(path)

    def topic_set(self) -> TopicSetBuilder:
        """The topic set of the tree. From the first call on it changes with the tree, since its build takes seconds for
        a million topics. For the thread that changes the tree: libxml2 reads it without Python's lock."""
        if self._topic_set is None:
            self._topic_set = TopicSetBuilder()
            for path in self.paths():
                self._topic_set.add(path)
        return self._topic_set

    def select(self, pattern: Pattern) -> Iterator[TopicPath]:
        """The topics selected by a pattern, each once. Examines only branches that the pattern can reach."""
        if pattern.normal == EVERYTHING:
            yield from self.paths()
            return
        seen: set[TopicPath] = set()
        for alternative in pattern.alternatives:
            for path in self._select(alternative):
                if path not in seen:
                    seen.add(path)
                    yield path

    def __contains__(self, path: object) -> bool:
        return path in self._records

    def __len__(self) -> int:
        return len(self._records)

    def __eq__(self, other: object) -> bool:
        return self._records == other._records if isinstance(other, TopicTree) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it changes

    def _select(self, alternative: Alternative) -> Iterator[TopicPath]:
        anchor = TopicPath(alternative.anchor)
        if anchor in self._records and alternative.matches(anchor):
            yield anchor
        if alternative.rest or alternative.reach is Reach.CHILDREN:
            yield from self._walk(alternative)
        elif alternative.reach is not Reach.SELF:
            for node in self._tops(anchor) if is_virtual(anchor) else (anchor,):
                if node != anchor and node in self._records:
                    yield node
                yield from self.descendants(node)

    def _walk(self, alternative: Alternative) -> Iterator[TopicPath]:
        """Follow the steps of an alternative down the tree, into reachable branches only."""
        anchor = TopicPath(alternative.anchor)
        arrived, reach = alternative.arrived, alternative.reach
        waiting: list[tuple[Iterable[TopicPath], int, int, str]]
        if is_virtual(anchor):
            waiting = [(self._tops(anchor), 0, 1, anchor[1:-1])]
        else:
            *_, (namespace, _name) = split_path(anchor)
            waiting = [(self.children(anchor), len(anchor) + 1, 1, namespace)]
        while waiting:
            children, start, reached, parent_namespace = waiting.pop()
            is_child = reach is Reach.CHILDREN and reached & arrived
            for node in children:
                step = _step(node, start, parent_namespace)
                following = alternative.advance(reached, step, parent_namespace)
                is_end = following & arrived and reach in (Reach.SELF, Reach.SUBTREE)
                if (is_child or is_end) and node in self._records:
                    yield node
                if following & arrived and reach in (Reach.DESCENDANTS, Reach.SUBTREE):
                    yield from self.descendants(node)
                elif following and node in self._children:
                    waiting.append((self._children[node], len(node) + 1, following, step[0]))

    def _tops(self, anchor: str) -> Iterator[TopicPath]:
        """The root nodes below a virtual root."""
        return (root for root in self.roots() if not anchor or root_anchor(root) == anchor)

    def _link(self, path: TopicPath) -> None:
        child = path
        for parent in (*ancestors(path), _TOP):
            siblings = self._children.get(parent)
            if siblings is not None:
                siblings[child] = None
                return
            self._children[parent] = {child: None}
            if parent in self._records:
                return
            child = parent

    def _prune(self, path: TopicPath) -> None:
        child = path
        for parent in (*ancestors(path), _TOP):
            if self.is_node(child):
                return
            siblings = self._children[parent]
            del siblings[child]
            if siblings:
                return
            del self._children[parent]
            child = parent

    def _forget_code(self, path: TopicPath) -> None:
        record = self._records[path]
        if record is None or not record.code:
            return
        others = tuple(other for other in self._codes[record.code] if other != path)
        if others:
            self._codes[record.code] = others
        else:
            del self._codes[record.code]


def _is_plain(record: TopicRecord) -> bool:
    return not (record.code or record.message_types or record.final) and record.policy == _NO_POLICY


def _step(path: TopicPath, start: int, parent_namespace: str) -> Step:
    """The last step of a path, beginning at `start`."""
    if path[start] != "{":
        return parent_namespace, path[start:]
    namespace, _, name = path[start + 1 :].partition("}")
    return namespace, name
