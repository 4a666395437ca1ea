from __future__ import annotations

import re
from pathlib import Path

import pytest
from lxml import html

from arborcast.engine.monitoring.history import MetricsHistory
from arborcast.engine.monitoring.report import history_for, page, write_report
from arborcast.engine.monitoring.samples import NO_BOUND, JvmSample, MetricsSample, ProcessFigures
from arborcast.engine.monitoring.watching import EngineView
from arborcast.engine.processes.errors import StackError
from tests.support.xpath import elements

SLOW = {"endpoint": "http://<slow>/", "pushes": 4, "failed": 1, "mean_s": 2.0, "longest": 3.0}


def samples(count: int = 500) -> list[MetricsSample]:
    return [
        MetricsSample(
            at=1_767_225_600.0 + number * 5,
            # Started again in the middle.
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


def test_the_page_stands_alone_with_its_figures_and_charts() -> None:
    text = page(EngineView(samples(), [SLOW]), "/srv/<engine>", 1_767_225_600.0, 1_767_229_200.0)
    document = html.document_fromstring(text)
    assert not document.xpath("//script | //link | //img | //iframe | //@href | //@src | //@onload")
    assert not re.search(r"url\(|@import", text)
    assert "/srv/<engine>" in document.findtext(".//h1")  # type: ignore[operator]
    tiles = {one.findtext("span"): one.findtext("b") for one in elements(document, "//div[@class='tiles']/div")}
    # 249 steps of 100 in each of the two lives.
    assert (tiles["notifications accepted"], tiles["longest lag"]) == ("49.8 k", "5.0 s")
    plots = elements(document, "//figure[.//*[local-name()='polyline']]")
    captions = [str(plot.xpath("normalize-space(figcaption/text())")) for plot in plots]
    assert len({*captions}) == len(captions), "two charts have one name"
    assert {
        *("Accepted per second", "Delivery latency", "CPU (% of a core)", "Memory", "Threads", "Java classes loaded"),
        *("Heap of the Java virtual machines", "Garbage collection (share of all time)"),
    } <= {*captions}
    cells = document.xpath("//td/text()")
    assert isinstance(cells, list)
    assert {"http://<slow>/", "timeout"} <= {*cells}


def test_a_report_of_an_engine_that_is_down(tmp_path: Path) -> None:
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
    with pytest.raises(StackError, match="cannot be written"):
        write_report(tmp_path / "nowhere" / "report.html", seen, where, start, start)
