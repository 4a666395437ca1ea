"""Changes by visitors, the search of the header, and what pages have for keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.console.activity import Activity, ActivityLog
from arborcast.topic_model.records.control import SubscriptionRecord, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, ConsoleParts, console_parts
from tests.support.routing import make_subscription


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    made = make_subscription("s1", "plant//.", consumer="http://one.example/in")
    return console_parts(tmp_path, [SubscriptionRecord(made), TopicRecord(TopicPath("plant/press"), code="1.4")])


def test_a_change_is_listed_with_user_result_and_selection(browser: Browser) -> None:
    browser.get("/activity")
    assert "No changes yet" in browser.text
    browser.get("/subscriptions")
    browser.submit("/subscriptions/act", action="pause", id="s1")
    browser.get("/activity")
    assert "local 1 subscription paused. id=s1" in browser.text


def test_a_page_without_a_change_is_not_listed(browser: Browser) -> None:
    browser.get("/subscriptions")
    browser.post("/subscriptions/act", {"action": "pause", "id": "s1"})
    browser.get("/activity")
    assert "No changes yet" in browser.text


def test_the_log_is_bounded_and_outlives_a_damaged_line(tmp_path: Path) -> None:
    log = ActivityLog(tmp_path)
    for number in range(5_000):
        log.add(Activity(number, "anna", "x" * 1_000))
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 2.1 * 1024 * 1024
    with next(tmp_path.glob("console-activity.jsonl")).open("ab") as stream:
        stream.write(b'{"at_ms": 7')
    assert [each.at_ms for each in log.newest(3)] == [4_999, 4_998]


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("0" * 32, f"/deliveries?notification={'0' * 32}"),
        ("s1", "/subscriptions/s1"),
        ("1.4", "/topics?at=plant%2Fpress"),
        ("plant/press", "/topics?at=plant%2Fpress"),
        ("one.example", "/subscriptions?endpoint=one.example"),
        ("nowhere", "/topics?q=nowhere"),
    ],
)
def test_the_header_finds_ids_endpoints_and_topics(browser: Browser, text: str, url: str) -> None:
    browser.get("/")
    (name,) = browser.page.xpath("//form[@action='/find']/input/@name")
    browser.get(f"/find?{name}={text}")
    assert str(browser.answer.url).endswith(url)
