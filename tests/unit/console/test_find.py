"""The search of the header."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.topic_model.records.control import SubscriptionRecord, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, ConsoleParts, console_parts
from tests.support.routing import make_subscription


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    made = make_subscription("s1", "plant//.", consumer="http://one.example/in")
    return console_parts(tmp_path, [SubscriptionRecord(made), TopicRecord(TopicPath("plant/press"), code="1.4")])


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


def test_of_several_kinds_there_is_a_choice(parts: ConsoleParts, browser: Browser) -> None:
    made = make_subscription("s2", "a", consumer="http://u:secret@press.example/in")
    parts.put(SubscriptionRecord(made))
    browser.get("/find?q=press")
    links = browser.page.xpath("//main//li/a")
    assert [(" ".join(each.text_content().split()), each.get("href")) for each in links] == [
        ("Endpoint http://…@press.example/in", "/subscriptions/s2"),
        ("Topic plant/press", "/topics?at=plant%2Fpress"),
    ]
    assert "secret" not in browser.answer.text


@pytest.mark.parametrize(
    ("text", "urls"),
    [("press", ["/topics?at=plant%2Fpress"]), ("s1", ["/subscriptions/s1"]), ("nowhere", []), ("a||//", [])],
)
def test_a_choice_for_the_field_is_a_part_of_a_page(browser: Browser, text: str, urls: list[str]) -> None:
    browser.get(f"/find?q={text}", x_fragment="1")
    assert browser.page.xpath("//li/a/@href") == urls
    assert not browser.page.xpath("//title")
