"""The servers of a queue, the one idle longest first; its figures. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath


class QueueFigures(NamedTuple):
    """A snapshot of a queue: the waiting and executing requests, the acceptance of the oldest waiting one (0 without
    any); the idle and sick servers, and the busy ones with the start of their work. Milliseconds since the epoch."""

    queue: TopicPath
    waiting: int
    executing: int
    oldest_ms: int
    idle: int
    sick: int
    busy: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class QueueServer:
    """A subscription that serves a queue, and the start of each of its current requests."""

    subscription: Subscription
    running: list[int] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.subscription.id

    @property
    def endpoint(self) -> str:
        return self.subscription.consumer.address

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.subscription.queue


class QueueServers(dict[str, QueueServer]):
    """The servers by id, in the order of their turns: a server goes to the end with each request and each end of a
    request."""

    def __init__(self) -> None:
        super().__init__()
        # Ended, with requests in flight.
        self._leaving: dict[str, QueueServer] = {}

    def replace(self, subscriptions: Iterable[Subscription]) -> list[QueueServer]:
        """Replace the servers; returns those that have left."""
        now = {each.id: each for each in subscriptions}
        left = [server for name, server in self.items() if name not in now]
        for server in left:
            del self[server.id]
            if server.running:
                self._leaving[server.id] = server
        for name, subscription in now.items():
            server = self.get(name) or self._leaving.pop(name, None) or QueueServer(subscription)
            server.subscription = subscription
            self[name] = server
        return left

    def with_room(self) -> list[QueueServer]:
        """The servers that may get another request, in order."""
        return [server for server in self.values() if server.has_room]

    def begin(self, server: str, now_ms: int) -> None:
        self[server].running.append(now_ms)
        self._to_the_end(server)

    def end(self, server: str, begun_ms: int) -> None:
        """A request of a server that began at `begun_ms` has ended."""
        leaving = self._leaving.get(server)
        if leaving is None:
            self[server].running.remove(begun_ms)
            self._to_the_end(server)
        else:
            leaving.running.remove(begun_ms)
            if not leaving.running:
                del self._leaving[server]

    def _to_the_end(self, server: str) -> None:
        self[server] = self.pop(server)
