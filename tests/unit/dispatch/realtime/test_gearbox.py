"""When the engine changes gear."""

from __future__ import annotations

from dispatch.realtime.gearbox import Gear, Gearbox, Load


def driven(box: Gearbox, gear: Gear, loads: list[tuple[int, float]], begin: float = 0.0) -> list[Gear]:
    """The gear after each look; four looks a second."""
    found: list[Gear] = []
    for number, (waiting, rate) in enumerate(loads):
        gear = box.next(gear, Load(waiting, rate, begin + number / 4))
        found.append(gear)
    return found


def test_light_load_stays_in_real_time() -> None:
    assert set(driven(Gearbox(), "realtime", [(300, 1_000.0)] * 40)) == {"realtime"}


def test_a_backlog_is_for_batches_and_one_look_is_no_backlog() -> None:
    assert driven(Gearbox(), "realtime", [(3_000, 0.0), (0, 0.0), (3_000, 0.0), (3_000, 0.0)]) == [
        "realtime",
        "realtime",
        "realtime",
        "batch",
    ]
    assert driven(Gearbox(), "realtime", [(20_000, 0.0)]) == ["batch"], "one look at a heap is enough"


def test_when_it_is_through_it_goes_back_after_a_while() -> None:
    box = Gearbox()
    assert driven(box, "realtime", [(3_000, 0.0)] * 2)[-1] == "batch"
    gears = driven(box, "batch", [(0, 100.0)] * 40, begin=0.5)
    assert gears.index("realtime") == 11, "three seconds after it was shifted, at a quarter"


def test_a_rate_that_was_too_much_for_real_time_is_left_to_batches() -> None:
    box = Gearbox()
    assert driven(box, "realtime", [(3_000, 2_000.0), (4_000, 2_000.0)])[-1] == "batch"
    assert set(driven(box, "batch", [(300, 1_900.0)] * 400, begin=1.0)) == {"batch"}
    assert driven(box, "batch", [(0, 800.0)] * 4, begin=120.0)[-1] == "realtime"


def test_to_and_fro_takes_longer_each_time() -> None:
    """A load that grows as soon as it is in real time: each stay with batches is twice as long, up to a minute."""
    gear: Gear = "realtime"
    box, at = Gearbox(), 0.0
    stays: list[float] = []
    since = 0.0
    while len(stays) < 6:
        at += 0.25
        load = Load(9_000, 700.0, at) if gear == "realtime" else Load(0, 200.0, at)
        now = box.next(gear, load)
        if now != gear:
            if now == "realtime":
                stays.append(at - since)
            gear, since = now, at
    assert stays == sorted(stays)
    assert stays[-1] >= 4 * stays[0]
    assert max(stays) <= 61
