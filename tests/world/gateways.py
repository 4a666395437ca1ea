"""Gateways: their operations on an event loop in simulated time, with production code for stamps and appends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, TypeVar, TypeVarTuple, cast

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.topics import PULL_LOG
from arborcast.core.settings import KafkaSettings, SecretSettings
from arborcast.ingest.elements.publication import Publication
from arborcast.ingest.operations.current_message import RetainedMessages, StateStart, send_current_messages
from arborcast.ingest.operations.publishing import Checked, store
from arborcast.ingest.operations.push_results import results_for
from arborcast.ingest.settings import GatewaySettings
from arborcast.ingest.state.changes import ControlChanges
from arborcast.ingest.state.log_view import ControlLogView
from arborcast.ingest.state.notification_log import NotificationLog
from arborcast.ingest.state.pull_queues import MessageClaim, PullLog, PullQueues, PullView
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.projections.pull_store import PullLimits
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord, TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.errors import ResultRefused
from tests.world.brokers import Broker
from tests.world.kernel import Exit, Host, Kernel, Process, Waiters

_PULL_LIMITS = PullLimits(messages=100_000, bytes=1 << 40, resident_bytes=1_000)

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class _Selector:
    """A selector without sockets: a loop waits for its timers and for other threads."""

    def __init__(self, kernel: Kernel) -> None:
        self.waiters = Waiters(kernel)
        self.woken = False

    def select(self, timeout: float | None) -> list[Any]:
        if not self.woken and (timeout is None or timeout > 0):
            self.waiters.wait(timeout)
        self.woken = False
        return []


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop of a simulated process."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._kernel = kernel
        self._selector = _Selector(kernel)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._kernel.now

    def __del__(self) -> None:
        """The loop stays open, so that its collected tasks end without an error."""

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        self._selector.woken = True
        self._selector.waiters.notify()

    def run_in_executor(self, executor: Executor | None, func: Callable[[*_Ts], _T], *args: *_Ts) -> asyncio.Future[_T]:
        future: asyncio.Future[_T] = self.create_future()
        process = self._kernel.running
        assert process is not None

        def set_outcome(outcome: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(outcome)

        def run() -> None:
            try:
                outcome = func(*args)
            except Exit:
                raise
            except Exception as error:
                self.call_soon_threadsafe(set_outcome, None, error)
            else:
                self.call_soon_threadsafe(set_outcome, outcome, None)

        self._kernel.spawn(process, run, "executor")
        return future


class _Retained(RetainedMessages):
    """With one thread: an executor of the simulation has several."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(kafka)
        self._turns = asyncio.Lock()

    async def _run(self, work: Callable[[], _T]) -> _T:
        async with self._turns:
            return await super()._run(work)


class _PullLog(PullLog):
    def __init__(self, broker: Broker, view: PullView) -> None:
        super().__init__(broker.kafka, view)
        self._broker = broker

    def _delete_before(self, offset: int) -> None:
        self._broker.kernel.count("beginnings of the pull log deleted")
        self._broker.delete_before(PULL_LOG, offset)


async def _nothing() -> None:
    """Nothing to read."""


class GatewayProcess:
    """One gateway process."""

    def __init__(self, kernel: Kernel, broker: Broker, name: str, host: Host, key_file: str) -> None:
        self._kernel, self._broker, self._kafka, self._key_file = kernel, broker, broker.kafka, key_file
        self.process: Process = kernel.process(name, host)
        self.loop: SimulatedLoop | None = None
        self.control = ControlView()
        self.ready = False
        kernel.spawn(self.process, self._main, "event loop")

    def _main(self) -> None:
        self.loop = SimulatedLoop(self._kernel)
        self.loop.create_task(self._start())
        self.loop.run_forever()

    async def _start(self) -> None:
        kafka = self._kafka
        self.view = ControlLogView(kafka, self.control, self._failed)
        self.changes = ControlChanges(kafka, ControlLog(kafka), self.view)
        self.log = NotificationLog(kafka, GatewaySettings())
        self.view.start()
        self.log.start()
        self.results = results_for(kafka, SecretSettings(self._key_file))
        await self.view.until_caught_up()
        await self._open_pull_points()
        self._gateway: Any = SimpleNamespace(
            topics=SimpleNamespace(check_types=False),
            repeats=SimpleNamespace(enabled=False),
            table=self.control.table,
            changes=self.changes,
            notifications=self.log,
            fragments=SimpleNamespace(bytes=0),
            federation=None,
            tracing=None,
            now=lambda: datetime.fromtimestamp(self._kernel.wall_s(self.process.host), UTC),
            retained=_Retained(kafka),
            retains=self._retains,
            admit=self._admit,
        )
        while self.log.obstacle:
            await asyncio.sleep(0.01)
        self.ready = True

    async def _open_pull_points(self) -> None:
        view = PullView(self._kafka, _PULL_LIMITS, self._failed, lambda point: self.pulls.arrived(point))
        log, limits = _PullLog(self._broker, view), GatewaySettings()
        self.pulls = PullQueues(
            view.store,
            log,
            lambda _: True,
            claim_s=limits.pull_claim_s,
            max_bytes=limits.max_body_bytes,
            max_nodes=limits.max_elements,
        )
        view.start()
        await view.until_caught_up()
        asyncio.get_running_loop().create_task(self._sweep(log))

    async def _sweep(self, log: PullLog) -> None:
        """`PullQueues.sweep_forever`, with longer intervals while nothing happens."""
        loop, second = asyncio.get_running_loop(), asyncio.Event()

        def tick() -> None:
            while True:
                self._kernel.sleep(1.0, stretches=True)
                loop.call_soon_threadsafe(second.set)

        self._kernel.spawn(self.process, tick, "seconds")
        for number in itertools.count(1):
            await second.wait()
            second.clear()
            self.pulls._deadlines.restart_if_late()
            await self.pulls.sweep(_nothing)
            if number % 60 == 0:
                await log.cut()

    def _failed(self, error: Exception) -> None:
        raise AssertionError(f"{self.process.name} cannot follow a log: {error}")

    def _retains(self, topic: TopicPath) -> bool:
        return bool(self.control.table.topics.policy(topic).retain)

    async def _admit(self, new: dict[Any, str]) -> None:
        await self.changes.commit([TopicRecord(path) for path in new])

    def call(self, operation: Callable[[], Awaitable[Any]], done: Callable[[Any], None]) -> None:
        """Begin an operation; `done` is called with its result, or with the InfrastructureError."""
        if not (self.ready and self.process.alive and self.loop is not None):
            done(InfrastructureError("the gateway does not answer"))
            return
        loop = self.loop

        async def run() -> None:
            try:
                result = await operation()
            except (InfrastructureError, ResultRefused) as error:
                result = error
            done(result)

        with self._kernel.as_process(self.process):
            loop.call_soon_threadsafe(lambda: loop.create_task(run()))

    def accept(self, notification: Notification, said: Publication, done: Callable[[Any], None]) -> None:
        checked = Checked([notification], {notification.id: said}, "", None)
        self.call(lambda: store(cast(Any, self._gateway), checked), done)

    def subscribe_with_current(self, made: Subscription, done: Callable[[Any], None]) -> None:
        """Subscribe with the policy CurrentMessage."""

        async def subscribe() -> None:
            offset = await self.changes.commit([SubscriptionRecord(made)])
            await send_current_messages(cast(Any, self._gateway), made, StateStart(offset, made.created_ms, new=True))

        self.call(subscribe, done)

    def pull(
        self,
        point: str,
        maximum: int,
        wait_s: float,
        sends_s: float,
        sent: Callable[[MessageClaim], bool],
        done: Callable[[Any], None],
    ) -> None:
        """GetMessages: `sent` is called after the answer was sent for this time; it returns whether the client has
        received it."""

        async def pull() -> None:
            claim = await self.pulls.take(point, maximum, wait_s)
            if claim.messages:
                await asyncio.sleep(sends_s)
                claim.finish(sent(claim))

        self.call(pull, done)

    def report(self, path: str, state: str, done: Callable[[Any], None]) -> None:
        """Report the later result of a push."""
        self.call(lambda: self.results.take(path, b'{"state": "%s"}' % state.encode()), done)

    def commit(self, records: Sequence[ControlRecord], done: Callable[[Any], None]) -> None:
        self.call(lambda: self.changes.commit(records), done)
