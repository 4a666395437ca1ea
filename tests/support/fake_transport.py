"""A transport for unit tests: pushes are answered on request, or at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from arborcast.dispatch.delivery.transport.contract import Callback, PushRequest, PushResult


@dataclass
class Pending:
    """A submitted push without an answer."""

    request: PushRequest
    callback: Callback


class FakeTransport:
    """Keeps every request in `sent`. Each `drive` answers the oldest push in flight by `answer`."""

    def __init__(self, answer: Callable[[PushRequest], PushResult] = lambda _: PushResult(202)) -> None:
        self._answer = answer
        self.sent: list[PushRequest] = []
        self.pending: deque[Pending] = deque()
        self.most_in_flight = 0

    @property
    def in_flight(self) -> int:
        return len(self.pending)

    def submit(self, request: PushRequest, callback: Callback) -> None:
        self.sent.append(request)
        self.pending.append(Pending(request, callback))
        self.most_in_flight = max(self.most_in_flight, len(self.pending))

    def drive(self, timeout_s: float) -> None:
        if self.pending:
            oldest = self.pending.popleft()
            oldest.callback(self._answer(oldest.request))

    def wake(self) -> None: ...

    def close(self) -> None: ...
