"""Detection of hangs, with a simulated clock."""

from __future__ import annotations

import pytest

from arborcast.core.liveness import RunningTime, Silence
from tests.support.make import Clock


class Watched:
    """A process that is watched by one with a period of a second, at most two."""

    def __init__(self, probes: int = 0) -> None:
        self.clock = Clock(1_000.0)
        self.own = RunningTime(2.0, self.clock)
        self.silence = Silence(30.0, self.own.tick(), probes)

    def after(self, seconds: float) -> float:
        self.clock.after(seconds)
        return self.own.tick()

    def hangs_after(self, seconds: int, answers: bool = False) -> bool:
        """Whether it hangs after a probe of this duration."""
        for _ in range(seconds):
            self.after(1.0)
        if answers:
            self.silence.answered(self.own.tick())
        else:
            self.silence.unanswered()
        return self.silence.is_too_long(self.own.tick())


@pytest.mark.parametrize("away_s", [3.0, 60.0, 86_400.0])
def test_time_of_a_suspension_counts_as_one_step_at_most(away_s: float) -> None:
    watched = Watched()
    assert [watched.after(1.0) for _ in range(3)] == [1.0, 2.0, 3.0]
    assert watched.after(away_s) == 5.0


def test_on_a_slow_machine_time_limits_are_longer() -> None:
    """The watching process has a period of one second, and runs every five: so does the watched one, which answers
    after 25 s instead of 5."""
    watched = Watched()
    for _ in range(14):  # 70 s of the wall
        assert not watched.silence.is_too_long(watched.after(5.0))


def test_a_hang_is_three_failed_probes_and_the_time_limit() -> None:
    watched = Watched(probes=3)
    assert [watched.hangs_after(10) for _ in range(3)] == [False, False, True]
    assert watched.silence.lasts_s(watched.own.tick()) == 30.0
    quick = Watched(probes=3)
    assert [quick.hangs_after(1) for _ in range(30)] == [False] * 29 + [True], "quick refusals"


def test_an_hour_of_suspension_is_one_failed_probe() -> None:
    """Suspended during a probe: the probe ends at the resume."""
    watched = Watched(probes=3)
    watched.clock.after(3_600)
    assert not watched.hangs_after(0)
    assert not watched.hangs_after(10)
    # A second lost probe, as if everything resumed slowly, does not suffice.
    assert not watched.hangs_after(10)
    assert not watched.hangs_after(1, answers=True)


def test_signs_of_life_without_a_probe() -> None:
    silence = Silence(30.0, 0.0)
    for at in range(100):
        silence.observe(at // 20, float(at))  # a new sign every 20 s
        assert not silence.is_too_long(float(at))
    assert not silence.is_too_long(109.0)
    silence.observe(4, 110.0)  # an old sign
    assert silence.is_too_long(110.0)
