from __future__ import annotations

import pytest

from dispatch.hot.stream import Rounds


def settled(per_second: float, rounds: Rounds, count: int = 20) -> float:
    """How long rounds take in the end, with so many deliveries a second."""
    for _ in range(count):
        rounds.took(rounds.most / per_second)
    return rounds.most / per_second


@pytest.mark.parametrize("per_second", [50, 400, 3_000, 20_000, 1_000_000])
def test_rounds_come_to_take_as_long_as_they_should(per_second: float) -> None:
    assert settled(per_second, Rounds(3.0)) == pytest.approx(3.0, rel=0.05)


def test_a_machine_that_has_become_slow_is_known_after_one_round() -> None:
    rounds = Rounds(3.0)
    settled(20_000, rounds)
    rounds.took(rounds.most / 400)
    assert rounds.most / 400 == pytest.approx(3.0, rel=0.05)


def test_one_quick_round_does_not_make_the_next_one_a_leap() -> None:
    rounds = Rounds(3.0)
    rounds.took(0.0)
    assert rounds.most <= 4_000


def test_a_round_is_never_so_small_that_it_is_mostly_overhead() -> None:
    rounds = Rounds(3.0)
    rounds.took(1e9)
    assert rounds.most == 100
