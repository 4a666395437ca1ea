from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.engine.monitoring.ticks import Unit, linear


def labels(most: float, unit: Unit) -> str:
    return ", ".join(text for _, text in linear(most, unit))


@pytest.mark.parametrize(
    ("most", "unit", "expected"),
    [
        (0.83, "rate", "0, 0.2, 0.4, 0.6, 0.8, 1"),
        (0, "count", "0, 1"),
        (3, "count", "0, 1, 2, 3"),
        (12_345, "count", "0, 5 k, 10 k, 15 k"),
        (1_234, "count", "0, 500, 1,000, 1,500"),
        (0.3, "seconds", "0, 100 ms, 200 ms, 300 ms"),
        (1.3, "seconds", "0, 0.5 s, 1 s, 1.5 s"),
        (70, "seconds", "0, 15 s, 30 s, 45 s, 60 s, 75 s"),
        (400, "seconds", "0, 2 min, 4 min, 6 min, 8 min"),
        (20_000, "seconds", "0, 2 h, 4 h, 6 h"),
        (500_000, "seconds", "0, 2 d, 4 d, 6 d"),
        (500 * 2**20, "bytes", "0, 128 MiB, 256 MiB, 384 MiB, 512 MiB"),
        (1.7, "share", "0, 50 %, 100 %, 150 %, 200 %"),
        (float("inf"), "rate", "0, 0.2, 0.4, 0.6, 0.8, 1"),
    ],
)
def test_round_numbers_of_one_unit(most: float, unit: Unit, expected: str) -> None:
    assert labels(most, unit) == expected


@given(st.floats(min_value=1e-6, max_value=1e12), st.sampled_from(["count", "rate", "seconds", "bytes", "share"]))
def test_an_axis_holds_what_it_is_for(most: float, unit: Unit) -> None:
    ticks = linear(most, unit)

    assert [*ticks[0]] == [0, "0"]
    assert ticks[-1][0] >= most * (1 - 1e-6)
    assert 2 <= len(ticks) <= 6
    assert len({text for _, text in ticks}) == len(ticks)
