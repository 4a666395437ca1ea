"""Callbacks, waits and polling for messages of certain topics.

Topics are in the notations of `topic_model.expressions.parse_friendly`. Messages without a topic, raw ones and those of
old brokers, match only expressions for all topics.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arborcast.client.received import OnMessage, ReceivedMessage
from arborcast.client.values import ClientError
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.patterns.patterns import EVERYTHING, Pattern, parse_normal
from arborcast.topic_model.topics import TopicPath

__all__ = ["Triggers"]

Namespaces = Mapping[str, str] | None

# Maximum number of topics for which the last message is noted.
_MAX_TOPICS = 10_000


@dataclass(frozen=True, eq=False)
class _Callback:
    pattern: Pattern
    callback: OnMessage


class Triggers:
    """Takes each message, as `on_message` of a listener. Shared by threads."""

    def __init__(self, on_message: OnMessage | None = None) -> None:
        """`on_message`, if any, is called with every message, before all other callbacks."""
        self._on_message = on_message
        self._changed = threading.Condition()
        self._callbacks: tuple[_Callback, ...] = ()
        self._numbers = itertools.count(1)
        # The number of the last message by topic ("" for none), the oldest first; and of the last `seen` by expression.
        self._last: dict[str, int] = {}
        self._last_seen: dict[str, int] = {}
        self._waiting: list[tuple[Pattern, list[ReceivedMessage]]] = []
        self._stopped = False

    def __call__(self, message: ReceivedMessage) -> None:
        """Call the callbacks for a message. An exception of a callback is raised; the message then does not count for
        waits and `seen`."""
        if self._on_message is not None:
            self._on_message(message)
        for each in self._callbacks:
            if _matches(each.pattern, message.topic):
                each.callback(message)
        with self._changed:
            topic = message.topic or ""
            self._last.pop(topic, None)
            self._last[topic] = next(self._numbers)
            if len(self._last) > _MAX_TOPICS:
                del self._last[next(iter(self._last))]
            for pattern, found in self._waiting:
                if _matches(pattern, message.topic):
                    found.append(message)
            self._changed.notify_all()

    def on(self, expression: str, callback: OnMessage, namespaces: Namespaces = None) -> Callable[[], None]:
        """Add a callback for messages of these topics; returns a function that removes it. Raises ExpressionError."""
        added = _Callback(_pattern(expression, namespaces), callback)
        with self._changed:
            self._callbacks += (added,)

        def remove() -> None:
            with self._changed:
                self._callbacks = tuple(each for each in self._callbacks if each is not added)

        return remove

    def wait_for(self, expression: str, timeout: float | None = None, namespaces: Namespaces = None) -> ReceivedMessage:
        """Wait for the next message of these topics.

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
        """Whether a message of these topics has arrived since the last call for them, or since the start. Raises
        ExpressionError."""
        pattern = _pattern(expression, namespaces)
        with self._changed:
            before = self._last_seen.get(pattern.normal, 0)
            self._last_seen[pattern.normal] = next(self._numbers)
            return any(number > before and _matches(pattern, TopicPath(topic)) for topic, number in self._last.items())

    def stop(self) -> None:
        """End all waits, since no more messages arrive."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def _pattern(expression: str, namespaces: Namespaces) -> Pattern:
    return parse_normal(parse_friendly(expression, namespaces).normal)


def _matches(pattern: Pattern, topic: TopicPath | None) -> bool:
    return pattern.matches(topic) if topic else pattern.normal == EVERYTHING
