from __future__ import annotations

import random

import pytest

from arborcast.core.timer_queue import TimerQueue


@pytest.fixture
def agenda() -> TimerQueue[str]:
    return TimerQueue()


def test_a_name_has_one_turn_and_the_last_time_counts(agenda: TimerQueue[str]) -> None:
    agenda.set("a", 10)
    agenda.set("a", 50)
    assert (agenda.pop(49), agenda.next_ms()) == (None, 50)
    for by_ms, next_ms in ((60, 50), (20, 20)):
        agenda.set_by("a", by_ms)
        assert agenda.next_ms() == next_ms
    agenda.cancel("a")
    assert agenda.next_ms() is None
    # An equally early time keeps its place before others of the same time.
    agenda.set_by("a", 10)
    agenda.set("b", 10)
    agenda.set_by("a", 10)
    assert [agenda.pop(10), agenda.pop(10)] == ["a", "b"]
    agenda.set_by("a", 50)
    assert agenda.next_ms() == 50


def test_often_delayed_turns_keep_the_order_and_use_no_memory(agenda: TimerQueue[str]) -> None:
    chance = random.Random(3)
    latest: dict[str, int] = {}
    for number in range(5_000):
        name = f"n{number % 50}"
        latest[name] = chance.randrange(10**9)
        agenda.set(name, latest[name])
    assert len(agenda._heap) < 2_000  # bounded
    assert [agenda.pop(10**9) for _ in latest] == sorted(latest, key=latest.__getitem__)


def test_overdue_turns_are_counted_without_delayed_ones(agenda: TimerQueue[str]) -> None:
    for number in range(20):
        agenda.set(f"n{number}", 100 + number)
    agenda.set("n3", 200)
    assert (agenda.overdue(109), agenda.overdue(1_000), agenda.overdue(99)) == (9, 20, 0)
    assert agenda.overdue(1_000, most=5) == 5
