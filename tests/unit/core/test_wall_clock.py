from __future__ import annotations

import pytest

from arborcast.core.wall_clock import TOLERANCE_MS, WatchedClock, is_due

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("due_ms", "decided_ms", "come"),
    [
        (NOW_MS, NOW_MS - 2_000, True),
        (NOW_MS + 1, NOW_MS - 2_000, False),
        (NOW_MS + HOUR_MS + 1_000, NOW_MS + HOUR_MS - 1_000, True),  # decided with a clock an hour ahead
        (NOW_MS + TOLERANCE_MS, NOW_MS + TOLERANCE_MS, False),  # clocks of two machines differ slightly
        (NOW_MS + TOLERANCE_MS + 1, NOW_MS + TOLERANCE_MS + 1, True),
        (NOW_MS + HOUR_MS, 0, False),  # the time of the decision is unknown
    ],
)
def test_a_time_is_due_if_it_is_past_or_was_decided_later(due_ms: int, decided_ms: int, come: bool) -> None:
    assert is_due(due_ms, decided_ms, NOW_MS) is come


def test_a_clock_set_back_is_detected_once_also_in_small_steps() -> None:
    shown = [NOW_MS]
    clock = WatchedClock(lambda: shown[0])
    assert clock.put_back_ms() == 0
    shown[0] += HOUR_MS
    assert (clock.now_ms(), clock.put_back_ms()) == (NOW_MS + HOUR_MS, 0)
    shown[0] -= HOUR_MS
    assert clock.now_ms() == NOW_MS
    assert (clock.put_back_ms(), clock.put_back_ms()) == (HOUR_MS, 0)

    noticed = []
    for _ in range(7):
        shown[0] -= 1_000
        noticed.append(clock.put_back_ms())
    assert noticed == [0, 0, 0, 0, 0, 6_000, 0]
