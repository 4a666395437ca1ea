"""Charts as SVG: ticks, thresholds and outages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import html

from arborcast.engine.monitoring.figures import line_plot
from arborcast.engine.monitoring.ticks import Unit, clock, linear, logarithmic

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("most", "unit", "expected"),
    [
        (0, "count", "0, 1"),
        (12_345, "count", "0, 5 k, 10 k, 15 k"),
        (1.3, "seconds", "0, 0.5 s, 1 s, 1.5 s"),
        (70, "seconds", "0, 15 s, 30 s, 45 s, 60 s, 75 s"),
        (20_000, "seconds", "0, 2 h, 4 h, 6 h"),
        (500 * 2**20, "bytes", "0, 128 MiB, 256 MiB, 384 MiB, 512 MiB"),
        (1.7, "share", "0, 50 %, 100 %, 150 %, 200 %"),
        (float("inf"), "rate", "0, 0.2, 0.4, 0.6, 0.8, 1"),
    ],
)
def test_round_numbers_of_one_unit(most: float, unit: Unit, expected: str) -> None:
    assert ", ".join(text for _, text in linear(most, unit)) == expected


@given(st.floats(min_value=1e-6, max_value=1e12), st.sampled_from(["count", "rate", "seconds", "bytes", "share"]))
def test_an_axis_holds_what_it_is_for(most: float, unit: Unit) -> None:
    ticks = linear(most, unit)
    assert [*ticks[0]] == [0, "0"]
    assert ticks[-1][0] >= most * (1 - 1e-6)
    assert 2 <= len(ticks) <= 6
    assert len({text for _, text in ticks}) == len(ticks)


@pytest.mark.parametrize(
    ("begin", "span", "expected"),
    [
        (timedelta(seconds=7), timedelta(seconds=40), "12:00:10, 12:00:20, 12:00:30, 12:00:40"),
        (timedelta(), timedelta(hours=30), "12:00, 18:00, 3 Jan, 06:00, 12:00, 18:00"),
        (timedelta(), timedelta(days=9), "3 Jan, 5 Jan, 7 Jan, 9 Jan, 11 Jan"),
    ],
)
def test_clock_times_are_round(begin: timedelta, span: timedelta, expected: str) -> None:
    at = (NOON + begin).timestamp()
    found = clock(at, at + span.total_seconds())
    assert ", ".join(text for _, text in found) == expected
    assert all(at <= tick <= at + span.total_seconds() for tick, _ in found)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (5, 40, "1 ms, 2 ms, 5 ms, 10 ms, 20 ms, 50 ms, 100 ms"),
        (3, 70_000, "1 ms, 10 ms, 100 ms, 1 s, 10 s, 1 min, 10 min"),
        (10, 10, "10 ms, 20 ms, 50 ms, 100 ms"),
        (1e5, 1e12, "1 min, 10 min, 1 h, 10 h, 1 d, 10 d"),
    ],
)
def test_decades_of_time_have_usual_names(low: float, high: float, expected: str) -> None:
    assert ", ".join(text for _, text in logarithmic(low, high)) == expected


def drawn(values: list[tuple[float, float | None]], limit: float | None = None) -> html.HtmlElement:
    return html.fragment_fromstring(line_plot("lag", {"": values}, "seconds", 20.0, (0.0, 100.0), None, 0.0, limit))


def test_a_plot_has_its_threshold_and_times_without_samples() -> None:
    points: list[tuple[float, float | None]] = [(0.0, 10.0), (10.0, 40.0)]
    for limit, shown in ((30.0, 1), (3_000.0, 0), (None, 0)):
        assert len(drawn(points, limit).xpath("//*[@class='limit']")) == shown
    (gap,) = drawn([(0.0, 1.0), (10.0, 1.0), (60.0, 1.0), (70.0, None)]).xpath("//*[@class='gap']")
    assert (gap.get("x"), gap.get("width")) == ("100.0", "500.0")
