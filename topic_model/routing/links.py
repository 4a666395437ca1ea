"""Links: the simple keys under which selectors that are not simple are found, kept in step with the tree."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from topic_model.errors import ExpressionError
from topic_model.patterns import Alternative, Reach, is_virtual, root_anchor
from topic_model.routing.groups import Entry, LinkedGroup
from topic_model.routing.rest import RestIndex, Target, nodes_of
from topic_model.routing.selectors import Selector, node_key
from topic_model.topics import TopicPath
from topic_model.tree import TopicTree

_log = logging.getLogger(__name__)

_FEW = 16

# A tuple of few, because a million keys may have one each; a dictionary of many, because a hundred thousand selectors
# such as `alarms//.|devices/mine//.` meet in one key, and each must come and go in constant time.
_Targets = tuple[Target, ...] | dict[str, Target]
_KeyedTargets = dict[str, _Targets]


class Links:
    """Targets by key, for the selectors that need them.

    `expanded` is apart from `fixed`: what steps below an anchor come to can be found from the path alone, with the
    index; it is linked node by node so that resolving a topic needs no matching, and so that the expansion is there
    to be looked at. A view of a snapshot goes without it.
    """

    def __init__(self, tree: TopicTree, entries: Mapping[str, Entry]) -> None:
        self._tree = tree
        self._entries = entries
        self.fixed: _KeyedTargets = {}
        self.expanded: _KeyedTargets = {}
        self.rest = RestIndex()
        self._selecting: dict[str, LinkedGroup] = {}
        self.stale = False  # whether `refresh` is needed before the next answer

    def __bool__(self) -> bool:
        return bool(self.fixed or self.expanded)

    def at(self, key: str) -> tuple[Target, ...]:
        """The targets linked to a simple key."""
        return _targets_of(self.fixed.get(key, ())) + _targets_of(self.expanded.get(key, ()))

    def kept(self) -> Iterator[tuple[str, Target]]:
        """All keys with their targets."""
        for keyed in (self.fixed, self.expanded):
            for key, found in keyed.items():
                yield from ((key, target) for target in _targets_of(found))

    def frozen(self) -> dict[str, tuple[Target, ...]]:
        """A copy of what a snapshot needs."""
        return {key: _targets_of(found) for key, found in self.fixed.items()}

    def add(self, selector: str, group: LinkedGroup, definition: Selector) -> None:
        """Expand a selector over the tree as it is."""
        target = Target(selector, definition.others)
        if definition.xpaths:
            self._selecting[selector] = group
            self._reselect(selector, group, definition)
            return
        for key in definition.simple_keys():
            _put(self.fixed, key, target)
        for alternative in definition.rest_alternatives():
            self.rest.add(target, alternative)
            for node in self._nodes(alternative):
                self._expand(node, alternative.reach, target, group)

    def remove(self, selector: str, group: LinkedGroup, definition: Selector) -> None:
        """Undo `add`, and what topics have added since."""
        target = Target(selector, definition.others)
        if self._selecting.pop(selector, None) is not None:
            for key in group.linked_keys:
                _take(self.fixed, key, selector)
            return
        for key in definition.simple_keys():
            _take(self.fixed, key, selector)
        for alternative in definition.rest_alternatives():
            self.rest.remove(target, alternative)
        for key in group.linked_keys:
            _take(self.expanded, key, selector)

    def nodes_appeared(self, nodes: Iterable[TopicPath]) -> None:
        """The tree has these nodes now: link those selectors, and only those, that reach them by their steps."""
        for node in nodes:
            for target, reach in self.rest.at(node):
                group = self._entries[target.selector]
                assert isinstance(group, LinkedGroup)  # noqa: S101  # a selector with steps is never kept as a lone one
                self._expand(node, reach, target, group)

    def nodes_vanished(self, nodes: Iterable[TopicPath]) -> None:
        """The tree does not have these nodes any more."""
        for node in nodes:
            for target, reach in self.rest.at(node):
                group = self._entries[target.selector]
                assert isinstance(group, LinkedGroup)  # noqa: S101
                key = node_key(node, reach)
                if key in group.linked_keys:
                    group.linked_keys.remove(key)
                    _take(self.expanded, key, target.selector)

    def topic_changed(self, path: TopicPath, changed: Callable[[str], None]) -> bool:
        """The topic came, went, or has other facts. Returns whether answers for other topics may be others now.

        An XPath that looks at nothing but a topic's own path is asked about this one topic, and `changed` is told
        when the answer is new; all the rest are asked again before the next answer.
        """
        for selector, group in self._selecting.items():
            definition = group.definition
            if definition is None or not definition.path_only:
                self.stale = True
                continue
            selected = path in self._tree and definition.matches(path)
            if selected != (path in group.linked_keys):
                if selected:
                    group.linked_keys.add(path)
                    _put(self.fixed, path, Target(selector))
                else:
                    group.linked_keys.remove(path)
                    _take(self.fixed, path, selector)
                changed(selector)
        return self.stale

    def refresh(self, changed: Callable[[str], None]) -> None:
        """Ask the XPath selectors again after a change of topics; `changed` is told whose selection is another."""
        self.stale = False
        for selector, group in self._selecting.items():
            definition = group.definition
            if definition is None or definition.path_only:
                continue
            if self._reselect(selector, group, definition):
                changed(selector)

    def selection(self, selector: str) -> tuple[TopicPath, ...] | None:
        """The topics that an XPath selector has selected; None for a selector of another kind."""
        group = self._selecting.get(selector)
        return None if group is None else tuple(sorted(TopicPath(key) for key in group.linked_keys))

    def _reselect(self, selector: str, group: LinkedGroup, definition: Selector) -> bool:
        try:
            selected: frozenset[str] = definition.select(self._tree)
        except ExpressionError as error:
            _log.warning("an XPath topic expression selects nothing because it fails: %s", error)
            selected = frozenset()
        before = group.linked_keys
        for key in before - selected:
            _take(self.fixed, key, selector)
        for key in selected - before:
            _put(self.fixed, key, Target(selector))
        group.linked_keys = set(selected)
        return before != selected

    def _expand(self, node: TopicPath, reach: Reach, target: Target, group: LinkedGroup) -> None:
        key = node_key(node, reach)
        if key not in group.linked_keys:  # two alternatives may arrive at one node
            group.linked_keys.add(key)
            _put(self.expanded, key, target)

    def _nodes(self, alternative: Alternative) -> Iterator[TopicPath]:
        """The nodes of the tree at which an alternative's reach applies."""
        wanted = nodes_of(alternative)
        last_name = alternative.rest[-1].name or ""
        for node in self._nodes_below(alternative.anchor):
            # The name first: in a tree of a million, nearly all nodes are told apart by it.
            if node.endswith(last_name) and wanted.matches(node):
                yield node

    def _nodes_below(self, anchor: str) -> Iterator[TopicPath]:
        if not is_virtual(anchor):
            waiting = list(self._tree.children(TopicPath(anchor)))
        else:
            waiting = [root for root in self._tree.roots() if not anchor or root_anchor(root) == anchor]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(self._tree.children(node))


def _put(keyed: _KeyedTargets, key: str, target: Target) -> None:
    found = keyed.get(key, ())
    if isinstance(found, dict):
        found[target.selector] = target
    elif len(found) < _FEW:
        keyed[key] = (*found, target)
    else:
        keyed[key] = {each.selector: each for each in (*found, target)}


def _take(keyed: _KeyedTargets, key: str, selector: str) -> None:
    found = keyed[key]
    if isinstance(found, dict):
        del found[selector]
    else:
        found = keyed[key] = tuple(target for target in found if target.selector != selector)
    if not found:
        del keyed[key]


def _targets_of(found: _Targets) -> tuple[Target, ...]:
    return tuple(found.values()) if isinstance(found, dict) else found
