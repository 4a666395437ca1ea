"""Missing workers, and their end before the next run, for any clocks and durations."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core import fence
from arborcast.core.liveness import RunningTime
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.hot.intake import Exclusions
from arborcast.dispatch.job.lease import HOLD_S, LEASE_S, RENEW_S
from arborcast.dispatch.matching.view import Advance
from arborcast.dispatch.realtime import driver
from arborcast.dispatch.realtime.driver import WorkerUpdates
from arborcast.dispatch.realtime.messages import WorkerProgress, WorkerUpdate
from arborcast.dispatch.realtime.worker_lease import renewed_at
from arborcast.dispatch.realtime.workers import LocalWorkers, RemoteWorkers
from arborcast.topic_model.routing import Overlay, ViewStep
from arborcast.topic_model.subscriptions import EndpointReference, Subscription

# On a grid, for coinciding times.
MOMENTS = st.sampled_from([0.0, 0.0, 0.0, 0.25, 0.5, 1.0, 3.0, 15.0])


class Elsewhere:
    """The driver's side, with its own clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[WorkerUpdate] = []
        self.waited: list[float] = []
        running_time = RunningTime(2.0, lambda: self.now)
        self.failed = False
        self.workers = RemoteWorkers(self.sent.append, self.wait, lambda: self.failed, lambda: self.now, running_time)

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds

    def report(self, task: int, *, alive: bool = False, stopped: bool = False) -> None:
        self.workers.reported(WorkerProgress(10, -1, -1, 10, task=task, alive=alive, stopped=stopped))

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1
            self.workers.missing()


def test_a_local_worker_without_a_first_report_is_missing() -> None:
    """Its process id is unknown; Spark detects the death with the next row, perhaps hours later."""
    now = 100.0
    workers = LocalWorkers(RunningTime(2.0, lambda: now))
    workers.begin(2)
    workers.reported(WorkerProgress(10, -1, -1, 10, task=0, pid=os.getpid()))
    for _ in range(300):
        assert not workers.missing()
        now += 1
    assert "task 1 has not reported" in workers.missing()
    workers.begin(1)
    assert not workers.missing()
    workers.reported(WorkerProgress(11, -1, -1, 11, task=0, pid=os.getpid()))
    now += 10_000
    assert not workers.missing()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    workers.reported(WorkerProgress(11, -1, -1, 11, task=0, pid=ended.pid))
    assert f"pid {ended.pid}) has died" in workers.missing(), "its report was read after its end"


def test_silent_workers_and_failed_tasks_are_missing() -> None:
    driver = Elsewhere()
    driver.workers.begin(2)
    driver.pass_time(60)
    assert not driver.workers.missing(), "time to start Python"
    driver.report(0, alive=True)
    driver.report(1, alive=True)
    driver.pass_time(LEASE_S - 1)
    driver.report(0, alive=True)
    driver.pass_time(2)
    assert "task 1 has not reported" in driver.workers.missing()
    driver.report(1, alive=True)
    assert not driver.workers.missing()
    driver.failed = True
    assert "has died" in driver.workers.missing()

    driver = Elsewhere()
    driver.workers.begin(1)
    driver.report(0)
    driver.now += 3_600
    assert not driver.workers.missing(), "the driver was suspended"


def test_a_run_waits_for_workers_that_have_not_stopped() -> None:
    driver = Elsewhere()
    driver.workers.end(-1)
    driver.workers.wait_ended()
    assert not driver.sent + driver.waited, "no run before"
    driver.workers.end(7)
    driver.workers.end(7)
    driver.workers.wait_ended()
    assert [(each.run, each.stop) for each in driver.sent] == [(8, True)]
    assert sum(driver.waited) == pytest.approx(LEASE_S)

    driver.workers.begin(2)
    driver.report(0, stopped=True)
    driver.workers.end(9)
    assert len(driver.sent) == 2
    driver.workers.wait_ended()

    driver.workers.begin(2)
    driver.report(0, stopped=True)
    driver.report(1, stopped=True)
    before = driver.now
    driver.workers.end(11)
    driver.workers.wait_ended()
    assert (len(driver.sent), driver.now) == (2, before), "all have stopped"


@given(
    offset=st.floats(-1e6, 1e6),
    first=MOMENTS,
    takes=st.lists(st.tuples(MOMENTS, MOMENTS), min_size=1, max_size=12),
    lands=st.integers(0, 40).map(lambda quarters: quarters / 4),
    answered=MOMENTS,
)
def test_all_leases_end_before_the_next_run_begins(
    offset: float, first: float, takes: list[tuple[float, float]], lands: float, answered: float
) -> None:
    """A worker requests the end of the log repeatedly, with any times until the broker answers and until the answer is
    read. The driver's message is appended at any time, and acknowledged later."""
    now = first
    remaining = iter(takes)
    counts_since: list[float] = []

    def clock() -> float:
        return now + offset

    def query_end() -> int:
        nonlocal now
        there, back = next(remaining)
        now += there
        end = 5 + (now >= lands)
        now += back
        return end

    def give_up() -> bool:
        nonlocal now
        now += 0.5
        return False

    for _ in takes:
        at = renewed_at(query_end, lambda: 5, clock, give_up)
        if at is not None:
            counts_since.append(at - offset)
        now += RENEW_S

    driver = Elsewhere()

    def send(message: WorkerUpdate) -> None:
        driver.now = lands + answered

    driver.workers = RemoteWorkers(send, driver.wait, lambda: False, lambda: driver.now)
    driver.workers.end(3)
    driver.workers.wait_ended()
    assert all(since + HOLD_S < since + LEASE_S <= driver.now + 1e-6 for since in counts_since)


def test_pushes_wait_for_an_ended_lease() -> None:
    fence.wait()
    with fence.own() as extend:

        class Waited(Exception):
            pass

        def waits() -> None:
            raise Waited

        with pytest.raises(Waited):
            fence.wait(waits)
        extend(fence.clock() + 1_000)
        fence.wait(waits)
        extend(fence.clock() - 1)
        with pytest.raises(Waited):
            fence.wait(waits)
    fence.wait(waits)


class View:
    """A routing view with a replaceable base."""

    def __init__(self) -> None:
        self.base: Any = SimpleNamespace(name=b"broadcast", number=0)
        self.control = 7
        self.begun = False
        self.past = 0

    def advance(
        self, timeout_s: float, restart: bool, end: int | None = None, *, stopped: Callable[[], bool]
    ) -> Advance:
        begins, self.begun = restart or not self.begun, True
        return Advance(cast(Any, self.base) if begins else None, (), self.control)

    def is_short(self, past: int) -> bool:
        return self.past <= past

    def end_steps(self) -> None:
        self.begun = False


def feeder_of(
    view: View, monkeypatch: pytest.MonkeyPatch, one_base: bool = False
) -> tuple[WorkerUpdates, list[WorkerUpdate]]:
    """A feeder without its thread, and its messages."""
    written = list[WorkerUpdate]()
    feeder = WorkerUpdates(KafkaSettings(), cast(Any, view), Exclusions, 10, one_base)

    def write(messages: list[WorkerUpdate]) -> int:
        written.extend(messages)
        feeder._feed._pending = lambda: len(written) - 1
        return len(messages)

    monkeypatch.setattr(feeder._feed, "_write", write)
    return feeder, written


@pytest.mark.parametrize("one_base", [True, False])
def test_a_new_base_that_workers_cannot_read_needs_a_new_run(one_base: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    view = View()
    feeder, written = feeder_of(view, monkeypatch, one_base)
    feeder._write()
    view.control = 8
    feeder._write()
    assert [each.control for each in written] == [7, 8]
    assert feeder.base == view.base
    view.base, view.begun, view.control = SimpleNamespace(name=b"broadcast", number=1), False, 9
    feeder._write()
    assert feeder.outdated == one_base
    assert [each.control for each in written] == ([7, 8] if one_base else [7, 8, 9])
    view.control = 10
    feeder._write()
    assert len(written) == (2 if one_base else 4), "workers with an old base receive no new position"


def test_small_snapshots_are_written_after_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_STEPS", 5)
    monkeypatch.setattr(driver, "_MOST_STEPS", 15)
    view = View()
    feeder, written = feeder_of(view, monkeypatch)

    def sent(times: int) -> list[int]:
        """The positions of the snapshots."""
        first = len(written)
        for _ in range(times):
            view.control += 1
            feeder._write()
        return [each.control for each in written[first:] if each.base]

    assert sent(6) == [8]
    assert sent(6) == [14], "after _STEPS"
    view.past = 1_000_000
    assert sent(10) == []
    assert sent(4) == [30], "after _MOST_STEPS at the latest"
    assert sent(5) == []
    view.past = 0
    assert sent(1) == [39]


def test_a_snapshot_is_written_when_the_differences_are_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_STEPS", 5)
    endpoints = [f"http://host-{number}.example/receiver" for number in range(1_000)]
    trials = itertools.cycle(endpoints)

    def exclusions() -> Exclusions:
        return Exclusions(degraded=frozenset(endpoints), on_trial=frozenset({next(trials)}))

    sizes = list[int]()

    def begin(records: list[tuple[bytes, bytes | None]]) -> Callable[[], int]:
        sizes.append(sum(len(value or b"") for _, value in records))
        return lambda: len(sizes) - 1

    feeder = WorkerUpdates(KafkaSettings(), cast(Any, View()), exclusions, 10)
    monkeypatch.setattr(feeder._feed, "_log", SimpleNamespace(begin=begin))
    for _ in range(600):
        feeder._write()
    first, *following = sizes
    assert first > 30_000
    assert sum(size > first // 2 for size in following) == 1, "one snapshot when the differences are as large"
    assert min(following) < 1_000


def test_unacknowledged_updates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further records are encoded after Kafka has acknowledged earlier ones."""
    large = Subscription("s", EndpointReference("http://e/", ("y" * 3_000_000,)))
    view = View()
    steps = [ViewStep(7, Overlay("x"), now=(large, large, large))] * 10
    monkeypatch.setattr(view, "advance", lambda *_, **__: Advance(cast(Any, view.base), steps, 7))
    pending, most, offsets = 0, 0, itertools.count()

    def begin(records: list[tuple[bytes, bytes | None]]) -> Callable[[], int]:
        nonlocal pending, most
        size = sum(len(value or b"") for _, value in records)
        assert max(len(value or b"") for _, value in records) < KafkaSettings().max_record_bytes
        pending += size
        most = max(most, pending)
        last = [next(offsets) for _ in records][-1]

        def wait() -> int:
            nonlocal pending
            pending -= size
            return last

        return wait

    feeder = WorkerUpdates(KafkaSettings(), cast(Any, view), Exclusions, 10)
    monkeypatch.setattr(feeder._feed, "_log", SimpleNamespace(begin=begin))
    feeder._write()
    assert most <= 8 * 1024 * 1024
    assert feeder._feed.began == 0, "the begin for later workers"
