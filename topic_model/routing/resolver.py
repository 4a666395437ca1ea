"""From a topic to its subscriptions: one look-up when the answer is known, a few when it has to be resolved.

Shared by the table and by the views of its snapshots, so that they cannot differ in what a topic matches. Subclasses
say what is stored under a key; the walk over the keys, and the remembered answers, are here.

What is remembered must be forgotten when it changes:
- a change to what one topic selects drops that topic's answer (`forget`);
- a change to anything wider drops all answers (`forget_all`), in constant time. Finding out which of a million
  answers lie below one node would cost more than resolving again those that are asked for: 2 to 5 microseconds each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from arborcast.topic_model.patterns.alternatives import Reach, is_virtual
from arborcast.topic_model.routing.members import Answer, joined, weight
from arborcast.topic_model.routing.rest import LinkTarget, RestIndex
from arborcast.topic_model.routing.selectors import CHILDREN, DESCENDANTS, SUBTREE, parent_node
from arborcast.topic_model.topics import TopicPath

_NODES_REMEMBERED = 100_000
_BURIED_AT_A_TIME = 8
_SMALL = 1_000  # a dictionary that may be freed at once: some 20 microseconds


class Resolver(ABC):
    """Remembers answers; at most twice `capacity` of them, an answer that is shared with nobody counting its length.

    One thread at a time.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Two generations: what was not asked for while a whole generation was filled is forgotten with the older one.
        self._answers: dict[str, Answer] = {}
        self._older: dict[str, Answer] = {}
        self._spent = 0
        self._inherited: dict[str, tuple[LinkTarget, ...]] = {}
        self._joined: dict[tuple[str, ...], Answer] = {}
        self._graveyard: list[dict[str, Answer]] = []

    def match(self, path: TopicPath) -> Answer:
        """The subscriptions that a notification on this topic goes to: all that match and receive.

        Whether their time has come is for the caller to ask (`Subscription.expired`). A selector of paths answers by
        the path alone, so no notification is lost to a race with the record of its topic; only XPath selectors need
        the topic to be in the tree. The order is that of the selectors, then of creation.
        """
        answer = self._answers.get(path)
        return self._resolve(path) if answer is None else answer

    def members_of(self, selector: str) -> Answer:
        """The subscriptions of a selector that receive, whatever it selects."""
        return self._active(selector)

    def selectors_at(self, path: TopicPath) -> list[str]:
        """The selectors that match a topic, sorted; some may have nobody who receives."""
        self._prepare()
        return _agreed(path, [*self._own(path), *self._passed_down(parent_node(path))])

    def is_named(self, path: TopicPath) -> bool:
        """Whether a subscription that receives names this very topic, and does not just reach it by a wildcard.

        Of a topic that is not in the tree: this and the next look at no XPath, which selects from the tree only. So
        asking costs the same whatever has changed there.
        """
        return any(map(self._active, _agreed(path, self._targets(path))))

    def is_reached(self, path: TopicPath) -> bool:
        """Whether a notification on this topic goes to anybody."""
        return any(map(self._active, _agreed(path, [*self._own(path), *self._passed_down(parent_node(path))])))

    def forget(self, path: str) -> None:
        """What is stored for exactly this topic has changed."""
        self._answers.pop(path, None)
        self._older.pop(path, None)

    def forget_all(self) -> None:
        """Something wider than one topic has changed. Constant time."""
        self._bury(self._older)
        self._bury(self._answers)
        self._older, self._answers = {}, {}
        self._inherited, self._joined = {}, {}
        self._spent = 0

    @property
    def remembered(self) -> int:
        """How many answers are remembered."""
        return len(self._answers) + len(self._older)

    def _prepare(self) -> None:
        """Called before a topic is resolved: bring up to date what was left for later."""
        return

    @abstractmethod
    def _targets(self, key: str) -> Iterable[LinkTarget]:
        """The selectors stored under a simple key."""

    @abstractmethod
    def _active(self, selector: str) -> Answer:
        """The subscriptions of a selector that receive."""

    @abstractmethod
    def _rest_indexes(self, node: TopicPath) -> Iterable[RestIndex]:
        """Where to look for patterns with steps."""

    def _resolve(self, path: TopicPath) -> Answer:
        if self._graveyard:
            self._dig()
        answer = self._older.pop(path, None)
        if answer is None:
            answer = self._answer(path)
        if self._spent >= self._capacity:
            self._bury(self._older)
            self._older, self._answers = self._answers, {}
            self._inherited, self._joined = {}, {}
            self._spent = 0
        if len(answer) == 1 and answer[0].topics and answer[0].topics[0].normal == path:
            # The subscription has this text already: a hundred bytes less for each of a million topics.
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
        # Without anything of its own a topic has the answer of its siblings: thousands of topics below a wide
        # subscription share one tuple.
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
        """What is stored at the topic itself."""
        found = [*self._targets(path), *self._targets(path + SUBTREE)]
        for index in self._rest_indexes(path):
            found.extend(target for target, reach in index.at(path) if reach in (Reach.SELF, Reach.SUBTREE))
        return found

    def _passed_down(self, node: str) -> list[LinkTarget]:
        """What a node has for the topics right below it."""
        found = list(self._passed_on(node))
        if is_virtual(node):
            # A root topic is a child of two virtual roots.
            found += (*self._targets(node + "*"), *self._targets("*"))
        else:
            found += self._targets(node + CHILDREN)
            path = TopicPath(node)
            for index in self._rest_indexes(path):
                found.extend(target for target, reach in index.at(path) if reach is Reach.CHILDREN)
        return found

    def _passed_on(self, node: str) -> tuple[LinkTarget, ...]:
        """What a node has for all topics below it, from the nodes above too."""
        unknown: list[str] = []
        found = self._inherited.get(node)
        while found is None:
            unknown.append(node)
            found = self._inherited.get(node := _above(node)) if node else ()  # above the universal root is nothing
        if len(self._inherited) >= _NODES_REMEMBERED:
            self._inherited.clear()
        for node in reversed(unknown):
            here = self._wide_targets(node)
            # Nodes with nothing of their own share what is above them.
            found = (*found, *here) if here else found
            self._inherited[node] = found
        return found

    def _wide_targets(self, node: str) -> list[LinkTarget]:
        found = list(self._targets(node + SUBTREE))
        if not is_virtual(node):
            found += self._targets(node + DESCENDANTS)
            path = TopicPath(node)
            for index in self._rest_indexes(path):
                found.extend(target for target, reach in index.at(path) if reach in (Reach.SUBTREE, Reach.DESCENDANTS))
        return found

    def _bury(self, answers: dict[str, Answer]) -> None:
        # Freeing a million entries at once would make the change of a subscription 100 ms slower.
        if len(answers) > _SMALL:
            self._graveyard.append(answers)

    def _dig(self) -> None:
        answers = self._graveyard[-1]
        for _ in range(min(_BURIED_AT_A_TIME, len(answers))):
            answers.popitem()
        if not answers:
            self._graveyard.pop()


def _above(node: str) -> str:
    """The node above; above a virtual root that is the universal one."""
    return "" if is_virtual(node) else parent_node(TopicPath(node))


def _agreed(path: TopicPath, targets: Iterable[LinkTarget]) -> list[str]:
    return sorted(
        {
            target.selector
            for target in targets
            if not target.others or all(pattern.matches(path) for pattern in target.others)
        }
    )
