"""From a topic to its subscriptions: one look-up for a cached answer, a few to resolve it.

Shared by the table and the views of its snapshots, so that they match equally. Subclasses return the entries under a
key; the walk over the keys and the cache of answers are here.

Changes invalidate the cache:

- a change of the entry of one topic drops that topic's answer (`forget`);
- a change of a wider entry drops all answers (`forget_all`), in constant time. Finding the affected ones among a
  million answers would cost more than resolving the requested ones again: 2 to 5 microseconds each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from arborcast.topic_model.patterns.alternatives import Reach, is_virtual
from arborcast.topic_model.routing.members import Answer, joined, weight
from arborcast.topic_model.routing.rest import LinkTarget, RestIndex
from arborcast.topic_model.routing.selectors import CHILDREN, DESCENDANTS, SUBTREE, parent_node
from arborcast.topic_model.topics import TopicPath

_CACHED_NODES = 100_000
_FREED_AT_A_TIME = 8
_SMALL = 1_000  # entries of a dictionary that is freed at once: some 20 microseconds


class Resolver(ABC):
    """Caches answers; at most twice `capacity` of them, an unshared answer counting its length. For one thread."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Two generations: answers unused while a generation was filled are dropped with the older one.
        self._answers: dict[str, Answer] = {}
        self._older: dict[str, Answer] = {}
        self._spent = 0
        self._inherited: dict[str, tuple[LinkTarget, ...]] = {}
        self._joined: dict[tuple[str, ...], Answer] = {}
        self._to_free: list[dict[str, Answer]] = []

    def match(self, path: TopicPath) -> Answer:
        """The active subscriptions that match this topic. The caller checks their termination (`Subscription.expired`).
        A path selector depends on the path alone, so a notification is not lost in a race with the record of its topic;
        an XPath selector requires the topic in the tree. Sorted by selector, then by creation."""
        answer = self._answers.get(path)
        return self._resolve(path) if answer is None else answer

    def members_of(self, selector: str) -> Answer:
        """The active subscriptions of a selector."""
        return self._active(selector)

    def selectors_at(self, path: TopicPath) -> list[str]:
        """The selectors that match a topic, sorted; some may have no active subscription."""
        self._prepare()
        return _agreed(path, [*self._own(path), *self._passed_down(parent_node(path))])

    def is_named(self, path: TopicPath) -> bool:
        """Whether an active subscription has exactly this topic, without a wildcard. For topics outside the tree: like
        `is_reached` it evaluates no XPath, so its cost does not depend on changes."""
        return any(map(self._active, _agreed(path, self._targets(path))))

    def is_reached(self, path: TopicPath) -> bool:
        """Whether a notification on this topic has recipients."""
        return any(map(self._active, _agreed(path, [*self._own(path), *self._passed_down(parent_node(path))])))

    def forget(self, path: str) -> None:
        """Drop the answer of a topic whose entry has changed."""
        self._answers.pop(path, None)
        self._older.pop(path, None)

    def forget_all(self) -> None:
        """Drop all answers, after a change of an entry for several topics. Constant time."""
        self._free_later(self._older)
        self._free_later(self._answers)
        self._older, self._answers = {}, {}
        self._inherited, self._joined = {}, {}
        self._spent = 0

    @property
    def remembered(self) -> int:
        """The number of cached answers."""
        return len(self._answers) + len(self._older)

    def _prepare(self) -> None:
        """Called before a topic is resolved: apply deferred updates."""
        return

    @abstractmethod
    def _targets(self, key: str) -> Iterable[LinkTarget]:
        """The selectors stored under a simple key."""

    @abstractmethod
    def _active(self, selector: str) -> Answer:
        """The active subscriptions of a selector."""

    @abstractmethod
    def _rest_indexes(self) -> Iterable[RestIndex]:
        """The indexes of patterns with steps."""

    def _resolve(self, path: TopicPath) -> Answer:
        if self._to_free:
            self._free_some()
        answer = self._older.pop(path, None)
        if answer is None:
            answer = self._answer(path)
        if self._spent >= self._capacity:
            self._free_later(self._older)
            self._older, self._answers = self._answers, {}
            self._inherited, self._joined = {}, {}
            self._spent = 0
        if len(answer) == 1 and answer[0].topics and answer[0].topics[0].normal == path:
            # The subscription's own text: a hundred bytes less for each of a million topics.
            path = TopicPath(answer[0].topics[0].normal)
        self._answers[path] = answer
        self._spent += 1
        return answer

    def _answer(self, path: TopicPath) -> Answer:
        self._prepare()
        own = self._own(path)
        targets = [*own, *self._passed_down(parent_node(path))]
        if len(targets) == 1 and not targets[0].others:
            return self._active(targets[0].selector)
        selectors = _agreed(path, targets)
        if len(selectors) == 1:
            return self._active(selectors[0])
        if not selectors:
            return ()
        # A topic without its own entries has the answer of its siblings: thousands of topics below a wide subscription
        # share one tuple.
        shared_as = None if own else tuple(selectors)
        answer = self._joined.get(shared_as) if shared_as else None
        if answer is None:
            parts = [active for selector in selectors if (active := self._active(selector))]
            answer = parts[0] if len(parts) == 1 else joined(parts)
            self._spent += weight(answer) if len(parts) > 1 else 0
            if shared_as:
                self._joined[shared_as] = answer
        return answer

    def _own(self, path: TopicPath) -> list[LinkTarget]:
        """The entries of the topic itself."""
        found = [*self._targets(path), *self._targets(path + SUBTREE)]
        for index in self._rest_indexes():
            found.extend(target for target, reach in index.at(path) if reach in (Reach.SELF, Reach.SUBTREE))
        return found

    def _passed_down(self, node: str) -> list[LinkTarget]:
        """The entries of a node for its children."""
        found = list(self._passed_on(node))
        if is_virtual(node):
            # A root topic is a child of two virtual roots.
            found += (*self._targets(node + "*"), *self._targets("*"))
        else:
            found += self._targets(node + CHILDREN)
            path = TopicPath(node)
            for index in self._rest_indexes():
                found.extend(target for target, reach in index.at(path) if reach is Reach.CHILDREN)
        return found

    def _passed_on(self, node: str) -> tuple[LinkTarget, ...]:
        """The entries of a node and its ancestors for all topics below it."""
        unknown: list[str] = []
        found = self._inherited.get(node)
        while found is None:
            unknown.append(node)
            found = self._inherited.get(node := _above(node)) if node else ()  # nothing is above the universal root
        if len(self._inherited) >= _CACHED_NODES:
            self._inherited.clear()
        for node in reversed(unknown):
            here = self._wide_targets(node)
            # Nodes without entries share those of their parent.
            found = (*found, *here) if here else found
            self._inherited[node] = found
        return found

    def _wide_targets(self, node: str) -> list[LinkTarget]:
        found = list(self._targets(node + SUBTREE))
        if not is_virtual(node):
            found += self._targets(node + DESCENDANTS)
            path = TopicPath(node)
            for index in self._rest_indexes():
                found.extend(target for target, reach in index.at(path) if reach in (Reach.SUBTREE, Reach.DESCENDANTS))
        return found

    def _free_later(self, answers: dict[str, Answer]) -> None:
        # Freeing a million entries at once would delay a change by 100 ms.
        if len(answers) > _SMALL:
            self._to_free.append(answers)

    def _free_some(self) -> None:
        answers = self._to_free[-1]
        for _ in range(min(_FREED_AT_A_TIME, len(answers))):
            answers.popitem()
        if not answers:
            self._to_free.pop()


def _above(node: str) -> str:
    """The parent node; the universal root for a virtual root."""
    return "" if is_virtual(node) else parent_node(TopicPath(node))


def _agreed(path: TopicPath, targets: Iterable[LinkTarget]) -> list[str]:
    return sorted(
        {
            target.selector
            for target in targets
            if not target.others or all(pattern.matches(path) for pattern in target.others)
        }
    )
