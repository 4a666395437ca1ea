from __future__ import annotations

from arborcast.dispatch.hot.pump import LaneProgress, SlowLanes, stragglers

BUDGET = 2.0


def lane(name: str, waiting: int, pushes: int = 10, messages: int = 10, spent_s: float = 2.0) -> LaneProgress:
    return LaneProgress(name, waiting, pushes, messages, spent_s)


def test_nobody_is_put_off_before_the_budget_is_used_up() -> None:
    assert stragglers([lane("slow", 10_000)], 100, 1.9, BUDGET) == []


def test_what_would_still_take_long_is_not_waited_for_when_the_others_are_through() -> None:
    assert stragglers([lane("slow", 10_000), lane("nearly", 5)], 100, 2.0, BUDGET) == ["slow"]


def test_a_few_lanes_are_stragglers_even_when_there_is_nobody_else() -> None:
    assert stragglers([lane("only", 10_000)], 0, 2.0, BUDGET) == ["only"]


def test_when_most_lanes_are_busy_there_is_much_to_do_and_nobody_is_slow() -> None:
    everybody = [lane(f"s{number}", 10_000) for number in range(50)]

    assert stragglers(everybody, 0, 60.0, BUDGET) == []
    assert stragglers(everybody, 49, 60.0, BUDGET) == []
    assert len(stragglers(everybody, 50, 60.0, BUDGET)) == 50


def test_a_lane_that_had_no_turn_yet_is_given_twice_the_time() -> None:
    waiting = lane("held back", 1, pushes=0, messages=0, spent_s=0.0)

    assert stragglers([waiting], 10, 3.9, BUDGET) == []
    assert stragglers([waiting], 10, 4.1, BUDGET) == ["held back"]


def test_messages_that_travel_together_are_counted_together() -> None:
    together = LaneProgress("s", waiting=1_000, pushes=2, messages=1_000, spent_s=2.0)

    assert together.remaining_s() == 2.0
    assert stragglers([together], 10, 5.0, BUDGET) == []


def test_of_who_answers_at_once_a_round_that_was_planned_too_long_is_borne() -> None:
    def lively(waiting: int) -> LaneProgress:
        return lane("s", waiting, pushes=1_000, messages=1_000, spent_s=10.0)

    assert stragglers([lively(1_000)], 10, 2.0, BUDGET) == []
    assert stragglers([lively(1_001)], 10, 2.0, BUDGET) == ["s"], "but not any length: others wait for the next round"


def test_who_answers_at_once_is_not_slow_however_much_waits() -> None:
    assert not lane("s", waiting=2_000, pushes=100, messages=100, spent_s=1.0).is_slow(2.0)
    assert lane("s", waiting=2_000, pushes=100, messages=100, spent_s=5.0).is_slow(2.0)
    assert lane("s", waiting=1, pushes=0, messages=0, spent_s=0.0).is_slow(2.0), "it has not answered at all"


def test_where_no_batch_ends_a_lane_is_slow_that_has_not_got_through_in_the_budget_and_needs_as_long_again() -> None:
    slow = SlowLanes(BUDGET)
    crawling = lane("s", waiting=100, spent_s=5.0)

    assert slow.late([crawling], 1, 10.0) == []
    assert slow.late([crawling], 1, 12.0) == []
    assert slow.late([crawling], 1, 12.1) == ["s"]


def test_a_lane_that_was_empty_between_two_looks_is_not_slow_before_its_next_answer() -> None:
    slow = SlowLanes(BUDGET)
    for turn in range(1, 50):
        # It has just got something again, and no push of that has ended.
        assert slow.late([LaneProgress("s", 150, 0, 0, 0.0, turn)], 1, turn * 0.25) == []


def test_where_most_lanes_take_long_it_is_the_load() -> None:
    slow = SlowLanes(BUDGET)
    everybody = [lane(f"s{number}", 1_000, spent_s=10.0) for number in range(50)]

    assert slow.late(everybody, 50, 0.0) == []
    assert slow.late(everybody, 50, 3.0) == []
    assert len(slow.late(everybody[:20], 50, 3.0)) == 20
