from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import html

from arborcast.engine.monitoring.figures import line_plot
from arborcast.engine.monitoring.history import MetricsHistory
from arborcast.engine.monitoring.report import history_for, page, write_report
from arborcast.engine.monitoring.samples import NO_BOUND, JvmSample, MetricsSample, ProcessFigures
from arborcast.engine.monitoring.summary import Summary
from arborcast.engine.monitoring.ticks import Unit, clock, linear, logarithmic
from arborcast.engine.monitoring.watching import EngineView
from arborcast.engine.processes.errors import StackError
from tests.support.xpath import elements

SLOW = {"endpoint": "http://<slow>/", "pushes": 4, "failed": 1, "mean_s": 2.0, "longest": 3.0}


def samples(count: int = 500) -> list[MetricsSample]:
    return [
        MetricsSample(
            at=1_767_225_600.0 + number * 5,
            # Restarted in between.
            accepted=(number % 250) * 100.0,
            notices=float(number),
            waiting={"parked": 3.0, "due": 1.0},
            stages={"control": 1.0 * number, "job": 2.0 * number},
            in_flight={"batch": 5.0, "redelivery": 1.0},
            attempts={"delivered": (number % 250) * 100.0, "dead": 1.0, "parked": 2.0 * number},
            errors={"timeout": float(number)},
            refused={"InvalidRequest": 3.0, "<b>": 1.0},
            delivery=((0.1, (number % 250) * 100.0), (NO_BOUND, (number % 250) * 100.0)),
            lag_seconds=number / 100,
            processes={"kafka": ProcessFigures(number * 1.0, 1e8, 70, 100)},
            jvms={"dispatch": JvmSample(1e8, 2e8, 5e8, number, number * 0.1, 20_000, 90)},
        )
        for number in range(count)
    ]


def test_the_page_is_self_contained_with_figures_and_charts() -> None:
    text = page(EngineView(samples(), [SLOW]), "/srv/<engine>", 1_767_225_600.0, 1_767_229_200.0)
    document = html.document_fromstring(text)
    assert not document.xpath("//script | //link | //img | //iframe | //@href | //@src | //@onload")
    assert not re.search(r"url\(|@import", text)
    assert "/srv/<engine>" in document.findtext(".//h1")  # type: ignore[operator]
    tiles = {one.findtext("span"): one.findtext("b") for one in elements(document, "//div[@class='tiles']/div")}
    # 249 steps of 100 in each of the two runs.
    assert (tiles["notifications accepted"], tiles["longest lag"]) == ("49.8 k", "5.0 s")
    plots = elements(document, "//figure[.//*[local-name()='polyline']]")
    captions = [str(plot.xpath("normalize-space(figcaption/text())")) for plot in plots]
    assert len({*captions}) == len(captions), "duplicate names of charts"
    assert {
        *("Accepted per second", "Delivery latency", "CPU (% of a core)", "Memory", "Threads", "Java classes loaded"),
        *("Heap of the Java virtual machines", "Garbage collection (share of all time)"),
    } <= {*captions}
    cells = document.xpath("//td/text()")
    assert isinstance(cells, list)
    assert {"http://<slow>/", "timeout"} <= {*cells}


def test_a_report_of_a_stopped_engine(tmp_path: Path) -> None:
    assert "Nothing was recorded" in page(EngineView(), "x", 0, 1)
    with pytest.raises(StackError, match="no history"):
        history_for(None, tmp_path, 0)
    history = MetricsHistory(tmp_path / "metrics", keep_s=1e9)
    for sample in samples(50):
        history.add(sample)
    start = samples()[40].at
    seen, where = history_for(None, tmp_path, start)
    assert len(seen.samples) == 10
    write_report(tmp_path / "report.html", seen, where, start, start + 3600)
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["metrics", "report.html"]
    with pytest.raises(FileNotFoundError, match=r"'.*/nowhere/report\.html'"):
        write_report(tmp_path / "nowhere" / "report.html", seen, where, start, start)


def test_a_report_after_a_clock_was_put_back(tmp_path: Path) -> None:
    history = MetricsHistory(tmp_path / "metrics", keep_s=1e9)
    for number in range(200):
        put_back_s = 500.0 if number >= 150 else 0.0
        history.add(MetricsSample(1_000.0 + number * 5 - put_back_s, accepted=number * 10.0))
    seen, _ = history_for(None, tmp_path, 1_100.0)
    for found in (seen.samples, history.recent()):
        assert [sample.at for sample in found] == sorted(sample.at for sample in found)
        summary = Summary(found)
        assert (summary.last.at, summary.last.accepted) == (1_495.0, 1_990.0)
        assert summary.total("accepted") == summary.last.accepted - found[0].accepted


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
def test_an_axis_includes_its_values(most: float, unit: Unit) -> None:
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
    ("before_h", "after_h", "hours"),
    [(1, 2, [0, 5, 11, 17, 23]), (2, 1, [0, 7, 13, 19]), (2, 2, [0, 6, 12, 18, 24])],
    ids=["spring", "autumn", "summer"],
)
def test_a_day_with_a_change_of_summer_time_has_the_hours_of_both(
    before_h: int, after_h: int, hours: list[int]
) -> None:
    first = NOON.timestamp() - 3_600 * (12 + before_h)
    change = first + 3 * 3_600

    def ahead(at: float) -> float:
        return 3_600.0 * (before_h if at < change else after_h)

    ticks = clock(first, first + 86_400, ahead=ahead)
    assert [(at - first) / 3_600 for at, _ in ticks] == hours
    assert [text for _, text in ticks] == ["2 Jan", "06:00", "12:00", "18:00", "3 Jan"][: len(hours)]
    figure = line_plot("lag", {"": [(first, 1.0)]}, "seconds", 20.0, (first, first + 86_400), None, ahead)
    (plot,) = html.fragment_fromstring(figure).xpath("//*[@class='plot']")
    shown = [plot.get(f"data-{name}") for name in ("offset", "change", "later")]
    changed = [f"{change:.0f}", f"{after_h * 3_600}"] if before_h != after_h else [None, None]
    assert shown == [f"{before_h * 3_600}", *changed]


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
    return html.fragment_fromstring(line_plot("lag", {"": values}, "seconds", 20.0, (0.0, 100.0), None, limit=limit))


def test_a_plot_has_its_threshold_and_times_without_samples() -> None:
    points: list[tuple[float, float | None]] = [(0.0, 10.0), (10.0, 40.0)]
    for limit, shown in ((30.0, 1), (3_000.0, 0), (None, 0)):
        assert len(drawn(points, limit).xpath("//*[@class='limit']")) == shown
    (gap,) = drawn([(0.0, 1.0), (10.0, 1.0), (60.0, 1.0), (70.0, None)]).xpath("//*[@class='gap']")
    assert (gap.get("x"), gap.get("width")) == ("100.0", "500.0")
