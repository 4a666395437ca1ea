"""Callbacks, waits and polling for messages of certain topics.

Topics are in the notations of `topic_model.expressions.parse_friendly`. Messages without a topic, raw ones and those of
old brokers, match only expressions for all topics.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from arborcast.client.calls import Namespaces
from arborcast.client.received import OnMessage, ReceivedMessage
from arborcast.client.values import ClientError
from arborcast.core.recent import BoundedDict
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.patterns.patterns import EVERYTHING, Pattern, parse_normal
from arborcast.topic_model.topics import TopicPath

# Maximum number of topics for which the last message is noted.
_MAX_TOPICS = 10_000


class Triggers:
    """Takes each message. Shared by threads."""

    def __init__(self, on_message: OnMessage | None = None) -> None:
        """`on_message`, if any, is called with every message, before all other callbacks."""
        self._on_message = on_message
        self._changed = threading.Condition()
        self._callbacks: tuple[tuple[Pattern, OnMessage], ...] = ()
        self._numbers = itertools.count(1)
        # The number of the last message by topic ("" for none), and of the last `seen` by expression.
        self._last: BoundedDict[str, int] = BoundedDict(_MAX_TOPICS)
        self._last_seen: dict[str, int] = {}
        self._waiting: list[tuple[Pattern, list[ReceivedMessage]]] = []
        self._stopped = False

    def _trigger(self, message: ReceivedMessage) -> None:
        """Call the callbacks for a message. An exception of a callback is raised; the message then does not count for
        waits and `seen`."""
        if self._on_message is not None:
            self._on_message(message)
        for pattern, callback in self._callbacks:
            if _matches(pattern, message.topic):
                callback(message)
        with self._changed:
            self._last[message.topic or ""] = next(self._numbers)
            for pattern, found in self._waiting:
                if _matches(pattern, message.topic):
                    found.append(message)
            self._changed.notify_all()

    def on(self, expression: str, callback: OnMessage, namespaces: Namespaces = None) -> Callable[[], None]:
        """Add a callback for messages of these topics, called after `on_message`. Returns a function that removes it.

        Topics are written as for `subscribe`, which must be called too. Raises ExpressionError.
        """
        added = _pattern(expression, namespaces), callback
        with self._changed:
            self._callbacks += (added,)

        def remove() -> None:
            with self._changed:
                self._callbacks = tuple(each for each in self._callbacks if each is not added)

        return remove

    def wait_for(self, expression: str, timeout: float | None = None, namespaces: Namespaces = None) -> ReceivedMessage:
        """Wait for the next message of these topics; returns it after its callbacks.

        Raises TimeoutError after `timeout` seconds, ClientError if the listener is stopped, ExpressionError.
        """
        found: list[ReceivedMessage] = []
        waiting = (_pattern(expression, namespaces), found)
        with self._changed:
            self._waiting.append(waiting)
            try:
                if not self._changed.wait_for(lambda: found or self._stopped, timeout):
                    raise TimeoutError(f"no message arrived on {expression} within {timeout:g} s")
            finally:
                self._waiting = [each for each in self._waiting if each is not waiting]
        if not found:
            raise ClientError(f"the listener was stopped before a message arrived on {expression}")
        return found[0]

    def seen(self, expression: str, namespaces: Namespaces = None) -> bool:
        """Whether a message of these topics has arrived since the last call for them, or since the start.

        For polling. Only the 10,000 topics with the latest messages are considered. Raises ExpressionError.
        """
        pattern = _pattern(expression, namespaces)
        with self._changed:
            before = self._last_seen.get(pattern.normal, 0)
            self._last_seen[pattern.normal] = next(self._numbers)
            return any(number > before and _matches(pattern, TopicPath(topic)) for topic, number in self._last.items())

    def _end_waits(self) -> None:
        """End all waits, since no more messages arrive."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def _pattern(expression: str, namespaces: Namespaces) -> Pattern:
    return parse_normal(parse_friendly(expression, namespaces).normal)


def _matches(pattern: Pattern, topic: TopicPath | None) -> bool:
    return pattern.matches(topic) if topic else pattern.normal == EVERYTHING
