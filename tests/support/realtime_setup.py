"""Simulated surroundings of real-time tasks: time, endpoints and Kafka's acknowledgements are decided by a
history."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

from arborcast.core.security.outbound import AddressPolicy
from arborcast.core.settings import KafkaSettings, SecretSettings
from arborcast.dispatch.delivery.envelope import SUBSCRIPTION_HEADER, Envelope
from arborcast.dispatch.delivery.transport.contract import Callback, PushRequest, PushResult
from arborcast.dispatch.hot.pump import Pump
from arborcast.dispatch.hot.sink_journal import SinkJournal
from arborcast.dispatch.matching.filters import Conditions
from arborcast.dispatch.realtime.messages import WorkerUpdate
from arborcast.dispatch.realtime.task import RealtimeJob, realtime_task
from arborcast.dispatch.settings import DispatchSettings, JobSettings, PushSettings, RetrySettings, TableSettings
from tests.support.fake_producer import FakeProducer, Sent
from tests.support.redelivery_setup import Setup, ids_of

RETRY = RetrySettings(
    jitter=0.0,
    breaker_failures=3,
    batch_wait_s=1.0,
    retransmissions=1_000,
    longest_wait_s=20.0,
    longest_probe_s=20.0,
    suspend_after_s=864_000.0,
)
PUSH = PushSettings(max_in_flight=4, max_notify_messages=3, total_timeout_s=10.0, connect_timeout_s=1.0)
SETTINGS = JobSettings(
    Path("nowhere"),
    KafkaSettings(),
    DispatchSettings(),
    PUSH,
    TableSettings(),
    AddressPolicy(),
    RETRY,
    SecretSettings(),
)


class History(Protocol):
    """The decisions of a test."""

    setup: Setup
    accepted: dict[int, list[bytes]]
    parked: list[tuple[bytes, bytes, int]]

    def monotonic(self) -> float: ...

    def written(self, record: Sent) -> int:
        """A record of a worker is stored in its log; returns its offset."""

    def seen(self, request: PushRequest) -> None:
        """A push begins."""


class Wire:
    """A worker's transport. Pushes are answered when the history decides."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._in_flight: deque[tuple[PushRequest, Callback]] = deque()
        self._began: dict[Callback, float] = {}

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def submit(self, request: PushRequest, callback: Callback) -> None:
        self._in_flight.append((request, callback))
        self._began[callback] = self._history.monotonic()
        self._history.seen(request)

    def answer(self, which: int) -> None:
        """Answer the next push that has an answer."""
        if not self._in_flight:
            return
        request, callback = self._in_flight[which % len(self._in_flight)]
        del self._in_flight[which % len(self._in_flight)]
        del self._began[callback]
        callback(self._history.setup.endpoints[request.url].answer(ids_of(request)))

    def time_out(self) -> None:
        """Fail pushes that began too long ago."""
        late = self._history.monotonic() - PUSH.total_timeout_s
        for pushed in [each for each in self._in_flight if self._began[each[1]] <= late]:
            self._in_flight.remove(pushed)
            del self._began[pushed[1]]
            pushed[1](PushResult(0, "timeout", "no answer", duration_s=PUSH.total_timeout_s))

    def pushes(self, name: str) -> list[str]:
        """The pushes in flight to a subscription."""
        mine = [each for each, _ in self._in_flight if dict(each.headers)[SUBSCRIPTION_HEADER] == name]
        return [notification for each in mine for notification in ids_of(each)]

    def lose(self) -> None:
        """Drop the pushes in flight without results."""
        self._in_flight.clear()
        self._began.clear()

    def drive(self, timeout_s: float) -> None:
        while timeout_s and self._in_flight:
            self.answer(0)

    def wake(self) -> None:
        pass


class Log(deque[tuple[bytes, int, int]]):
    """Rows of one partition."""

    over = False
    error = None
    last_offset = -1

    def first(self) -> tuple[bytes, int, int] | None:
        return self[0] if self else None

    def drop_first(self, deliveries: int = 0) -> None:
        self.popleft()


class Running:
    """A task, its worker and its input."""

    def __init__(self, history: History, job: RealtimeJob, partition: int, begin: int) -> None:
        self.producers: list[FakeProducer] = []

        def connect(_: KafkaSettings) -> Any:
            self.producers.append(FakeProducer(written=history.written))
            return self.producers[-1]

        self.wire = Wire(history)
        limits = PUSH.max_in_flight, RETRY.batch_wait_s
        self.pump = Pump(cast(Any, self.wire), Envelope, *limits, clock=history.monotonic)
        worker = SimpleNamespace(
            journal=SinkJournal(KafkaSettings(), 10.0, connect, history.monotonic),
            transport=self.wire,
            conditions=Conditions(),
            pump=self.pump,
            gauge=SimpleNamespace(of_task=lambda number: lambda in_flight: None),
        )
        self.messages: deque[WorkerUpdate] = deque()
        feeding = SimpleNamespace(messages=self.messages, parked={0: len(history.parked)}, error=None)
        logs = cast(Any, feeding), cast(Any, history)
        self.task = realtime_task(job, cast(Any, worker), partition, *logs, lambda: 0)
        cast(Any, self.task._link)._view._view = history
        self.task.intake.outcomes._now = lambda: history.setup.now_ms / 1000
        self.rows = Log()
        for offset, value in enumerate(history.accepted[partition][begin:], begin):
            self.rows.append((value, partition, offset))

        self.alive = True
        self.reads_feed = True

    def awaited(self, name: str) -> list[str]:
        """The notifications in flight to a subscription that its lane waits for."""
        mine = [each for each in self.pump._awaited.values() if each.subscription.id == name]
        return [received.notification.id for each in mine for received in each.taken]

    def step(self) -> None:
        if self.alive:
            self.task.step(cast(Any, self.rows))

    def end(self) -> None:
        self.alive = False
        self.wire.lose()
        for producer in self.producers:
            producer.abort()
