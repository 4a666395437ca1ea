"""The screen Overview, and the health of the engine in the header of each page."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from arborcast.admin import waiting
from arborcast.console.health import EndpointsHealth
from arborcast.engine.monitoring.samples import MetricsSample
from arborcast.engine.monitoring.watching import EngineView
from arborcast.topic_model.records.control import (
    Erasure,
    ErasureScope,
    SubscriptionRecord,
    SubscriptionSuspended,
    TopicPolicy,
    TopicRecord,
)
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, ConsoleParts
from tests.support.console_answers import Answering
from tests.support.routing import make_subscription

Engine = Callable[..., None]


@pytest.fixture
def engine(parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Set the console's view of the engine."""

    def viewed(**changes: Any) -> None:
        now = time.time()
        samples = [MetricsSample(at=now - 5 * number, parts={"kafka": True}, mode="realtime") for number in (2, 1, 0)]
        view = EngineView(**{"samples": samples, "failing": [], **changes})
        monkeypatch.setattr(parts.console.health, "_view", lambda: view)
        monkeypatch.setattr(parts.console.health, "_looked", 0.0)

    return viewed


def down(name: str = "http://one.example/in", failed: int = 10) -> dict[str, Any]:
    return {"endpoint": name, "pushes": 10, "failed": failed, "mean_s": 0.01, "longest": 0.02, "breaker": "closed"}


def chip(browser: Browser) -> tuple[str, str]:
    (found,) = browser.page.xpath("//header//div[@id='health']/a")
    return found.get("class"), found.text


def test_a_healthy_engine(browser: Browser, engine: Engine) -> None:
    engine()
    browser.get("/")
    assert "All is well." in browser.text
    assert "Needs attention" not in browser.text
    assert "No failed pushes in the last 5 min." in browser.text
    assert chip(browser.at("/try")) == ("badge good", "healthy")


def test_an_outage_of_kafka_is_a_problem_on_every_page(parts: ConsoleParts, browser: Browser, engine: Engine) -> None:
    engine()
    parts.trouble = "Kafka is not responding."
    assert chip(browser.at("/topics")) == ("badge bad", "1 problem")
    assert "Kafka does not respond." in browser.at("/").text


def test_concerns_are_listed_worst_first_with_a_link(parts: ConsoleParts, browser: Browser, engine: Engine) -> None:
    parts.put(
        SubscriptionRecord(make_subscription("s1", "a//.", consumer="http://one.example/in")),
        SubscriptionRecord(make_subscription("s2", "a//.", consumer="http://two.example/in")),
        TopicRecord(TopicPath("jobs"), policy=TopicPolicy(queue=True)),
    )
    engine(failing=[down()], failing_count=1)
    browser.get("/")
    assert "1 endpoint failing. The work queue jobs has no active worker." in browser.text
    words = browser.page.xpath("//ul[@class='concerns']/li/span[@class='badge bad' or @class='badge warn']/text()")
    assert words == ["problem", "warning"]
    (link, *_) = browser.page.xpath("//ul[@class='concerns']//a/@href")
    browser.get(link)
    assert [each.text for each in browser.page.xpath("//form//td/a")] == ["http://one.example/in"]
    assert [each.text for each in browser.page.xpath("//form//td/span[contains(@class, 'bad')]")] == ["failing"]
    assert chip(browser) == ("badge bad", "1 problem")


def test_a_failing_endpoint_is_probed_from_its_row(browser: Browser, engine: Engine, answering: Answering) -> None:
    asked = answering({waiting.probe: None})
    engine(failing=[down("http://u:secret@two.example/"), down()], failing_count=2)
    (button,) = browser.at("/").page.xpath("//main//button[@value='probe']/@aria-label")
    assert button == "Probe http://one.example/in now", "the other one's password is not in the page"
    browser.submit("/deliveries/waiting/act", action="probe")
    assert [(function, values[0]) for function, values in asked] == [(waiting.probe, "http://one.example/in")]
    assert "Probe requested." in browser.answer.text
    assert browser.page.findtext("head/title") == "Overview · Arborcast"


def test_an_erasure_longer_than_six_hours(parts: ConsoleParts, browser: Browser, engine: Engine) -> None:
    engine()
    now_ms = int(time.time() * 1000)
    long_ago, done = now_ms - 7 * 3_600_000, now_ms - 1
    for name, at_ms, done_ms in (("new", now_ms, 0), ("old", long_ago, 0), ("done", long_ago, done)):
        parts.put(Erasure(ErasureScope(name, at_ms), "anna", at_ms, done_ms=done_ms))
    browser.get("/")
    assert "1 erasure not done after six hours." in browser.text
    assert browser.page.xpath("//ul[@class='concerns']//a/@href") == ["/deliveries/erasures"]


def test_old_figures_are_marked_on_every_tile(parts: ConsoleParts, browser: Browser, engine: Engine) -> None:
    old = [MetricsSample(at=time.time() - 60, parts={"kafka": True})]
    engine(samples=old, problem="no answer in time", failing=None)
    browser.get("/")
    assert "The engine's state is unknown: no answer in time." in browser.text
    assert browser.page.xpath("//dl[@class='tiles wide stale']")
    assert "they are not current" in browser.text
    assert "Not known: the dispatch job does not respond." in browser.text
    assert not browser.page.xpath("//main//*[contains(@class, 'good')]")


def test_the_health_of_endpoints_in_the_list(parts: ConsoleParts, browser: Browser, engine: Engine) -> None:
    made = [make_subscription(f"s{number}", "a", consumer=f"http://{number}.example/in") for number in range(4)]
    parts.put(*map(SubscriptionRecord, made))
    open_breaker = down("http://2.example/in", 0) | {"breaker": "open"}
    some = down("http://3.example/in", 1)
    engine(failing=[down("http://1.example/in"), open_breaker, some], failing_count=3)
    rows = browser.at("/subscriptions").page.xpath("//form//tbody/tr")
    shown = [
        (row.xpath("string(td/a)"), row.xpath("string(td/span/@class)"), row.xpath("string(td/span)")) for row in rows
    ]
    assert shown == [
        ("http://1.example/in", "badge bad", "failing"),
        ("http://2.example/in", "badge bad", "failing"),
        ("http://0.example/in", "badge good", "active"),
        ("http://3.example/in", "badge warn", "degraded"),
    ]
    assert browser.at("/subscriptions?state=degraded").page.xpath("//form//td/a/text()") == ["http://3.example/in"]
    health = EndpointsHealth(EngineView(failing=[down()], failing_count=2))
    assert health.word("http://one.example/in") == "failing"
    assert health.word("http://other.example/") == "unknown", "the failing one that is not listed may be this one"
    engine(failing=None)
    browser = Browser(parts.app)
    browser.get("/subscriptions")
    assert not browser.page.xpath("//form//span[contains(@class, 'good')]")
    assert "The health of endpoints is not known: the dispatch job does not respond." in browser.text


def test_a_subscription_is_resumed_from_its_row(parts: ConsoleParts, browser: Browser, engine: Engine) -> None:
    engine()
    assert "Suspended subscriptions" not in browser.at("/").text
    made = [make_subscription(f"s{number}", "a//.", consumer=f"http://{number}.example/in") for number in range(12)]
    parts.put(*map(SubscriptionRecord, made))
    parts.put(
        *(SubscriptionSuspended(each.id, "HTTP 503", since_ms=1, at_ms=number) for number, each in enumerate(made))
    )
    rows = browser.at("/").page.xpath("//section[.//h2='Suspended subscriptions']//tbody/tr")
    assert len(rows) == 10, "the newest"
    assert [each.text_content() for each in rows[0][2:]] == ["HTTP 503", "Resume"]
    assert "The newest of 12." in browser.text
    browser.submit("/subscriptions/act", action="resume")
    assert "s11" not in parts.control.suspensions
    assert (len(parts.control.suspensions), browser.page.findtext("head/title")) == (11, "Overview · Arborcast")
    assert "1 subscription resumed." in browser.answer.text
