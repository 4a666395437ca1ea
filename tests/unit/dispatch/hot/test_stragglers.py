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
        ([lane()], 0, 2.0, 1),  # also without finished lanes
        (MANY, 0, 60.0, 0),  # most lanes are unfinished: load, no straggler
        (MANY, 49, 60.0, 0),
        (MANY, 50, 60.0, 50),
        ([NO_TURN], 10, 3.9, 0),  # twice the budget before the first push
        ([NO_TURN], 10, 4.1, 1),
        ([TOGETHER], 10, 5.0, 0),
        ([lively(1_000)], 10, 2.0, 0),  # quick answers: a longer round is allowed
        ([lively(1_001)], 10, 2.0, 1),  # up to a bound: others wait for the next round
    ],
)
def test_a_batch_does_not_wait_for_a_few_slow_lanes(
    unfinished: list[LaneProgress], finished: int, elapsed_s: float, late: int
) -> None:
    found = stragglers(unfinished, finished, elapsed_s, BUDGET)
    assert found == [each.subscription for each in unfinished][:late]


def test_a_lane_is_slow_by_its_answers_not_by_its_queue() -> None:
    assert TOGETHER.remaining_s() == 2.0, "messages that share a push count together"
    assert not lane(waiting=2_000, pushes=100, messages=100, spent_s=1.0).is_slow(2.0)
    assert lane(waiting=2_000, pushes=100, messages=100, spent_s=5.0).is_slow(2.0)
    assert NO_TURN.is_slow(2.0), "no answer yet"
    assert [lane(pushes=1, spent_s=each).is_responsive for each in (0.01, 0.02)] == [True, False]


def test_slow_lanes_without_an_end_of_the_batch() -> None:
    crawling = lane(waiting=100, spent_s=5.0)  # beyond the budget, half done
    slow = SlowLanes(BUDGET)
    assert [slow.late([crawling], 1, now) for now in (10.0, 12.0, 12.1)] == [[], [], ["slow"]]

    slow = SlowLanes(BUDGET)  # a lane that was empty, without an answer since
    for turn in range(1, 50):
        assert slow.late([LaneProgress("s", 150, 0, 0, 0.0, turn)], 1, turn * 0.25) == []

    slow, all_crawl = SlowLanes(BUDGET), [lane(each.subscription, 1_000, spent_s=10.0) for each in MANY]
    late = [slow.late(each, 50, now) for each, now in ((all_crawl, 0.0), (all_crawl, 3.0), (all_crawl[:20], 3.0))]
    assert list(map(len, late)) == [0, 0, 20], "most lanes take long: load"
