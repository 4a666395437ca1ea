"""A real-time task: the driver's messages, rows read ahead, the view of a notification."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec
import pyarrow as pa
import pytest

from arborcast.dispatch.hot import intake
from arborcast.dispatch.hot import task as partition_task
from arborcast.dispatch.hot.batch_outcomes import BatchOutcomes
from arborcast.dispatch.hot.hold_buffer import HoldBuffer
from arborcast.dispatch.hot.intake import Exclusions
from arborcast.dispatch.hot.task import POLL_S
from arborcast.dispatch.logs.attempts import WRITE_S
from arborcast.dispatch.realtime import worker
from arborcast.dispatch.realtime.messages import ExclusionChange, WorkerProgress, WorkerUpdate
from arborcast.dispatch.realtime.task import LogLink, RealtimeJob
from arborcast.dispatch.realtime.view_position import TaskView
from arborcast.dispatch.realtime.worker import _Rows
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.routing import Found, Overlay, ViewStep
from tests.support.fake_producer import Sent
from tests.support.make import notification, subscription
from tests.support.realtime_setup import PUSH, RETRY, SETTINGS, Running
from tests.support.redelivery_setup import Setup

HELD = ExclusionChange(held=frozenset({"s"}))
FREED = ExclusionChange(freed=frozenset({"s"}))


class Engine:
    """The parts that a task needs; the only subscription is `s`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(partition_task, "time", SimpleNamespace(monotonic=self.monotonic))
        self.setup = Setup()
        self.setup.subscribe("s")
        self.accepted: dict[int, list[bytes]] = {0: []}
        self.parked: list[tuple[bytes, bytes, int]] = []
        self.records: list[Sent] = []
        self.reports: list[WorkerProgress] = []
        self.pushed = 0
        job = RealtimeJob(settings=SETTINGS, number=1, began_s=self.monotonic())
        self.running = Running(cast(Any, self), job, 0, 0)

    def update(self, exclusions: ExclusionChange | None = None, control: int = 0, **more: Any) -> None:
        """The driver sends a message."""
        self.running.messages.append(WorkerUpdate(1, 0, 0, control, exclusions=exclusions, **more))

    def accept(self, name: str = "n", offset: int = 0) -> None:
        accepted = notification(name, "a", accepted_ms=self.setup.now_ms)
        self.running.rows.append((notifications.encode(accepted)[1], 0, offset))

    def monotonic(self) -> float:
        return self.setup.now_ms / 1000

    def written(self, record: Sent) -> int:
        self.records.append(record)
        return 0

    def seen(self, request: object) -> None:
        self.pushed += 1

    def of(self, notification: Notification) -> Found:
        return Found([self.setup.subscriptions["s"]], [])

    def is_late(self) -> bool:
        return False

    def write(self, progress: WorkerProgress) -> None:
        self.reports.append(progress)

    def settle(self, timeout_s: float) -> None: ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


@pytest.fixture
def all_fan_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message counts as one for many."""
    monkeypatch.setattr(intake, "_FAN_OUT", 0)


def test_a_lane_stays_held_during_a_snapshot(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    running = engine.running
    engine.update(HELD)
    engine.accept()
    running.step()

    engine.update(base=b"nowhere", complete=False)
    running.step()
    engine.update(msgspec.structs.replace(HELD, read={0: 0}), complete=False)
    running.step()
    assert engine.pushed == 0, "the parked deliveries were not tried"
    with monkeypatch.context() as patch:
        examined: list[float] = []

        def release(_buffer: HoldBuffer, _held: object, now: float) -> tuple[()]:
            examined.append(now)
            return ()

        patch.setattr(HoldBuffer, "release", release)
        for _ in range(9):
            running.step()
        engine.setup.now_ms += 1_000
        running.step()
    assert len(examined) == 1, "not in each step: a thousand lanes may have deferred messages"

    engine.update(FREED)
    running.step()
    assert engine.pushed == 1


def test_no_message_overtakes_deferred_ones_within_an_update(engine: Engine) -> None:
    """An update of several messages may arrive in pieces: the lane is free before the last one."""
    running = engine.running
    engine.update(HELD)
    engine.accept("first", 0)
    running.step()
    running.step()
    engine.update(FREED, complete=False)
    engine.accept("second", 1)
    running.step()
    engine.update()
    running.step()
    pushed: list[str] = []
    while running.wire.in_flight:
        pushed += running.wire.pushes("s")
        running.wire.answer(0)
        running.step()
    assert pushed == ["first", "second"]


def test_unchanged_sets_of_endpoints_are_not_compared(engine: Engine) -> None:
    class Unread(frozenset[str]):
        """Tens of thousands of endpoints, with up to forty updates a second."""

        def __sub__(self, other: object) -> Any:
            raise AssertionError("the set is iterated")

    task, endpoints = engine.running.task, Unread({"http://e/"})
    task.intake.exclusions = Exclusions(degraded=endpoints, watched=endpoints, on_trial=endpoints)
    task.exclude(task.intake.exclusions._replace(held=frozenset({"s"})))
    assert task.intake.exclusions.held == {"s"}


def test_a_task_reports_its_stop_after_all_is_settled() -> None:
    written: list[WorkerProgress] = []
    log = SimpleNamespace(write=written.append, is_late=lambda: False, settle=lambda timeout_s: None)
    outcomes = SimpleNamespace(report=PartitionReport(), take_report=PartitionReport, forget=lambda: None)
    settling = SimpleNamespace(
        stopped=True,
        left=None,
        taken=SimpleNamespace(partition=0, next=2),
        intake=SimpleNamespace(outcomes=outcomes),
        worker=SimpleNamespace(journal=SimpleNamespace(passed=lambda: True)),
        mark=lambda: 1,
    )
    view = SimpleNamespace(complete=True)
    nothing: Any = SimpleNamespace()
    link = LogLink(
        RealtimeJob(settings=SETTINGS, number=1, began_s=0.0), 0, nothing, cast(Any, log), cast(Any, view), nothing
    )
    for now in (0.0, 1.0, 2.0):
        link.report(cast(Any, settling), now)
    link.end(cast(Any, settling))
    assert [(each.position, each.stopped) for each in written[-2:]] == [(1, False), (2, True)]
    assert sum(each.stopped for each in written) == 1


def test_rows_are_written_while_a_stopped_task_waits_for_late_answers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a kill would repeat the pushes that were answered up to `retry.batch_wait_s` before."""
    running, setup = engine.running, engine.setup
    setup.subscribe("t")
    monkeypatch.setattr(engine, "of", lambda accepted: Found([setup.subscriptions[accepted.id]], []))
    engine.update()
    engine.accept("s", 0)
    running.step()
    setup.now_ms += int(RETRY.batch_wait_s * 1000) + 1
    running.step()
    assert running.pump.unanswered == 1
    engine.accept("t", 1)
    running.step()
    running.wire.answer(1)
    unwritten: list[bool] = []

    def drive(timeout_s: float) -> None:
        setup.now_ms += int(timeout_s * 1000)
        sent = [record.value for producer in running.producers for record in producer.open]
        unwritten.append(not any(b"http://t/" in each for each in sent))

    monkeypatch.setattr(running.wire, "drive", drive)
    engine.update(stop=True)
    running.step()
    assert not unwritten[-1]
    assert 0 < sum(unwritten) <= WRITE_S / POLL_S + 1


@pytest.mark.usefixtures("all_fan_out")
@pytest.mark.parametrize("stopped", [False, True])
def test_the_end_of_a_task_loses_no_message_for_many(engine: Engine, stopped: bool) -> None:
    """It joins a held lane when the other messages of the hold buffer are parked already."""
    task = engine.running.task
    engine.update(HELD)
    task._link.apply(task)
    engine.accept("n", 7)
    task._take(cast(Any, engine.running.rows))
    task.stopped = stopped

    task._settle()
    if stopped:
        assert task.mark() == 7, "a report before the end of the last pushes"

    last, parked = engine.reports[-1], [each for each in engine.records if each.topic.endswith(".parked")]
    assert (last.position, len(parked), task.intake.buffer.size) == ((7, 0, 0) if stopped else (8, 1, 0))
    assert last.clean == (not stopped)


@pytest.mark.usefixtures("all_fan_out")
def test_a_message_for_many_joins_the_lane_of_a_subscription_in_its_current_state(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "apply", lambda step: None, raising=False)
    task = engine.running.task
    engine.update()
    task._link.apply(task)
    engine.accept()
    task._take(cast(Any, engine.running.rows))
    assert task.intake.lanes.fan_outs.size == 1

    paused = msgspec.structs.replace(engine.setup.subscriptions["s"], paused=True)
    engine.update(control=1, step=ViewStep(1, Overlay("x"), now=(paused,)))
    engine.running.step()

    lanes = task.intake.lanes
    assert (engine.pushed, lanes.fan_outs.size, lanes.size) == (0, 0, 0)


def test_an_idle_task_forgets_unreachable_hosts() -> None:
    """Otherwise the next message, hours later, would be parked, and a timely one dropped."""
    outcomes = BatchOutcomes(cast(Any, SimpleNamespace(record=lambda row: None)), PUSH, RETRY)
    subscribed = subscription("s", url="http://host/s")
    outcomes._unreachable = {subscribed.consumer.address}
    outcomes._silent = {"host": {f"http://host/{number}" for number in range(4)}}
    assert outcomes.unreachable(subscribed) is not None
    idle = SimpleNamespace(taken=SimpleNamespace(next=-1), intake=SimpleNamespace(outcomes=outcomes))
    nothing: Any = SimpleNamespace(is_late=lambda: False, complete=False)
    link = LogLink(RealtimeJob(settings=SETTINGS, number=1, began_s=0.0), 0, nothing, nothing, nothing, nothing)
    for now in range(6):
        link.report(cast(Any, idle), now)
    assert outcomes.unreachable(subscribed) is None


T = TypeVar("T")


class Full(Exception):
    """No room."""


class Room(threading.Condition):
    """Does not block."""

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        if not (found := predicate()):
            raise Full
        return found


def batches(size: int) -> Iterator[pa.RecordBatch]:
    for offset in range(5_000):
        columns = [pa.array([b"x" * size]), pa.array([0]), pa.array([offset], pa.int64())]
        yield pa.RecordBatch.from_arrays(columns, ["value", "partition", "offset"])


@pytest.mark.parametrize(
    ("size", "count"),
    [(10, worker._AHEAD), (1024 * 1024, 16), (worker._AHEAD_BYTES + 1, 1)],
    ids=["small", "large", "above the limit"],
)
def test_rows_are_read_ahead_by_number_and_by_bytes(size: int, count: int) -> None:
    rows = _Rows(batches(size), lambda: None)
    cast(Any, rows)._room = Room()
    rows._read()
    assert isinstance(rows.error, Full)
    assert len(rows._rows) == count
    for _ in range(count):
        rows.drop_first()
    assert rows.over
    assert rows._bytes == rows._dropped


@pytest.mark.parametrize(
    ("control", "unchanged", "view", "covered"),
    [
        (10, UNSTAMPED, 9, False),
        (10, UNSTAMPED, 10, True),
        (10, 4, 3, False),
        (10, 4, 4, True),
        (10, 10, 9, False),
        (10, 0, 0, True),
        (10, 0, -1, False),  # no view yet
        (UNSTAMPED, 0, 6, False),  # no stamp: the end of the log
        (UNSTAMPED, 0, 7, True),
    ],
)
def test_a_notification_waits_for_its_view(control: int, unchanged: int, view: int, covered: bool) -> None:
    """Until the view has the last change that may concern it."""
    ends: list[int] = []
    position = TaskView(lambda: ends.append(7) or 7, None)  # type: ignore[func-returns-value]
    position.control = view
    assert position.covers(notification(control=control, unchanged=unchanged), 0, 0) == covered
    assert bool(ends) == (control == UNSTAMPED), "only messages without a stamp need the end of the log"
