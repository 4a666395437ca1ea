from __future__ import annotations

from arborcast.dispatch.monitoring.sources import Lag, LagClock


def test_seconds_count_from_the_first_look_that_saw_it() -> None:
    clock = LagClock()
    clock.measure(100, {0: 5}, {0: 5})
    assert clock.measure(110, {0: 8}, {0: 5}) == Lag(3, 0)
    assert clock.measure(120, {0: 9}, {0: 5}) == Lag(4, 10)
    # Record 5..7 are settled: what is left came between the looks at 110 and 120.
    assert clock.measure(130, {0: 9}, {0: 8}) == Lag(1, 10)
    assert clock.measure(140, {0: 9}, {0: 9}) == Lag(0, 0)
    assert clock.measure(150, {0: 10}, {0: 9}) == Lag(1, 0)


def test_a_query_that_stands_still_for_hours_keeps_its_first_look_and_not_all_others() -> None:
    clock = LagClock()
    for second in range(10_000):
        lag = clock.measure(second, {0: second + 1}, {0: 0})
    assert lag == Lag(10_000, 9_999)
    assert len(clock._marks) <= 1_001
