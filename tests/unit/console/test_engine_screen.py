"""The screen Engine, with and without an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from lxml import html
from starlette.requests import Request

from arborcast.console.guard import Principal
from arborcast.console.live import changes
from arborcast.console.screens import engine
from arborcast.console.screens.engine.feed import RANGES, EngineFeed, feeds_of
from arborcast.core.errors import ConfigError
from arborcast.engine.embedded.home import Home
from arborcast.engine.monitoring.charts import CHARTS
from arborcast.engine.monitoring.history import MetricsHistory
from arborcast.engine.monitoring.samples import MetricsSample
from arborcast.engine.monitoring.watching import EngineView, EngineWatch
from tests.support.console import Browser, console_parts, settings_in
from tests.support.xpath import elements
from tests.unit.engine.monitoring.test_report import samples

HOSTILE = "http://anna:word@<script>alert(1)</script>\u202e/"

SLOW = {"endpoint": HOSTILE, "pushes": 4, "failed": 1, "mean_s": 2.0, "longest": 3.0}


class Watch(EngineWatch):
    """A view of the engine that the test sets."""

    def __init__(self, view: EngineView) -> None:
        super().__init__(["h:1"])
        self.view = view
        self.looks = 0

    def look(self) -> EngineView:
        self.looks += 1
        return self.view


def moved(to: float, count: int = 500) -> list[MetricsSample]:
    """A busy engine's samples, every five seconds, the last one at this time."""
    made = samples(count)
    return [msgspec.structs.replace(each, at=to - 5.0 * (count - 1 - number)) for number, each in enumerate(made)]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Browser]:
    """The screen of an engine with this view; `past` is its history."""

    def open_screen(view: EngineView, query: str = "", past: Any = lambda *_: []) -> Browser:
        monkeypatch.setattr(engine, "feeds_of", lambda _: [EngineFeed("This engine", Watch(view), past, 60)])
        browser = Browser(console_parts(tmp_path).app)
        browser.get(f"/engine{query}")
        return browser

    return open_screen


def text_of(markup: str) -> str:
    return " ".join(str(html.fromstring(markup).xpath("string()")).split())


def test_without_an_engine_and_before_the_log_is_read(tmp_path: Path) -> None:
    parts = console_parts(tmp_path)
    parts.ready = False
    browser = Browser(parts.app)
    assert browser.get("/engine").status_code == 200
    assert "no engine runs in" in browser.text
    assert browser.text.count("nothing was recorded") == len(CHARTS), "a place for each chart"
    assert browser.page.body.get("data-live") == "/engine/live?engine=0&range=10m"
    for query in ("engine=1", "engine=-1", "engine=x", "range=2y", "engine=%E0%A5%A7"):
        assert browser.get(f"/engine?{query}").status_code == 404


def test_the_history_of_an_engine_that_is_down_is_shown(tmp_path: Path) -> None:
    history = MetricsHistory(Home(tmp_path).metrics, 3_600)
    for sample in moved(time.time() - 1_800, 200):
        history.add(sample)
    browser = Browser(console_parts(tmp_path).app)
    browser.get("/engine?range=1h")
    assert "no engine runs in" in browser.text
    assert elements(browser.page, "//div[@id='chart-cpu']//*[local-name()='polyline']")
    assert not elements(browser.at("/engine").page, "//*[local-name()='polyline']"), "no samples of the last minutes"


def test_figures_as_text_without_injected_markup(opened: Callable[..., Browser]) -> None:
    browser = opened(EngineView(moved(time.time(), 100), [SLOW]))
    assert not browser.shows_hostile("anna:word")
    assert "<script>alert(1)</script>" in browser.text
    tiles = {each.findtext("dt"): each.findtext("dd") for each in elements(browser.page, "//dl[@class='tiles']/div")}
    assert tiles["Accepted per second"] == "20"
    assert tiles["Latency p50"] == "50 ms"
    (row,) = elements(browser.page, "//div[@id='engine-processes']//tbody/tr")
    assert [cell.text for cell in elements(row, "*")] == ["kafka", "1", "20 %", "95 MiB", "70", "100"]
    assert "kafka 95 MiB, max 95 MiB" in text_of(html.tostring(browser.page.get_element_by_id("chart-memory")).decode())


async def test_viewers_share_one_view_of_the_engine() -> None:
    watch, clock = Watch(EngineView(moved(1_000_000.0))), [1_000_000.0]
    past = Mock(return_value=moved(999_000.0, 100))
    feed = EngineFeed("x", watch, past, 7_200.0, lambda: clock[0])
    for looks in (1, 2):
        await asyncio.gather(*(feed.shown(span) for span in RANGES for _ in range(5)))
        assert watch.looks == looks
        clock[0] += 10
        watch.view = EngineView(moved(1_000_010.0))
    assert {until - since for (since, until), _ in past.call_args_list} == {3_600.0, 6 * 3_600.0, 24 * 3_600.0, 7_200.0}


async def test_a_range_continues_and_is_read_again_after_a_pause() -> None:
    watch, clock = Watch(EngineView(moved(10_000.0, 10))), [10_000.0]
    past = Mock(side_effect=lambda _, until: moved(until - 20, 700))
    feed = EngineFeed("x", watch, past, 7_200.0, lambda: clock[0])
    first = await feed.shown("1h")
    clock[0] = 10_012.0
    watch.view = EngineView(moved(10_012.0, 10))
    second = await feed.shown("1h")
    assert past.call_count == 1
    assert second.figures["memory"] != first.figures["memory"]
    clock[0] = 20_000.0
    watch.view = EngineView(moved(20_000.0, 10))
    await feed.shown("1h")
    assert [until for (_, until), _ in past.call_args_list] == [10_000.0, 20_000.0]


async def test_the_newest_sample_is_charted_also_without_a_history() -> None:
    past = Mock(side_effect=ConnectionRefusedError(111, "Connection refused"))
    now = 1_000_000.0
    made = [*moved(now - 5, 50), msgspec.structs.replace(moved(now, 1)[0], lag_seconds=1.9)]
    feed = EngineFeed("x", Watch(EngineView(made)), past, 60, lambda: now)
    assert "1.9 s, max 1.9 s" in text_of(str((await feed.shown("10m")).figures["lag-seconds"]))
    shown = await feed.shown("6h")
    assert "History unavailable" in shown.problem
    assert shown.tiles


def test_unknown_failures_and_none(opened: Callable[..., Browser]) -> None:
    assert "Not known: the dispatch job does not respond." in opened(EngineView()).text
    assert "No pushes in the last 5 min." in opened(EngineView(failing=[])).text


def test_old_figures_are_not_shown_as_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    known = [msgspec.structs.replace(each, parts={"kafka": True}) for each in moved(now - 90, 50)]
    for watch in (Watch(EngineView(known, problem="no answer")), Watch(EngineView(known))):
        feed = EngineFeed("This engine", watch, lambda *_: [], 60, lambda: now)
        monkeypatch.setattr(engine, "feeds_of", lambda _, feed=feed: [feed])
        browser = Browser(console_parts(tmp_path).app)
        browser.get("/engine")
        assert "kafka unknown not current: as of" in browser.text
        assert "90.0 s ago" in browser.text
        assert not elements(browser.page, "//p[contains(@class, 'parts')]/span[contains(@class, 'good')]")
        assert elements(browser.page, "//dl[@class='tiles stale']")


def test_a_time_between_two_moments_is_shown_alone(opened: Callable[..., Browser]) -> None:
    past = Mock(side_effect=lambda _, until: moved(until, 100))
    query = "?from=2026-01-01T09:00:00&to=2026-01-01T10:00:00%2B00:00"
    browser = opened(EngineView(moved(1_767_262_800.0, 100)), query, past)
    ((between, _),) = past.call_args_list
    assert between[1] == 1_767_261_600.0
    assert "from=2026-01-01" in browser.page.xpath("//body/@data-live")[0]
    (begin,) = browser.page.xpath("//div[@id='chart-memory']//div[@class='plot']/@data-begin")
    assert float(begin) == between[0]
    assert browser.get("/engine?from=2026-01-01T09:00:00&to=never").status_code == 400
    assert browser.get("/engine?from=2026-01-02T09:00&to=2026-01-01T09:00").status_code == 400


def test_all_times_have_one_zone_which_each_page_shows(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert "Times are in UTC-0" in browser.at("/engine").page.xpath("string(//footer)")
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_live_updates_have_only_changed_parts(tmp_path: Path) -> None:
    now = time.time()
    watch = Watch(EngineView(moved(now, 50)))
    feed = EngineFeed("x", watch, lambda *_: [], 60, lambda: clock[0])
    clock = [now]
    parts = console_parts(tmp_path)
    request = Request({"type": "http", "method": "GET", "headers": [], "state": {"principal": Principal("s", "t")}})
    query = engine.EngineQuery(0, "10m")
    stream = changes(lambda _: engine._live_parts(parts.console, request, feed, query), 0.0)
    every = {"engine-now", "engine-processes", "engine-slowest", *(f"chart-{chart.name}" for chart in CHARTS)}
    assert {(await anext(stream)).id for _ in every} == every
    watch.view = EngineView(watch.view.samples, [SLOW])
    clock[0] += 4.5
    assert (await anext(stream)).id == "engine-slowest"
    await stream.aclose()


def test_other_engines_by_their_addresses(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, console__engines="http://a:1, g:2+j:3")
    assert [feed.name for feed in feeds_of(settings)] == ["This engine", "http://a:1", "g:2 + j:3"]
    with pytest.raises(ConfigError, match="http://host:port"):
        feeds_of(settings_in(tmp_path, console__engines="http://a:1,ftp://b"))
