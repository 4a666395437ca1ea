from __future__ import annotations

import pytest

from arborcast.dispatch.hot.pump import LaneProgress, SlowLanes, stragglers

BUDGET = 2.0


def lane(
    name: str = "slow", waiting: int = 10_000, pushes: int = 10, messages: int = 10, spent_s: float = 2.0
) -> LaneProgress:
    return LaneProgress(name, waiting, pushes, messages, spent_s)


MANY = [lane(f"s{number}") for number in range(50)]
NO_TURN = lane(waiting=1, pushes=0, messages=0, spent_s=0.0)
TOGETHER = lane(waiting=1_000, pushes=2, messages=1_000)


def lively(waiting: int) -> LaneProgress:
    return lane("slow", waiting, pushes=1_000, messages=1_000, spent_s=10.0)


@pytest.mark.parametrize(
    ("unfinished", "finished", "elapsed_s", "late"),
    [
        ([lane()], 100, 1.9, 0),  # before the budget is used up
        ([lane(), lane("nearly", 5)], 100, 2.0, 1),
        ([lane(waiting=25)], 100, 2.0, 1),
        ([lane()], 0, 2.0, 1),  # a few lanes are stragglers without others
        (MANY, 0, 60.0, 0),  # most lanes are busy: there is much to do, and none is slow
        (MANY, 49, 60.0, 0),
        (MANY, 50, 60.0, 50),
        ([NO_TURN], 10, 3.9, 0),  # twice the time before its first turn
        ([NO_TURN], 10, 4.1, 1),
        ([TOGETHER], 10, 5.0, 0),
        ([lively(1_000)], 10, 2.0, 0),  # with quick answers a round that was planned too long is borne
        ([lively(1_001)], 10, 2.0, 1),  # but not any length: others wait for the next round
    ],
)
def test_a_batch_does_not_wait_for_a_few_slow_lanes(
    unfinished: list[LaneProgress], finished: int, elapsed_s: float, late: int
) -> None:
    found = stragglers(unfinished, finished, elapsed_s, BUDGET)
    assert found == [each.subscription for each in unfinished][:late]


def test_messages_that_travel_together_are_counted_together() -> None:
    assert TOGETHER.remaining_s() == 2.0


def test_who_answers_at_once_is_not_slow_however_much_waits() -> None:
    assert not lane(waiting=2_000, pushes=100, messages=100, spent_s=1.0).is_slow(2.0)
    assert lane(waiting=2_000, pushes=100, messages=100, spent_s=5.0).is_slow(2.0)
    assert NO_TURN.is_slow(2.0), "it has not answered at all"
    assert [lane(pushes=1, spent_s=each).is_lively for each in (0.01, 0.02)] == [True, False]


def test_where_no_batch_ends_a_lane_is_slow_that_has_not_got_through_in_the_budget_and_needs_as_long_again() -> None:
    slow, crawling = SlowLanes(BUDGET), lane(waiting=100, spent_s=5.0)
    late = [slow.late([crawling], 1, now) for now in (10.0, 12.0, 12.1)]
    assert late == [[], [], ["slow"]]


def test_a_lane_that_was_empty_between_two_looks_is_not_slow_before_its_next_answer() -> None:
    slow = SlowLanes(BUDGET)
    for turn in range(1, 50):
        # It has just got something again, and no push of that has ended.
        assert slow.late([LaneProgress("s", 150, 0, 0, 0.0, turn)], 1, turn * 0.25) == []


def test_where_most_lanes_take_long_it_is_the_load() -> None:
    slow = SlowLanes(BUDGET)
    crawling = [lane(each.subscription, 1_000, spent_s=10.0) for each in MANY]
    late = [slow.late(each, 50, now) for each, now in ((crawling, 0.0), (crawling, 3.0), (crawling[:20], 3.0))]
    assert list(map(len, late)) == [0, 0, 20]
