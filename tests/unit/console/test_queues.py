"""The screen Queues."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from arborcast.admin import queues
from arborcast.admin.queues import JobFigures, QueueRequests, QueueStatus, ServerStatus
from arborcast.console.pages import _moment
from arborcast.core.errors import InfrastructureError
from arborcast.topic_model.records.control import SubscriptionSuspended
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, ConsoleParts, console_parts
from tests.support.console_answers import ANSWERS, INSPECTIONS, JOB, QUEUE_RECORDS, REQUESTS, answering

EVIL = "<img src=x onerror=alert(1)>"

ONE = f"/queues?queue={INSPECTIONS}"

AWAY = JobFigures(problem="connection refused")


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    return console_parts(tmp_path, QUEUE_RECORDS)


def rows(browser: Browser, number: int = 1) -> list[str]:
    found = browser.page.xpath(f"(//table)[{number}]/tbody/tr")
    return [" ".join(" ".join(each.xpath(".//text()")).split()) for each in found]


def test_what_waits_longest_comes_first(browser: Browser, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch)
    assert browser.get("/queues").status_code == 200
    assert rows(browser) == [
        "{urn:plant}plant/inspections 3 1 min 14 s 2 2 of 3",
        "reports 1 5.0 s 0 no workers",
        "labels 0 - 0 2 of 3",
    ]
    assert [question for question, _ in asked] == [queues.job_figures]
    browser.get(browser.page.xpath("//td/a/@href")[0])
    assert asked[-1] == (queues.requests, (INSPECTIONS, 100, parts.console.questions.views))


def test_one_queue_with_its_servers_and_requests(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch)
    browser.get(ONE)
    assert [each.partition("inspect ")[2] for each in rows(browser)] == [
        "active 1 12 s",
        "active 2 3.1 s",
        "paused 1 idle",
    ]
    assert (
        rows(browser, 2)[0]
        == f"{_moment(REQUESTS[0].accepted_ms)} {REQUESTS[0].notification} 50 1 after earlier messages"
    )
    assert "Pending 3, the oldest for 1 min 14 s In progress 2 Duplicates merged" in browser.text
    assert "And 4 more" in browser.text


def test_a_job_that_is_away_is_said_and_what_the_logs_know_is_shown(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, {**ANSWERS, queues.job_figures: AWAY})
    for page in ("/queues", ONE):
        browser.get(page)
        assert "the dispatch job does not respond" in browser.text
    assert "idle" not in browser.text
    assert "at work for" not in rows(browser)[0]
    assert len(rows(browser, 2)) == len(REQUESTS)


def test_servers_that_get_nothing_are_no_servers(
    parts: ConsoleParts, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch)
    for name in ("s7", "s8"):
        parts.put(SubscriptionSuspended(name, "connection refused", since_ms=1, at_ms=2))
    browser.get("/queues")
    assert rows(browser)[0] == "{urn:plant}plant/inspections 3 1 min 14 s 2 none of 3 active"
    assert "none of 3 active" in browser.page.xpath("//span[@class='badge bad']/text()")
    browser.get(ONE)
    assert "none is active" in browser.text


def test_a_page_without_workers_a_log_or_a_queue_says_so(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, {**ANSWERS, queues.requests: QueueRequests()})
    browser.get("/queues?queue=reports")
    assert "No workers" in browser.text
    assert "No requests" in browser.text
    browser.get("/queues?queue=a//.")
    assert "names more than one topic" in browser.page.xpath("//p[@class='refusal']/text()")[0]
    without = Browser(console_parts(tmp_path / "without").app)
    without.get("/queues")
    assert "A work queue hands each request to one idle worker" in without.text
    answering(monkeypatch, {**ANSWERS, queues.requests: InfrastructureError(f"no: {EVIL}")})
    assert browser.get(ONE).status_code == 200
    assert browser.page.xpath("//p[@class='refusal']/text()") == [f"no: {EVIL}"]


def test_pages_are_bounded_and_what_strangers_wrote_does_nothing(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ServerStatus(EVIL, f"http://u:secret@one/{EVIL}", 1, "active", 90_000.0)
    hostile = QueueStatus(TopicPath(f"{{{EVIL}\u202e}}q"), True, 3, 2, 74.2, (server,) * 1_000)
    request = msgspec.structs.replace(REQUESTS[0], notification=EVIL)
    answering(monkeypatch, {queues.job_figures: JOB, queues.requests: QueueRequests((request,))})
    monkeypatch.setattr(queues, "queues", lambda *_: [hostile] * 1_000)
    monkeypatch.setattr(queues, "queue", lambda *_: hostile)
    for page in ("/queues", ONE):
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
        parts = console_parts(tmp_path, settings={"metrics__job_port": port})
        Browser(parts.app).get("/queues")
        assert asked[-1] == (queues.job_figures, (parts.console.settings.home, url))
