"""When something hangs, over a clock that nobody waits for."""

from __future__ import annotations

import pytest

from arborcast.core.liveness import OwnTime, Silence
from tests.support.make import Clock


def test_own_time_is_the_time_between_ticks() -> None:
    clock = Clock(1_000.0)
    own = OwnTime(2.0, clock)
    assert [own.tick() if clock.after(1.0) else 0 for _ in range(3)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("away_s", [3.0, 60.0, 86_400.0])
def test_time_in_which_we_did_not_run_is_one_step_at_most(away_s: float) -> None:
    clock = Clock(1_000.0)
    own = OwnTime(2.0, clock)
    clock.after(away_s)
    assert own.tick() == 2.0


def test_on_a_machine_five_times_slower_others_get_as_much_longer() -> None:
    """We should come round every second, and do so every five: so does the one that we watch, who answers after 25 s
    instead of 5."""
    clock = Clock(1_000.0)
    own = OwnTime(2.0, clock)
    silence = Silence(30.0, own.tick())
    for _ in range(14):  # 70 s of the wall
        clock.after(5.0)
        assert not silence.is_too_long(own.tick())


def asked(silence: Silence, own: OwnTime, clock: Clock, seconds: float, answers: bool) -> bool:
    """A question that takes so long, while we come round every second; whether it hangs then."""
    for _ in range(int(seconds)):
        clock.after(1.0)
        own.tick()
    if answers:
        silence.answered(own.tick())
    else:
        silence.unanswered()
    return silence.is_too_long(own.tick())


def test_three_questions_in_a_row_without_an_answer_and_the_whole_time() -> None:
    clock = Clock(1_000.0)
    own = OwnTime(2.0, clock)
    silence = Silence(30.0, own.tick(), probes=3)
    assert [asked(silence, own, clock, 10, answers=False) for _ in range(3)] == [False, False, True]
    assert silence.lasts_s(own.tick()) == 30.0


def test_no_answer_for_an_hour_of_sleep_is_one_lost_question() -> None:
    """The lid was closed while we waited for an answer: the question is over when it is opened."""
    clock = Clock(1_000.0)
    own = OwnTime(2.0, clock)
    silence = Silence(30.0, own.tick(), probes=3)
    clock.after(3_600)
    silence.unanswered()
    assert not silence.is_too_long(own.tick())
    assert not asked(silence, own, clock, 10, answers=False)
    # Even a second question that is lost, as if everything were slow to wake up, does not do it.
    assert not asked(silence, own, clock, 10, answers=False)
    assert not asked(silence, own, clock, 1, answers=True)


def test_quick_refusals_take_the_whole_time_too() -> None:
    clock = Clock(1_000.0)
    own = OwnTime(2.0, clock)
    silence = Silence(30.0, own.tick(), probes=3)
    verdicts = [asked(silence, own, clock, 1, answers=False) for _ in range(30)]
    assert verdicts == [False] * 29 + [True]


def test_signs_that_nobody_asks_for() -> None:
    silence = Silence(30.0, 0.0)
    for at in range(100):
        silence.observe(at // 20, float(at))  # a new one every 20 s
        assert not silence.is_too_long(float(at))
    assert not silence.is_too_long(109.0)
    silence.observe(4, 110.0)  # the same as the last
    assert silence.is_too_long(110.0)
