"""The web console over a large tree: its pages in a real browser, beside the floor of a page that is only text.

    python -m benchmarks.console [--quick] [--lists] [--json FILE]

A control log in a real Kafka has 100,000 and then 1,000,000 topics: one node has 100,000 children, the others are a
tree of six levels. For each page, in Chromium with a warm cache: first byte, first paint, completion, CPU of the
server; the floor is a page of text from the same server. Then actions on the page Topics, memory, and idle CPU. No
engine runs: figures that only its job has are missing. Target: first paint below 300 ms, also with a million topics.
Lists: 20,000 pending deliveries; the whole page at the first request and at 40 further ones. Target: 200 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import requests

from arborcast.core.eventlog.topics import ensure_topics
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.attempts import AttemptsLog
from arborcast.dispatch.logs.parked import Delivery, ParkingLog, Place, Tries
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.records.control import SubscriptionRecord, TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from benchmarks.report import Report, Table, cpu_s, run
from benchmarks.rig import started_broker
from tests.support.broker import settings_for
from tests.support.chromium import provision
from tests.support.console_process import running_console
from tests.support.make import subscription
from tests.support.table_rows import attempt

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_CHUNK = 5_000
_WIDE = 100_000
_PENDING = 20_000
_ENDPOINTS = 200
_DEEP = "plant/a1/b2/c3/d4/e5"

# For a slow machine that reads the log.
_PATIENCE_S = 1_200.0

SCREENS = {
    "floor: a page of text": "/static/{version}/console.css",
    "topics": "/topics",
    "topics, one selected": f"/topics?at={_DEEP}",
    "topics, a node with 100,000 children": "/topics?at=wide",
    "topics, search": "/topics?q=e5",
    "subscriptions": "/subscriptions",
    "deliveries: waiting": "/deliveries/waiting",
    "deliveries: dead letters": "/deliveries/dead",
    "queues": "/queues",
    "engine": "/engine",
    "cluster": "/cluster",
    "try": "/try",
}


class Visit(NamedTuple):
    """One page, in milliseconds."""

    first_byte: float
    painted: float
    complete: float


def measure(report: Report) -> None:
    with started_broker() as (broker, folder):
        _lists(report, settings_for(broker), folder / "lists")
        if report.options.lists:
            return
        for topics in (20_000,) if report.quick else (100_000, 1_000_000):
            _measure(report, settings_for(broker), topics, folder / str(topics))


def _lists(report: Report, kafka: KafkaSettings, home: Path) -> None:
    ensure_topics(kafka)
    now_ms = int(time.time() * 1_000)
    with closing(ControlLog(kafka)) as log:
        log.ensure_created()
        log.append([SubscriptionRecord(subscription(f"s{number}", "a//.")) for number in range(_ENDPOINTS)])
    with closing(ParkingLog(kafka)) as parking, closing(AttemptsLog(kafka)) as rows:
        rows.connect()
        for number in range(_PENDING):
            name, decided_ms = f"{number:032x}", now_ms - 3_600_000 + number
            message = Notification(name, TopicPath(f"a/t{number % 50}"), b"<x/>" * 250, decided_ms)
            to, tries = f"s{number % _ENDPOINTS}", Tries(1, 1, now_ms + 3_600_000, decided_ms)
            parking.park(Delivery(to, Place(1, 0, number)), message, tries)
            rows.add(attempt(name, to, "parked", topic=message.topic, accepted_ms=decided_ms, started_ms=decided_ms))
        parking.settle(120.0)
        rows.settle(120.0)
    home.mkdir()
    with (
        running_console(home, kafka) as (url, process),
        report.table(
            f"Lists, {_PENDING:,} pending deliveries", "page", "first ms", "p50 ms", "p95 ms", "CPU ms"
        ) as table,
    ):
        for path in ("/deliveries/waiting", "/deliveries/waiting?topic=a/t7", "/subscriptions", "/subscriptions/s7"):
            taken = []
            before = cpu_s(process)
            for _ in range(41):
                begun = time.perf_counter()
                requests.get(url + path, timeout=600).raise_for_status()
                taken.append((time.perf_counter() - begun) * 1_000)
                time.sleep(1.1)  # pages are cached for a second
            cpu_ms = (cpu_s(process) - before) / len(taken) * 1_000
            table.add(path, taken[0], statistics.median(taken[1:]), sorted(taken[1:])[37], cpu_ms)


def _paths(topics: int) -> Iterator[TopicPath]:
    """Half of them, at most `_WIDE`, below one node; the others in a tree of six levels, ten nodes wide."""
    wide = min(_WIDE, topics // 2)
    for number in range(wide):
        yield TopicPath(f"wide/t{number:06}")
    for number in range(topics - wide):
        digits = f"{number:06}"
        yield TopicPath(
            "/".join(["plant", *(f"{level}{digit}" for level, digit in zip("abcdef", digits, strict=True))])
        )


def _measure(report: Report, kafka: KafkaSettings, topics: int, home: Path) -> None:
    with closing(ControlLog(kafka)) as log:
        log.ensure_created()
        log.append([TopicRecord(TopicPath(_DEEP))])
        paths = _paths(topics)
        while some := [TopicRecord(path) for path in islice(paths, _CHUNK)]:
            log.append(some)
    home.mkdir()
    began = time.monotonic()
    with running_console(home, kafka, timeout_s=_PATIENCE_S) as (url, process):
        _pages(report, url, process, topics, time.monotonic() - began)


def _pages(report: Report, url: str, process: psutil.Process, topics: int, ready_s: float) -> None:
    with _browser() as browser:
        context = browser.new_context()
        context.set_default_timeout(_PATIENCE_S * 1_000)
        page = context.new_page()
        page.goto(f"{url}/topics")
        version = page.evaluate("document.querySelector('link[rel=stylesheet]').href").split("/")[-2]
        visits = 3 if report.quick else 9
        columns = ("screen", "first byte ms", "first paint ms", "p50", "complete ms", "CPU ms", "paint, of floor")
        note = "first byte and paint: the fastest visit; p50: the median paint; complete: the slowest visit"
        with report.table(f"Screens, {topics:,} topics", *columns, note=note) as table:
            floor = 0.0
            for name, path in SCREENS.items():
                before = cpu_s(process)
                seen = [_visit(page, url + path.format(version=version)) for _ in range(visits)]
                cpu_ms = (cpu_s(process) - before) / visits * 1_000
                painted = [each.painted for each in seen]
                floor = floor or min(painted)
                first_byte, complete = min(each.first_byte for each in seen), max(each.complete for each in seen)
                median = statistics.median(painted)
                table.add(name, first_byte, min(painted), median, complete, cpu_ms, min(painted) / floor)
        with report.table(f"Actions, {topics:,} topics", "action", "figure") as table:
            _actions(table, page, url, process, report.quick)
            table.add("reading the log, seconds", ready_s)
            table.add("memory (PSS), MiB", process.memory_full_info().pss / 2**20)
            table.add("CPU without a page, % of a core", _idle(process, report.quick))
            # Of ten people: one browser has six connections to a server at most.
            for _ in range(10):
                browser.new_context().new_page().goto(f"{url}/topics")
            table.add("CPU with ten open pages, % of a core", _idle(process, report.quick))
        context.close()


def _actions(table: Table, page: Page, url: str, process: psutil.Process, quick: bool) -> None:
    """On the page Topics, from the click to the paint."""
    times = 3 if quick else 7

    def timed(name: str, prepare: Callable[[], Any], act: str, shown: str) -> None:
        taken = []
        for _ in range(times):
            prepare()
            taken.append(page.evaluate(_TIMED, [act, shown]))
        table.add(f"{name}, ms", statistics.median(taken))

    def open_topics() -> None:
        page.goto(f"{url}/topics")
        page.locator("li[data-path='wide']").wait_for()

    timed("unfolding 100,000 children", open_topics, "li[data-path='wide'] .toggle", "li[data-path='wide'] ul li")
    timed("unfolding ten children", open_topics, "li[data-path='plant'] .toggle", "li[data-path='plant'] ul li")
    timed("selecting a node", open_topics, "li[data-path='plant'] .name", "#detail dl")

    def unfolded() -> None:
        page.goto(f"{url}/topics?at=wide")
        page.locator("a[data-more]").wait_for()

    timed("200 more of 100,000", unfolded, "a[data-more]", "li[data-path='wide'] ul li:nth-child(202)")
    for what, text in (("one hit", "t009999"), ("no hit", "nowhere-at-all"), ("many hits", "e5")):
        taken, cpu = [], cpu_s(process)
        for _ in range(times):
            begun = time.perf_counter()
            requests.get(f"{url}/topics", params={"q": text}, timeout=120).raise_for_status()
            taken.append(time.perf_counter() - begun)
        table.add(f"a search with {what}, ms", statistics.median(taken) * 1_000)
        table.add(f"a search with {what}, CPU ms", round((cpu_s(process) - cpu) / times * 1_000, 1))


# Clicks, and waits until the result is painted.
_TIMED = """async ([act, shown]) => {
  const begun = performance.now();
  document.querySelector(act).click();
  while (!document.querySelector(shown)) await new Promise((next) => requestAnimationFrame(next));
  await new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
  return performance.now() - begun;
}"""

_SEEN = """() => {
  const page = performance.getEntriesByType("navigation")[0];
  const painted = performance.getEntriesByName("first-contentful-paint")[0];
  return painted && page.loadEventEnd ? [page.responseStart, painted.startTime, page.responseEnd] : null;
}"""


def _visit(page: Page, address: str) -> Visit:
    page.goto("about:blank")
    page.goto(address)
    return Visit(*page.wait_for_function(_SEEN).json_value())


def _idle(process: psutil.Process, quick: bool) -> float:
    time.sleep(2)
    begun, before = time.monotonic(), cpu_s(process)
    time.sleep(3 if quick else 15)
    return round((cpu_s(process) - before) / (time.monotonic() - begun) * 100, 2)


@contextmanager
def _browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    install = provision(lambda line: None)
    # Its driver starts in our environment, and may need the same libraries.
    os.environ.update(install.environment)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=install.executable,
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            env=dict(install.environment),
        )
        yield browser
        browser.close()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lists", action="store_true", help="only lists of deliveries")


if __name__ == "__main__":
    run(measure, _options)
