from __future__ import annotations

import random

from arborcast.dispatch.redelivery.timer_queue import TimerQueue


def test_a_name_has_one_turn_and_the_last_word_counts() -> None:
    agenda: TimerQueue[str] = TimerQueue()
    agenda.set("a", 10)
    agenda.set("a", 50)
    assert (agenda.pop(49), agenda.next_ms()) == (None, 50)

    agenda.set_by("a", 60)
    assert agenda.next_ms() == 50
    agenda.set_by("a", 20)
    assert agenda.next_ms() == 20

    agenda.cancel("a")
    assert agenda.next_ms() is None


def test_at_the_latest_changes_nothing_about_a_turn_that_is_as_early() -> None:
    agenda: TimerQueue[str] = TimerQueue()
    agenda.set_by("a", 10)
    agenda.set("b", 10)
    agenda.set_by("a", 10)

    assert [agenda.pop(10), agenda.pop(10)] == ["a", "b"]
    agenda.set_by("a", 50)
    assert agenda.next_ms() == 50


def test_turns_that_were_put_off_often_still_come_in_order() -> None:
    chance = random.Random(3)
    agenda: TimerQueue[str] = TimerQueue()
    latest: dict[str, int] = {}
    for number in range(20_000):
        name = f"n{number % 300}"
        latest[name] = chance.randrange(10**9)
        agenda.set(name, latest[name])

    assert [agenda.pop(10**9) for _ in latest] == sorted(latest, key=latest.__getitem__)


def test_the_overdue_are_counted_without_those_that_were_put_off() -> None:
    agenda: TimerQueue[str] = TimerQueue()
    for number in range(20):
        agenda.set(f"n{number}", 100 + number)
    agenda.set("n3", 200)

    assert (agenda.overdue(109), agenda.overdue(1_000), agenda.overdue(99)) == (9, 20, 0)
    assert agenda.overdue(1_000, most=5) == 5


def test_turns_that_are_put_off_for_ever_take_no_memory() -> None:
    agenda: TimerQueue[str] = TimerQueue()
    for number in range(100_000):
        agenda.set(f"n{number % 10}", 1_000_000 + number)

    assert len(agenda._heap) < 2_000  # that is what the test is about
    assert [agenda.pop(10**9) for _ in range(10)] == [f"n{number}" for number in range(10)]
