"""What is done when a message of certain topics comes: somebody is called, somebody waits, somebody asks now and then.

Topics are as people write them (`topic_model.expressions.parse_friendly`). Messages without a topic, raw ones and those
of old brokers, are only of interest to who wants every topic.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arborcast.client.received import OnMessage, ReceivedMessage
from arborcast.client.values import ClientError
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.patterns.patterns import EVERYTHING, Pattern, parse_normal
from arborcast.topic_model.topics import TopicPath

__all__ = ["Triggers"]

Namespaces = Mapping[str, str] | None

# It is remembered of so many topics when something came last.
_MOST_TOPICS = 10_000


@dataclass(frozen=True, eq=False)
class _Called:
    pattern: Pattern
    callback: OnMessage


class Triggers:
    """Takes each message, as `on_message` of a listener. Shared by threads."""

    def __init__(self, on_message: OnMessage | None = None) -> None:
        """`on_message`, if there is one, is called with every message, before all others."""
        self._on_message = on_message
        self._changed = threading.Condition()
        self._called: tuple[_Called, ...] = ()
        self._numbers = itertools.count(1)
        # By topic, "" for none, which message was its last; what came longest ago is first.
        self._last: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        self._waiting: list[tuple[Pattern, list[ReceivedMessage]]] = []
        self._stopped = False

    def __call__(self, message: ReceivedMessage) -> None:
        """Call those who want it. What one of them raises goes on to the caller; then it counts for nobody as seen."""
        if self._on_message is not None:
            self._on_message(message)
        for each in self._called:
            if _wants(each.pattern, message.topic):
                each.callback(message)
        with self._changed:
            topic = message.topic or ""
            self._last.pop(topic, None)
            self._last[topic] = next(self._numbers)
            if len(self._last) > _MOST_TOPICS:
                del self._last[next(iter(self._last))]
            for pattern, found in self._waiting:
                if _wants(pattern, message.topic):
                    found.append(message)
            self._changed.notify_all()

    def on(self, expression: str, callback: OnMessage, namespaces: Namespaces = None) -> Callable[[], None]:
        """Call this with each message of these topics from now on; what it returns ends that.

        Raises ExpressionError.
        """
        called = _Called(_pattern(expression, namespaces), callback)
        with self._changed:
            self._called += (called,)

        def end() -> None:
            with self._changed:
                self._called = tuple(each for each in self._called if each is not called)

        return end

    def wait_for(self, expression: str, timeout: float | None = None, namespaces: Namespaces = None) -> ReceivedMessage:
        """The next message of these topics that comes from now on.

        Raises TimeoutError when none comes within so many seconds, ClientError when the listener is stopped,
        ExpressionError.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        found: list[ReceivedMessage] = []
        waiting = (_pattern(expression, namespaces), found)
        with self._changed:
            self._waiting.append(waiting)
            try:
                while not (found or self._stopped):
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError(f"no message arrived on {expression} within {timeout:g} s")
                    self._changed.wait(left)
            finally:
                self._waiting = [each for each in self._waiting if each is not waiting]
        if not found:
            raise ClientError(f"the listener was stopped before a message arrived on {expression}")
        return found[0]

    def seen(self, expression: str, namespaces: Namespaces = None) -> bool:
        """Whether something has come on these topics since this was last asked of the same ones; at first, since the
        beginning. Raises ExpressionError."""
        pattern = _pattern(expression, namespaces)
        with self._changed:
            before = self._asked.get(pattern.normal, 0)
            self._asked[pattern.normal] = next(self._numbers)
            return any(number > before and _wants(pattern, TopicPath(topic)) for topic, number in self._last.items())

    def stop(self) -> None:
        """Nothing comes any more: let go of those who wait."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def _pattern(expression: str, namespaces: Namespaces) -> Pattern:
    return parse_normal(parse_friendly(expression, namespaces).normal)


def _wants(pattern: Pattern, topic: TopicPath | None) -> bool:
    return pattern.matches(topic) if topic else pattern.normal == EVERYTHING
