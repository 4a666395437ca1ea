"""Random histories of real time (`tests.support.realtime_histories`), and some rare ones."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import settings

from arborcast.dispatch.hot import task as partition_task
from arborcast.dispatch.logs.attempts import WRITE_S
from arborcast.dispatch.realtime import task
from arborcast.dispatch.realtime.messages import WorkerUpdate
from tests.support.realtime_histories import NAMES, PARTITIONS, Histories

Histories.TestCase.settings = settings(stateful_step_count=100, deadline=None)
TestHistories = Histories.TestCase


@pytest.fixture
def state() -> Histories:
    begun = Histories()
    begun.begin()
    return begun


def test_a_push_at_a_crash_is_not_overtaken_by_a_parked_delivery(state: Histories) -> None:
    state.behave(name="strict", how="ok", takes_ms=900)
    for partition in PARTITIONS:
        state.accept(partition=partition, count=1)
        state.step(partition=partition, times=1)
    state.acknowledge(partition=1, count=6)
    state.read(count=6)
    state.pass_time(for_ms=1)
    assert state.strict == ["1-0"]
    state.crash(landing=4, driver=True)
    state.pass_time(for_ms=20_000)
    assert state.strict == ["1-0", "0-0"]
    state.teardown()


def test_priorities_in_both_paths_and_order_of_strict(state: Histories, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: dict[str, list[str]] = {name: [] for name in NAMES}

    def note(name: str, ids: tuple[str, ...], attempt: int, at_ms: int) -> None:
        arrived[name] += ids

    monkeypatch.setattr(state, "_note", note)
    state.accept(partition=0, count=4, priorities=(0, 0, 5, 7))
    state.step(partition=0, times=1)
    state.acknowledge(partition=0, count=6)
    state.read(count=6)
    for _ in range(20):
        state.answer(partition=0, which=0)
        state.step(partition=0, times=1)
        state.pass_time(for_ms=50)
    assert arrived["plain"] == ["0-3", "0-2", "0-0", "0-1"]
    assert arrived["together"] == ["0-3", "0-2", "0-0", "0-1"]
    assert arrived["strict"] == ["0-0", "0-1", "0-2", "0-3"]

    # Then the endpoints refuse: messages are parked, and pushed by the redelivery.
    for name in NAMES:
        state.behave(name, "refused")
    state.accept(partition=0, count=1)
    for _ in NAMES:
        state.step(partition=0, times=1)
        state.answer(partition=0, which=0)
    state.accept(partition=0, count=4, priorities=(-100, 0, 5, 0))
    state.teardown()
    for name in ("plain", "together"):
        assert list(dict.fromkeys(arrived[name]))[4:9] == ["0-4", "0-7", "0-6", "0-8", "0-5"]


def test_an_interval_after_a_crash(state: Histories) -> None:
    state.accept(partition=0, count=1)
    state.settle_all(partition=0)
    assert state.known[0].position == 1
    state.accept(partition=0, count=2)
    state.crash(landing=4, driver=True)
    assert state.passes == {"0-0"}
    state.teardown()
    assert [each for each in state.began["sparse", 0, 0] if each < 3] == [0]


def test_a_stop_within_the_range_of_an_earlier_run_is_unclean(state: Histories) -> None:
    for _ in range(60):
        state.accept(partition=0, count=4)
    first = state.run_number
    state.step(partition=0, times=1)
    state.crash(landing=1, driver=False)
    state.step(partition=0, times=1)
    state.tasks[0].messages.append(WorkerUpdate(state.run_number, 0, 0, 0, stop=True))
    state.step(partition=0, times=1)
    known = state.known[0]
    assert 0 < known.position < 240
    assert (known.clean, known.since) == (False, first), "the first run may have rows behind the position"
    state.crash(landing=1, driver=False)
    state.settle_all(partition=0)
    state.tasks[0].messages.append(WorkerUpdate(state.run_number, 0, 0, 0, stop=True))
    state.step(partition=0, times=1)
    assert (state.known[0].position, state.known[0].clean) == (240, True)
    state.crash(landing=1, driver=False)
    state.teardown()


def test_a_task_rests_until_its_rows_are_due(state: Histories) -> None:
    """A delivery that ended more than a tenth of a second before a crash has its row."""
    state.accept(partition=0, count=1)
    state.settle_all(partition=0)
    running = state.tasks[0]
    state.accept(partition=0, count=1)
    running.task.step(cast(Any, running.rows))
    state.acknowledge(partition=0, count=100)
    while running.task._link.pending:
        state.pass_time(for_ms=20)
        running.task.step(cast(Any, running.rows))
        state.acknowledge(partition=0, count=100)
    written = len(state.rows)
    running.wire.answer(0)
    rests_s = running.task.step(cast(Any, running.rows))
    assert len(state.rows) == written
    assert rests_s <= WRITE_S
    state.pass_time(for_ms=int(WRITE_S * 1000))
    running.task.step(cast(Any, running.rows))
    state.acknowledge(partition=0, count=100)
    assert len(state.rows) > written
    state.teardown()


def test_nothing_is_lost_by_a_late_detection_of_a_dead_worker(state: Histories) -> None:
    for partition in PARTITIONS:
        state.accept(partition=partition, count=2)
        state.step(partition=partition, times=1)
    state.end_worker(partition=0, landing=1)
    state.cut_off(partition=1)
    state.behave(name="plain", how="broken")
    for partition in PARTITIONS:
        state.accept(partition=partition, count=2)
        state.settle_all(partition=partition)
        state.feed()
    assert state.known[0].position == 0
    state.crash(landing=2, driver=False)
    state.teardown()
    for partition in PARTITIONS:
        assert state.began["plain", partition, 0][:4] == [0, 1, 2, 3]


def test_a_steady_flow_leaves_the_redelivery_after_a_failure(state: Histories) -> None:
    state.behave(name="plain", how="refused")
    state.accept(partition=0, count=3)
    state.step(partition=0, times=1)
    state.answer(partition=0, which=0)
    state.behave(name="plain", how="ok")
    for _ in range(200):
        # At each update of the driver a delivery waits that the redelivery has not tried.
        state.accept(partition=0, count=1)
        for _ in NAMES:
            state.step(partition=0, times=1)
            state.answer(partition=0, which=0)
        state.acknowledge(partition=0, count=1_000)
        state.read(count=1_000)
        state.feed()
        state.pass_time(for_ms=50)
    was_parked = {row.notification for row in state.rows if row.subscription == "plain" and row.state == "parked"}
    assert "0-2" in was_parked
    assert not was_parked & {f"0-{offset}" for offset in range(190, 203)}
    state.teardown()


def test_the_bytes_of_a_task_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading continues after the oldest are settled."""
    monkeypatch.setattr(partition_task, "_SMALL", 0)
    monkeypatch.setattr(task, "_MOST_BYTES", 400)
    state = Histories()
    state.begin()
    for _ in range(5):
        state.accept(partition=0, count=4)
    size = len(state.accepted[0][0])
    state.step(partition=0, times=3)
    assert len(state.tasks[0].rows) == 20 - -(-400 // size), "the rows up to the limit, and none is settled"
    for _ in range(40):
        state.settle_all(partition=0)
        state.read(count=6)
        state.feed()
    assert not state.tasks[0].rows
    state.teardown()
