"""The screen Try: publications, received messages, and cleanup when the page is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from starlette.requests import Request

from arborcast.admin.messages import Busiest
from arborcast.client import Credentials
from arborcast.client.received import read_push
from arborcast.console.guard import Principal
from arborcast.console.screens import trying
from arborcast.console.screens.trying import broker, watching
from arborcast.console.screens.trying.watching import _arrived, arrivals
from arborcast.core.errors import InfrastructureError
from arborcast.dispatch.hot.sink_journal import stored_element
from arborcast.topic_model.expressions import parse_friendly
from arborcast.topic_model.namespaces import SOAP11, WSNT
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, ConsoleParts, console_parts
from tests.support.gateway_parts import START, GatewayParts
from tests.support.guarded_gateway import Clock, guarded
from tests.support.receiver import refusing_url
from tests.support.routing import make_subscription
from tests.support.served_app import served_url

HOSTILE = "<reading><script>alert(1)</script></reading>"


@pytest.fixture
def gateway() -> GatewayParts:
    return GatewayParts()


@pytest.fixture
def url(gateway: GatewayParts) -> Iterator[str]:
    with served_url(gateway) as url:
        yield url


@pytest.fixture
def parts(tmp_path: Path, url: str) -> ConsoleParts:
    return console_parts(tmp_path, settings={"gateway__public_url": url})


def test_a_message_is_published(tmp_path: Path, gateway: GatewayParts, browser: Browser) -> None:
    assert browser.at("/try?topic=plant/press").submit("/try", payload=HOSTILE).status_code == 200
    assert browser.page.xpath("//textarea")[0].text.strip() == HOSTILE, "the form is unchanged"
    assert f"accepted {gateway.notifications.accepted[0].id}" in browser.text
    browser.submit("/try", topic="{urn:x?y}a/ä", payload='{"a": 1}')
    made = [(each.topic, each.payload) for each in gateway.notifications.accepted]
    assert made[0] == ("plant/press", HOSTILE.encode())
    assert made[1][0] == "{urn:x?y}a/ä"
    gateway.notifications.error = InfrastructureError("no room for <b>a</b>")
    browser.submit("/try", topic="a", payload="<a/>")
    assert "no room for <b>a</b>" in browser.text
    with refusing_url() as away:
        browser = Browser(console_parts(tmp_path / "other", settings={"gateway__public_url": away}).app)
        browser.at("/try").submit("/try", topic="a", payload="<a/>")
    assert "no answer from" in browser.text


def test_other_pages_do_not_wait_for_the_gateway(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "publish", lambda *_: threading.current_thread().name)
    browser.at("/try").submit("/try", topic="a", payload="<a/>")
    assert "accepted try" in browser.text, "not in a thread of the default executor, which all pages use"


@pytest.mark.parametrize(
    ("topic", "payload", "said"),
    [
        ("plant//.", "<a/>", "exactly one"),
        ("a/<b>", "<a/>", "position"),
        ("code:1.2", "<a/>", "code"),
        ("a", "not xml", "neither XML, which begins with <, nor JSON"),
    ],
)
def test_invalid_topics_and_messages(
    gateway: GatewayParts, browser: Browser, topic: str, payload: str, said: str
) -> None:
    assert browser.at("/try").submit("/try", topic=topic, payload=payload).status_code == 400
    assert said in browser.text
    assert browser.page.get_element_by_id("topic").get("value") == topic
    assert gateway.notifications.accepted == []


def test_credentials_are_on_no_page(tmp_path: Path) -> None:
    gateway = guarded(tmp_path, Clock())
    with served_url(gateway) as url:
        parts = console_parts(tmp_path, settings={"gateway__public_url": url, "access__methods": "basic"})
        browser, other = Browser(parts.app), Browser(parts.app)
        browser.at("/try?topic={urn:t}a").submit("/try", payload="<a/>")
        assert "authentication is required" in browser.text
        browser.submit("/try/credentials", name="anna", password="pa")  # noqa: S106  # of a test user
        assert "As anna" in browser.text
        assert 'value="pa"' not in browser.answer.text
        browser.submit("/try", topic="{urn:t}a", payload="<a/>")
        assert len(gateway.notifications.accepted) == 1
        assert "anna" not in other.get("/try").text
        browser.at("/try").submit("/try/credentials")
        browser.submit("/try", topic="{urn:t}a", payload="<a/>")
        assert len(gateway.notifications.accepted) == 1


def test_a_watching_page_subscribes(browser: Browser) -> None:
    assert "position" in browser.at("/try?watch=plant//.%26x").text, "an invalid expression"
    (element,) = browser.at("/try?watch={urn:x%26y}a//.").page.xpath("//*[@id='try-arrived']")
    assert element.get("data-live") == "/try/live?watch=%7Burn%3Ax%26y%7Da//."


def test_the_busiest_topics(tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "busiest", lambda *_: Busiest([("{urn:<x>}a", 12), ("b", 3)], 15, 1_767_225_600_000))
    browser.get("/try")
    assert "{urn:<x>}a 12" in browser.text
    assert "the newest 15 notifications" in browser.text
    monkeypatch.setattr(trying, "busiest", Mock(side_effect=InfrastructureError("Kafka is away", 1.0)))
    other = Browser(console_parts(tmp_path / "other").app)
    assert other.get("/try").status_code == 200
    assert "No messages yet" not in other.text
    assert "Not known Kafka is away" in other.text


def test_a_subscription_ends_with_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, parts = guarded(tmp_path, Clock()), console_parts(tmp_path)
    element = stored_element(Notification("01a2", TopicPath("a"), HOSTILE.encode(), 0), make_subscription("s", "a"))

    async def watched(url: str, password: str, steps: int, most: int = 1) -> list[str]:
        """The parts of a page that watches, until it is closed."""
        monkeypatch.setattr(watching, "_WATCHERS", most)
        query = {"type": "http", "headers": [], "query_string": b"watch=plant//."}
        request = Request({**query, "state": {"principal": Principal("s", "t")}})
        wanted = parse_friendly("p:a//.", {"p": "urn:t"})
        stream = arrivals(parts.console, request, url, Credentials("anna", password), wanted)
        found = []
        for _ in range(steps):
            found.append((await anext(stream)).html)
            monkeypatch.setattr(watching, "_WATCHERS", 0)  # a page that has its subscription keeps it
            for subscription in gateway.table.subscriptions():
                assert subscription.selector() == "{urn:t}a//."
                assert subscription.terminates_ms
                # Twice gateway.pull_subscription_s after a wait of five seconds.
                assert subscription.terminates_ms <= START.timestamp() * 1000 + 125_000, "an abandoned one expires"
                await gateway.pull_log.commit([(subscription.id, StoredMessage(element))])
        await stream.aclose()
        return found

    with served_url(gateway) as url:
        (refused,) = asyncio.run(watched(url, "wrong", 1))
        shown = asyncio.run(watched(url, "pa", 3))
        assert not list(gateway.table.subscriptions())
        (too_many,) = asyncio.run(watched(url, "pa", 1, most=0))
    for number, html in enumerate(shown):
        assert "plant//." in html
        assert f"{number} arrived" in html
        assert "watchers already" not in html
    assert "&lt;script&gt;" in shown[1]
    assert "<script>" not in shown[1]
    assert "the credentials are wrong" in refused
    assert "0 watchers already" in too_many


def test_messages_of_one_pull_have_their_own_ids_and_times() -> None:
    times = [datetime(2026, 1, 2, 3, 4, 5, 678_000).astimezone(), datetime(2026, 1, 2, 3, 4, 6, 5_000).astimezone()]
    names = [f"{round(each.timestamp() * 1000):012x}7b000b00000000000000" for each in times]
    made = [Notification(name, TopicPath("a"), b"<x/>", 0) for name in names]
    stored = b"".join(stored_element(each, make_subscription("s", "a")) for each in made).decode()
    body = (
        f'<e:Envelope xmlns:e="{SOAP11}"><e:Body><w:Notify xmlns:w="{WSNT}">{stored}</w:Notify></e:Body></e:Envelope>'
    )
    arrived = [_arrived(each) for each in read_push(body.encode(), b"text/xml; charset=utf-8")]
    assert [each.id for each in arrived] == names
    assert [each.at for each in arrived] == ["03:04:05.678", "03:04:06.005"]
