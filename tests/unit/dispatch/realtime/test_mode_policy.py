"""The choice between real time and batches."""

from __future__ import annotations

import pytest

from arborcast.dispatch.realtime.mode_policy import Load, Mode, ModePolicy


def driven(policy: ModePolicy, mode: Mode, loads: list[tuple[int, float]], begin: float = 0.0) -> list[Mode]:
    """The mode after each look; four looks a second."""
    found: list[Mode] = []
    for number, (waiting, rate) in enumerate(loads):
        mode = policy.next(mode, Load(waiting, rate, begin + number / 4))
        found.append(mode)
    return found


def backlog(waiting: int, pace: float, rate: float = 0.0, looks: int = 40) -> list[tuple[int, float]]:
    """The loads with a real time that processes `pace` a second."""
    return [(max(0, int(waiting + (rate - pace) * number / 4)), rate) for number in range(looks)]


@pytest.mark.parametrize(
    ("limit", "loads"),
    [
        (8.0, [(300, 1_000.0)] * 40),  # a light load
        (8.0, backlog(8_000, 1_500.0)),  # a short burst
        (30.0, backlog(20_000, 3_000.0)),  # batches are not faster
        (8.0, [(0, 500.0)] * 8 + [(500 * n // 4, 500.0) for n in range(12)] + [(200, 500.0)] * 8),  # a pause
    ],
    ids=["light", "burst", "slow batches", "pause"],
)
def test_loads_that_stay_in_real_time(limit: float, loads: list[tuple[int, float]]) -> None:
    assert set(driven(ModePolicy(limit), "realtime", loads)) == {"realtime"}


def test_larger_bursts_stay_in_real_time_after_a_measurement() -> None:
    policy = ModePolicy(8.0)
    assert "batch" in driven(ModePolicy(8.0), "realtime", backlog(15_000, 3_000.0)[1:]), "before"
    driven(policy, "realtime", [*backlog(8_000, 3_000.0, looks=10), (0, 0.0)])
    assert set(driven(policy, "realtime", backlog(15_000, 3_000.0), begin=2.75)) == {"realtime"}


def test_a_backlog_of_two_looks_is_for_batches() -> None:
    loads = [(20_000, 0.0), (0, 0.0), (20_000, 0.0), (20_000, 0.0)]
    assert driven(ModePolicy(8.0), "realtime", loads) == [*["realtime"] * 3, "batch"]


@pytest.mark.parametrize(("mode", "waiting"), [("realtime", 30_000), ("batch", 0)])
def test_no_change_while_many_parked_records_are_unread(mode: Mode, waiting: int) -> None:
    policy, at = ModePolicy(8.0), 0.0
    for unread, changes in ((5_001, False), (5_000, True)):
        modes = set()
        for _ in range(40):
            at += 0.25
            modes.add(policy.next(mode, Load(waiting, 0.0, at, unread)))
        assert (len(modes) == 2) == changes


def test_a_rate_above_the_pace_is_for_batches_after_seconds() -> None:
    modes = driven(ModePolicy(8.0), "realtime", backlog(0, 1_000.0, rate=3_000.0))
    assert 12 <= modes.index("batch") <= 30


def test_back_to_real_time_after_three_seconds() -> None:
    policy = ModePolicy(8.0)
    assert driven(policy, "realtime", [(30_000, 0.0)] * 2)[-1] == "batch"
    modes = driven(policy, "batch", [(0, 100.0)] * 40, begin=0.5)
    assert modes.index("realtime") == 11, "three seconds after the change, in looks of 250 ms"


def test_a_rate_too_high_for_real_time_stays_in_batches() -> None:
    policy = ModePolicy(8.0)
    assert "batch" in driven(policy, "realtime", backlog(5_000, 1_000.0, rate=2_000.0))
    assert set(driven(policy, "batch", [(300, 1_900.0)] * 400, begin=10.0)) == {"batch"}
    assert driven(policy, "batch", [(0, 800.0)] * 4, begin=120.0)[-1] == "realtime"


def test_repeated_changes_take_longer_each_time() -> None:
    """A load that grows in each real time: each stay in batches is twice as long, up to a minute."""
    mode: Mode = "realtime"
    policy, at = ModePolicy(8.0), 0.0
    stays: list[float] = []
    since = 0.0
    while len(stays) < 6:
        at += 0.25
        load = Load(30_000, 700.0, at) if mode == "realtime" else Load(0, 200.0, at)
        now = policy.next(mode, load)
        if now != mode:
            if now == "realtime":
                stays.append(at - since)
            mode, since = now, at
    assert stays == sorted(stays)
    assert stays[-1] >= 4 * stays[0]
    assert max(stays) <= 61
