"""Receivers with several behaviours, and the transport to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from arborcast.core import fence
from arborcast.dispatch.delivery.envelope import (
    ATTEMPT_HEADER,
    CALLBACK_HEADER,
    REPLAY_HEADER,
    SUBSCRIPTION_HEADER,
)
from arborcast.dispatch.delivery.transport.contract import Callback, PushRequest, PushResult
from arborcast.topic_model.records.packages import PACKAGE_HEADER, Fragment, read_package_header
from tests.support.redelivery_setup import ids_of
from tests.world.kernel import Kernel, Process, Waiters

Behaviour = Literal[
    "well", "slow", "late", "refusing", "failing", "busy", "hanging", "cutting", "gone", "rejecting", "deferring"
]

# The shortest and longest time until the answer of each.
TAKES_S: dict[Behaviour, tuple[float, float]] = {
    "well": (0.001, 0.03),
    "slow": (0.3, 1.5),
    "late": (2.5, 9.0),
    "refusing": (0.001, 0.002),
    "failing": (0.001, 0.05),
    "busy": (0.001, 0.05),  # with Retry-After
    "hanging": (3_600.0, 3_600.0),
    "cutting": (0.01, 0.5),
    "gone": (0.001, 0.01),
    "rejecting": (0.001, 0.01),
    "deferring": (0.001, 0.05),  # with a later result
}


@dataclass(eq=False)
class Push:
    """A push and its outcome. Times are those of the simulation."""

    process: Process
    subscription: str
    ids: tuple[str, ...]
    attempt: int
    part: Fragment  # of a message in parts
    began: float
    request: PushRequest
    callback: Callback
    answered: float = 0.0  # the time of its receiver's answer; 0 without one
    accepted: bool = False  # by the receiver
    received: float = 0.0  # the time at which the process read the answer; 0 before
    timed_out: bool = False
    status: int = 0  # of the answer that the process read
    cut: bool = False  # accepted, but the connection was cut before the answer
    reported: float = 0.0  # the time at which its later result was in the log; 0 without one


@dataclass(eq=False)
class Receiver:
    """An endpoint."""

    url: str
    behaviour: Behaviour = "well"
    pushes: list[Push] = field(default_factory=list)


class Network:
    """All receivers, and the pushes to them. `began` is called with each submitted push, `answered` with each whose
    answer a process has read, `deferred` with each whose receiver has announced a later result."""

    def __init__(self, kernel: Kernel, timeout_s: float) -> None:
        self.kernel = kernel
        self.timeout_s = timeout_s
        self.receivers: dict[str, Receiver] = {}
        self.began: list[Callable[[Push], None]] = []
        self.answered: list[Callable[[Push], None]] = []
        self.deferred: list[Callable[[Push], None]] = []
        self.pushes = 0

    def receiver(self, url: str) -> Receiver:
        return self.receivers.setdefault(url, Receiver(url))

    def answer(self, push: Push) -> tuple[float, PushResult]:
        """The seconds until the answer, and the answer."""
        behaviour = self.receiver(push.request.url).behaviour
        least, most = TAKES_S[behaviour]
        takes_s = self.kernel.random.uniform(least, most)
        if behaviour == "refusing":
            return takes_s, PushResult(0, "connect", "refused", duration_s=takes_s)
        if behaviour == "failing":
            return takes_s, PushResult(503, duration_s=takes_s)
        if behaviour == "busy":
            after_s = self.kernel.random.choice((1.0, 10.0, 40.0))
            return takes_s, PushResult(429, duration_s=takes_s, retry_after_s=after_s)
        if behaviour == "gone":
            return takes_s, PushResult(410, duration_s=takes_s)
        if behaviour == "rejecting":
            return takes_s, PushResult(400, duration_s=takes_s)
        if behaviour == "deferring" and CALLBACK_HEADER in dict(push.request.headers):
            return takes_s, PushResult(202, later=True, duration_s=takes_s)
        if behaviour == "cutting":
            return takes_s, PushResult(0, "disconnected", "cut", duration_s=takes_s)
        return takes_s, PushResult(202, duration_s=takes_s)


class SimulatedTransport:
    """The transport of one process."""

    def __init__(self, network: Network) -> None:
        self._network, self._kernel = network, network.kernel
        process = self._kernel.running
        assert process is not None
        self._process = process
        self._in_flight: dict[Push, None] = {}
        self._finished: deque[tuple[Push, PushResult]] = deque()
        self._waiters = Waiters(self._kernel)
        self._woken = False
        self._closed = False

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def submit(self, request: PushRequest, callback: Callback) -> None:
        fence.wait()
        self._kernel.check_alive()
        if self._kernel.current is not None:
            self._process.step()
        headers = dict(request.headers)
        name = headers.get(SUBSCRIPTION_HEADER, "")
        ids = ids_of(request) if name else ()
        if REPLAY_HEADER in headers:
            replays = headers[REPLAY_HEADER].split(",")
            ids = tuple(each if again == "-" else f"{each}~{again}" for each, again in zip(ids, replays, strict=True))
        attempt = int(headers.get(ATTEMPT_HEADER, "0"))
        part, _ = read_package_header(headers.get(PACKAGE_HEADER, "")) or (Fragment(), "")
        if part.part:
            ids = (ids[0].removesuffix(f".{part.number}"),)
        push = Push(self._process, name, ids, attempt, part, self._kernel.now, request, callback)
        self._in_flight[push] = None
        self._network.pushes += 1
        receiver = self._network.receiver(request.url)
        receiver.pushes.append(push)
        for call in self._network.began:
            call(push)
        takes_s, result = self._network.answer(push)
        timeout_s = self._network.timeout_s
        if takes_s < 3_000.0:
            self._kernel.call(takes_s, lambda: self._arrive(push, result))
        if takes_s >= timeout_s:
            late = PushResult(0, "timeout", "no answer", duration_s=timeout_s)
            self._kernel.call(timeout_s, lambda: self._time_out(push, late))

    def _arrive(self, push: Push, result: PushResult) -> None:
        """The receiver has answered, whether or not the process still runs."""
        push.answered = self._kernel.now
        push.cut = result.failure == "disconnected"
        push.accepted = push.cut or (200 <= result.status < 300 and not result.later)
        for call in self._network.deferred if result.later else ():
            call(push)
        if not self._process.alive or self._closed or push not in self._in_flight or push.timed_out:
            return
        self._finished.append((push, result))
        self._waiters.notify()

    def _time_out(self, push: Push, result: PushResult) -> None:
        if push in self._in_flight and not push.answered:
            push.timed_out = True
            self._finished.append((push, result))
            self._waiters.notify()

    def drive(self, timeout_s: float) -> None:
        self._kernel.check_alive()
        if not self._finished and not self._woken:
            self._waiters.wait(timeout_s, stretches=True)
        self._woken = False
        while self._finished and not self._closed:
            push, result = self._finished.popleft()
            self._in_flight.pop(push, None)
            push.received, push.status = self._kernel.now, result.status
            for call in self._network.answered:
                call(push)
            push.callback(result)

    def wake(self) -> None:
        self._woken = True
        self._waiters.notify()

    def close(self) -> None:
        self._closed = True
        self._in_flight.clear()
        self._finished.clear()
