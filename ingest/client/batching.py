"""Which notifications travel together: a decision without clock, thread or network."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from ingest.client.values import Batching


@dataclass
class Batch:
    """Notifications for one request, with who waits for each. `due` is when the first has waited long enough."""

    due: float
    messages: list[str] = field(default_factory=list)
    futures: list[Future[None]] = field(default_factory=list)
    size: int = 0

    def parts(self) -> list[Batch]:
        """One batch for each message."""
        pairs = zip(self.messages, self.futures, strict=True)
        return [Batch(self.due, [message], [future], len(message)) for message, future in pairs]


class Gathering:
    """Gathers notifications to batches. The caller passes the time (any clock that does not go back)."""

    def __init__(self, batching: Batching) -> None:
        self._limits = batching
        self._open: Batch | None = None

    @property
    def due(self) -> float | None:
        """When `take` should be called; None when nothing waits."""
        return None if self._open is None else self._open.due

    def add(self, message: str, future: Future[None], now: float) -> list[Batch]:
        """Take in a notification; returns the batches that are full now."""
        full = []
        if self._open is not None and self._open.size + len(message) > self._limits.bytes:
            full += self.take()
        if self._open is None:
            self._open = Batch(now + self._limits.linger_s)
        self._open.messages.append(message)
        self._open.futures.append(future)
        self._open.size += len(message)
        if len(self._open.messages) >= self._limits.messages or self._open.size >= self._limits.bytes:
            full += self.take()
        return full

    def take(self) -> list[Batch]:
        """What has gathered so far."""
        batch, self._open = self._open, None
        return [] if batch is None else [batch]
