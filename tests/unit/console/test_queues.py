"""The screen Queues: what `arborcast queues` prints, as pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arborcast.console.commands import CommandFailed
from tests.support.console import Browser, console_parts
from tests.support.console_answers import QUEUE, REQUESTS, answering

EVIL = "<img src=x onerror=alert(1)>"

ONE = "/queues?queue={urn:plant}plant/inspections"

LIST, SHOW = ("queues", "list"), ("queues", "show")


def rows(browser: Browser, number: int = 1) -> list[str]:
    found = browser.page.xpath(f"(//table)[{number}]/tbody/tr")
    return [" ".join(" ".join(each.xpath(".//text()")).split()) for each in found]


def test_what_waits_longest_comes_first(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch)
    assert browser.get("/queues").status_code == 200
    assert rows(browser) == [
        "{urn:plant}plant/inspections 3 1 min 14 s 2 3",
        "reports 1 5.0 s 0 nobody serves it",
        "labels 0 - 0 3",
    ]
    assert [words for words, _ in asked] == [LIST]
    browser.get(browser.page.xpath("//td/a/@href")[0])
    assert asked[-1][0] == SHOW
    assert asked[-1][1]["given"] == "{urn:plant}plant/inspections"


def test_one_queue_with_its_servers_and_requests(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch)
    browser.get(ONE)
    assert [each.partition("inspect ")[2] for each in rows(browser)] == [
        "active 1 12 s",
        "active 2 3.1 s",
        "paused 1 idle",
    ]
    assert rows(browser, 2)[0] == f"2026-01-01 11:20:10 {REQUESTS[0]['notification']} 50 1 in its turn"
    assert "Waiting 3, the oldest for 1 min 14 s Being done 2 Equal requests are done once" in browser.text
    assert "And 4 more" in browser.text


def test_a_job_that_is_away_is_said_and_what_the_logs_know_is_shown(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {**QUEUE, "waiting": None, "executing": None, "oldest_s": None}
    away["servers"] = [{**each, "busy_s": None} for each in QUEUE["servers"]]
    answering(monkeypatch, {LIST: [away], SHOW: {**away, "requests": REQUESTS, "more": 0}})
    for page in ("/queues", ONE):
        browser.get(page)
        assert "the dispatch job does not answer" in browser.text
    assert "idle" not in browser.text
    assert "at work for" not in rows(browser)[0]
    assert len(rows(browser, 2)) == len(REQUESTS)


def test_without_queues_it_says_what_they_are_for(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {LIST: []})
    browser.get("/queues")
    assert "Of several servers one gets each request" in browser.text


def test_nobody_serves_it_and_nothing_waits(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {SHOW: {**QUEUE, "waiting": 0, "servers": [], "requests": [], "more": 0}})
    browser.get(ONE)
    assert "Nobody serves this queue" in browser.text
    assert "Nothing waits" in browser.text


@pytest.mark.parametrize("page", ["/queues", ONE])
def test_the_refusal_of_the_command_is_said(browser: Browser, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    refused = CommandFailed(f"no: {EVIL}")
    answering(monkeypatch, {LIST: refused, SHOW: refused})
    assert browser.get(page).status_code == 200
    assert browser.page.xpath("//p[@class='refusal']/text()") == [str(refused)]
    assert "No topic is a work queue" not in browser.text


def hostile(count: int) -> dict[str, Any]:
    server = {"subscription": EVIL, "endpoint": f"http://u:secret@one/{EVIL}", "capacity": 1, "state": EVIL}
    return {
        **QUEUE,
        "queue": f"{{{EVIL}\u202e}}q",
        "servers": [{**server, "busy_s": 90_000.0}] * count,
        "requests": [{**REQUESTS[0], "notification": EVIL, "next": EVIL}],
        "more": 0,
    }


def test_pages_are_bounded_and_what_strangers_wrote_does_nothing(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, {LIST: [hostile(1)] * 1_000, SHOW: hostile(1_000)})
    for page in ("/queues", f"/queues?queue={EVIL}"):
        answer = browser.get(page)
        assert answer.status_code == 200
        assert "And 800 more" in browser.text
        assert len(rows(browser)) == 200
        assert len(answer.content) < 200_000
        main = answer.text.partition("<main")[2]
        assert "<img" not in main
        assert "\u202e" not in main
        assert "secret" not in main
    assert "1 d 1 h" in browser.text


def test_the_job_is_asked_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch)
    for port, url in ((0, ""), (9465, "http://127.0.0.1:9465")):
        Browser(console_parts(tmp_path, settings={"metrics__job_port": port}).app).get("/queues")
        assert asked[-1][1]["url"] == url
