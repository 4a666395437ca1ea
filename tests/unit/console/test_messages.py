"""The search of payloads in the screen Deliveries."""

from __future__ import annotations

import pytest

from arborcast.admin import messages
from arborcast.admin.filters import TopicTest
from arborcast.admin.messages import MessageSearch
from arborcast.core.errors import ConfigError
from tests.support.console import Browser, ConsoleParts
from tests.support.console_answers import PARKED, answering


def test_a_search_shows_the_messages_and_continues(
    parts: ConsoleParts, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch)
    browser.get("/deliveries/messages")
    assert asked == [], "on request only"
    browser.get("/deliveries/messages?text=hot&topic=a//.&since=2h&until=1h")
    wanted = MessageSearch("hot", TopicTest("a//."), "2h", "1h")
    assert asked == [(messages.search, (wanted, parts.control))]
    assert "<hot>xxx" in browser.text
    assert "1,204 messages of 5.0 MiB searched." in browser.text
    assert browser.page.xpath("//tbody//a/@href")[1] == f"/deliveries?notification={PARKED.notification}"
    (onward,) = browser.page.xpath("//a[.='Continue the search']/@href")
    browser.get(onward)
    assert asked[1] == (messages.search, (wanted._replace(after="120.98"), parts.control))


def test_a_wrong_time_is_shown(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {messages.search: ConfigError("since: yesterday is no time")})
    assert browser.get("/deliveries/messages?since=yesterday").status_code == 200
    assert "since: yesterday is no time" in browser.text
