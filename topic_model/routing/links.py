"""Links: simple keys, and steps below an anchor, that lead to selectors that are not simple."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from arborcast.core.errors import ExpressionError
from arborcast.topic_model.routing.groups import LinkedGroup
from arborcast.topic_model.routing.rest import LinkTarget, RestIndex
from arborcast.topic_model.routing.selectors import Selector
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree

_log = logging.getLogger(__name__)

_FEW = 16

# Changed topics, in addition to a tenth of the tree, after which all XPaths are evaluated over the whole tree.
_FEW_CHANGES = 100

# A tuple for few, since a million keys may have one each; a dictionary for many, since a hundred thousand selectors
# such as `alarms//.|devices/mine//.` share a key, and each must be added and removed in constant time.
_Targets = tuple[LinkTarget, ...] | dict[str, LinkTarget]

SelectionChanged = Callable[[str, Collection[str], Collection[str]], None]
"""Called with an XPath selector, the topics that it now selects, and those that it no longer selects."""


class LinkIndex:
    """Targets by key. Steps below an anchor are evaluated from a topic's path by `rest`."""

    def __init__(self) -> None:
        self.keyed: dict[str, _Targets] = {}
        self.rest = RestIndex()

    def at(self, key: str) -> tuple[LinkTarget, ...]:
        """The targets linked to a simple key."""
        found = self.keyed.get(key, ())
        return tuple(found.values()) if isinstance(found, dict) else found

    def link(self, selector: str, definition: Selector) -> None:
        """Link a selector to its few keys and steps, which are independent of topics."""
        target = LinkTarget(selector, definition.others)
        for key in definition.simple_keys():
            self.put(key, target)
        for alternative in definition.rest_alternatives():
            self.rest.add(target, alternative)

    def unlink(self, selector: str, definition: Selector) -> None:
        """Undo `link`."""
        for key in definition.simple_keys():
            self.take(key, selector)
        for alternative in definition.rest_alternatives():
            self.rest.remove(selector, alternative)

    def put(self, key: str, target: LinkTarget) -> None:
        """Link a target to a key."""
        found = self.keyed.get(key, ())
        if isinstance(found, dict):
            found[target.selector] = target
        elif len(found) < _FEW:
            self.keyed[key] = (*(each for each in found if each.selector != target.selector), target)
        else:
            self.keyed[key] = {each.selector: each for each in (*found, target)}

    def take(self, key: str, selector: str) -> None:
        """Undo `put`."""
        found = self.keyed[key]
        if isinstance(found, dict):
            del found[selector]
        else:
            found = self.keyed[key] = tuple(target for target in found if target.selector != selector)
        if not found:
            del self.keyed[key]


class Links(LinkIndex):
    """The links of a table. An XPath is linked to the topics that it selected from the tree."""

    def __init__(self, tree: TopicTree) -> None:
        super().__init__()
        self._tree = tree
        self._selecting: dict[str, LinkedGroup] = {}
        self._changes = 0  # of topics, since `refresh`
        self.stale = False  # whether `refresh` is needed before the next answer

    @property
    def selecting(self) -> frozenset[str]:
        return frozenset(self._selecting)

    def frozen(self) -> dict[str, tuple[LinkTarget, ...]]:
        """A copy of the keys for a snapshot."""
        return {key: self.at(key) for key in self.keyed}

    def add(self, selector: str, group: LinkedGroup) -> None:
        """Link a selector; an XPath to the topics that it selects."""
        if group.definition.xpaths:
            self._selecting[selector] = group
            self._reselect(selector, group)
        else:
            self.link(selector, group.definition)

    def remove(self, selector: str, group: LinkedGroup) -> None:
        """Undo `add`, including later selections of an XPath."""
        if self._selecting.pop(selector, None) is None:
            self.unlink(selector, group.definition)
        for key in group.linked_keys:
            self.take(key, selector)

    def topic_changed(self, path: TopicPath, changed: SelectionChanged) -> bool:
        """A topic was added, removed or changed. Returns whether answers for other topics may have changed.

        An XPath that depends on a topic's own path only is evaluated for this topic, and `changed` is called with a new
        answer; all others are evaluated before the next answer, and after many changes (a replay of the log) this one
        too.
        """
        self._changes += 1 if self._selecting else 0
        if self._many_changes:
            self.stale = True
            return True
        for selector, group in self._selecting.items():
            if not group.definition.path_only:
                self.stale = True
                continue
            selected = path in self._tree and group.definition.matches(path)
            if selected != (path in group.linked_keys):
                if selected:
                    group.linked_keys.add(path)
                    self.put(path, LinkTarget(selector))
                    changed(selector, (path,), ())
                else:
                    group.linked_keys.remove(path)
                    self.take(path, selector)
                    changed(selector, (), (path,))
        return self.stale

    def refresh(self, changed: SelectionChanged) -> None:
        """Evaluate the XPath selectors after a change of topics; `changed` is called for each changed selection."""
        many, self._changes, self.stale = self._many_changes, 0, False
        for selector, group in self._selecting.items():
            if group.definition.path_only and not many:
                continue
            before = group.linked_keys
            self._reselect(selector, group)
            if group.linked_keys != before:
                changed(selector, group.linked_keys - before, before - group.linked_keys)

    @property
    def _many_changes(self) -> bool:
        return self._changes > _FEW_CHANGES + len(self._tree) // 10

    def selection(self, selector: str) -> tuple[TopicPath, ...] | None:
        """The topics selected by an XPath selector; None for other selectors."""
        group = self._selecting.get(selector)
        return None if group is None else tuple(sorted(TopicPath(key) for key in group.linked_keys))

    def _reselect(self, selector: str, group: LinkedGroup) -> None:
        try:
            selected: frozenset[str] = group.definition.select(self._tree)
        except ExpressionError as error:
            _log.warning("an XPath topic expression selects nothing because it fails: %s", error)
            selected = frozenset()
        before = group.linked_keys
        for key in before - selected:
            self.take(key, selector)
        for key in selected - before:
            self.put(key, LinkTarget(selector))
        group.linked_keys = set(selected)
