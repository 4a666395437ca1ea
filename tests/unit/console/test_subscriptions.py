"""The screen Subscriptions."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from arborcast.admin import messages, receiver_page, replay, slo, subscriptions, waiting
from arborcast.admin.replay import PlannedReplay
from arborcast.admin.waiting import WaitingFilter
from arborcast.console.health import EngineHealth
from arborcast.console.pages import _moment
from arborcast.core.errors import InfrastructureError, NotFound
from arborcast.core.security.keyring import KeyFile, add_key
from arborcast.engine.monitoring.watching import EngineView
from arborcast.topic_model.expressions import CONCRETE
from arborcast.topic_model.publishers import Registration
from arborcast.topic_model.records.control import (
    RegistrationRecord,
    SubscriptionRecord,
    SubscriptionSuspended,
    TopicRecord,
    TriggerRecord,
)
from arborcast.topic_model.records.operations import Operator
from arborcast.topic_model.subscriptions import EndpointReference, Protection, SigningSecret, TopicFilter
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, ConsoleParts, console_parts
from tests.support.console_answers import ANSWERS, HOURS, PARKED, Answering, Asked
from tests.support.routing import make_subscription, make_trigger

AT_MS = PARKED.since_ms

SUSPENDED = SubscriptionSuspended("s3", "connection refused", since_ms=1, at_ms=2)


@pytest.fixture(autouse=True)
def asked(answering: Answering) -> Asked:
    return answering()


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    made = [
        make_subscription("s1", "a//.", consumer="http://one.example/in"),
        make_subscription("s2", "b", consumer="http://two.example/in", paused=True),
        make_subscription("s3", "a/x", consumer="http://user:secret@three.example/in?x=<b>"),
    ]
    return console_parts(
        tmp_path, [TopicRecord(TopicPath("a/x"), code="AX"), *map(SubscriptionRecord, made), SUSPENDED]
    )


@pytest.fixture
def browser(parts: ConsoleParts) -> Browser:
    browser = Browser(parts.app)
    browser.get("/subscriptions")
    return browser


def listed(browser: Browser) -> list[str]:
    return [each.rsplit("/", 1)[-1] for each in browser.page.xpath("//form//td/a/@href")]


def test_a_subscription_has_its_backlog_and_last_responses(browser: Browser, parts: ConsoleParts, asked: Asked) -> None:
    browser.get("/subscriptions/s1")
    assert browser.page.findtext("head/title") == "Subscription http://one.example/in · Arborcast"
    since = datetime.fromtimestamp(PARKED.since_ms / 1000).astimezone()
    assert (
        f"Pending 5, the oldest since {since:%Y-%m-%d %H:%M:%S} Last response connect connection refused"
        in browser.text
    )
    assert [each for each in asked if each[0] is not waiting.counts] == [
        (waiting.oldest, (WaitingFilter(subscription="s1"), 1, parts.control, 0, False, parts.console.questions.views)),
        (messages.last_attempts, ("s1",)),
        (slo.attempts, (parts.console.settings, "s1")),
    ]
    assert "50 % delivered since 2026-01-01" in browser.text
    assert "a/b 1 pending retry 20 ms 503 Body <b>no room</b>" in browser.text
    assert browser.page.xpath("//table//td/a/@href")[1] == "/deliveries?notification=n1"
    assert browser.page.xpath("//button[@data-copy='s1']/@aria-label") == ["Copy the id"]


def test_the_attempts_of_a_day_are_bars(browser: Browser, parts: ConsoleParts, answering: Answering) -> None:
    browser.get("/subscriptions/s1")
    bars = [
        (each.findtext("title"), *each.xpath("path[@class='good']/@d"), *each.xpath("path[@class='bad']/@d"))
        for each in browser.page.xpath("//figure[@class='hours']//g")
    ]
    assert bars[-3:] == [
        (f"{_moment(HOURS[-3].at_ms)}: 0 delivered, 0 failed", "M0 40h9v-0.0h-9z", "M0 40.0h9v-0.0h-9z"),
        (f"{_moment(HOURS[-2].at_ms)}: 15 delivered, 4 failed", "M0 40h9v-30.0h-9z", "M0 10.0h9v-8.0h-9z"),
        (f"{_moment(HOURS[-1].at_ms)}: 0 delivered, 0 failed", "M0 40h9v-0.0h-9z", "M0 40.0h9v-0.0h-9z"),
    ]
    assert f"15 delivered, 4 failed since {_moment(HOURS[0].at_ms)}, at most 19 an hour" in browser.text
    assert f"Failed {_moment(HOURS[-2].at_ms)} 15 4 Last attempts" in browser.text
    answering({**ANSWERS, slo.attempts: InfrastructureError("the table cannot be read")})
    parts.console.questions.forget()
    browser.get("/subscriptions/s1")
    assert "the table cannot be read" in browser.text
    assert "Last response" in browser.text
    answering({waiting.oldest: InfrastructureError("no engine runs")})
    parts.console.questions.forget()
    browser.get("/subscriptions/s1")
    assert "no engine runs" in browser.text
    assert "a//." in browser.text


def test_retry_probe_test_and_replay_of_one(browser: Browser, parts: ConsoleParts, answering: Answering) -> None:
    planned = PlannedReplay(cast(Any, None), "s1", cast(Any, None), [(0, 1), (0, 2)], 0, AT_MS)
    answers = {
        waiting.retry: 5,
        waiting.probe: NotFound("no delivery waits"),
        receiver_page.send_test: "01ab",
        replay.plan: planned,
        replay.run: 2,
    }
    asked = answering({**ANSWERS, **answers})
    browser.get("/subscriptions/s3")
    assert "three.example" in browser.answer.text
    assert not browser.shows_hostile("secret", "<b>")
    browser.submit("/deliveries/waiting/act", action="retry-all")
    assert "Attempts of 5 deliveries requested." in browser.answer.text
    assert browser.page.xpath("//p[@class='trail']/code/text()") == ["s3"]
    browser.submit("/deliveries/waiting/act", action="probe")
    assert "No delivery waits for this endpoint" in browser.answer.text
    assert "secret" not in browser.answer.text
    assert "Test 01ab sent." in browser.at("/subscriptions/s1").submit("/subscriptions/act", action="test").text
    browser.submit("/subscriptions/replay", since="2h")
    assert "Replay 2 notifications?" in browser.text
    assert "2 notifications replayed." in browser.submit("/subscriptions/replay").text
    made = dict(asked)
    assert made[waiting.retry][0] == WaitingFilter(subscription="s3")
    assert made[waiting.probe][0] == "http://user:secret@three.example/in?x=<b>"
    by = Operator("console", "without a name, from 127.0.0.1")
    assert made[receiver_page.send_test] == (parts.subscription("s1"), by)
    # Notifications accepted after the confirmation page are excluded.
    assert (made[replay.run][0], made[replay.run][2]) == ("s1", AT_MS)
    assert browser.at("/subscriptions/s1").submit("/subscriptions/act", action="test", id="gone").status_code == 404


def test_the_figures_of_the_list(
    browser: Browser, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch, answering: Answering
) -> None:
    counts = {"s1": waiting.DeliveryCounts(1_200, 0), "s2": waiting.DeliveryCounts(0, 3)}
    asked = answering({waiting.counts: counts})
    figures = {"endpoint": "http://one.example/in", "pushes": 10, "failed": 0, "mean_s": 0.01, "p99_s": 0.25}
    monkeypatch.setattr(EngineHealth, "_view", lambda _self: EngineView(failing=[], pushed=[figures]))
    monkeypatch.setattr(parts.console.health, "_looked", 0.0)
    parts.console.questions.forget()
    browser.get("/subscriptions")
    ((_, (names, views)),) = asked
    assert (set(names), views) == ({"s1", "s2", "s3"}, parts.console.questions.views)
    shown = {
        row.get("data-key"): [cell.text_content().strip() for cell in row.xpath("td[@data-label][position() < last()]")]
        for row in browser.page.xpath("//form//tbody/tr")
    }
    assert shown == {
        "s1": ["100 % of 10", "250 ms", "1,200", "0"],
        "s2": ["-", "-", "0", "3"],
        "s3": ["-", "-", "-", "-"],
    }
    (pending,) = browser.page.xpath("//tr[@data-key='s1']/td[@data-label='Pending']/a/@href")
    assert pending == "/deliveries/waiting?subscription=s1"


def test_pages_of_triggers_publishers_queues_and_formats(parts: ConsoleParts, browser: Browser) -> None:
    parts.put(TriggerRecord(make_trigger("t1", "a//.", "b")))
    parts.put(RegistrationRecord(Registration("r1", "", EndpointReference("http://camera/"), owner="anna")))
    assert browser.at("/triggers").page.xpath("//td/a/@href") == ["/subscriptions/t1", "/topics?at=b"]
    assert "http://camera/ every topic no anna" in browser.at("/publishers").text
    browser.get("/subscriptions/t1")
    assert "Trigger t1" in browser.text
    assert "/topics?at=b" in browser.answer.text
    url = browser.get("/subscriptions/queue:a/x").url
    assert (browser.answer.status_code, url.path, url.params["queue"]) == (200, "/queues", "a/x")
    browser.get("/subscriptions/s1")
    assert "Format notify, SOAP 1.1" in browser.text
    assert "Rotate secret" not in browser.text, "no secret"
    parts.put(SubscriptionRecord(msgspec.structs.replace(parts.subscription("s1"), form="cloudevents-batched")))
    browser.get("/subscriptions/s1")
    assert "Format cloudevents-batched" in browser.text
    assert "SOAP" not in browser.text


def test_the_list_is_live_with_the_success_of_endpoints(
    parts: ConsoleParts, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(_self: EngineHealth) -> EngineView:
        one = {"endpoint": "http://one.example/in", "pushes": 10, "failed": 4, "mean_s": 0.02, "longest": 0.03}
        slow = {**one, "endpoint": "http://user:secret@three.example/in"}
        failing = [{**one, "breaker": "open", "failing_since_ms": AT_MS, "probe_at_ms": AT_MS}]
        return EngineView(failing=failing, endpoints=[slow])

    monkeypatch.setattr(EngineHealth, "look", look)
    browser.get("/subscriptions")
    assert browser.page.xpath("//body/@data-live") == ["/subscriptions/live"]
    assert "60 % of 10" in browser.text
    assert not browser.shows_hostile("secret")
    assert f"failing since {_moment(AT_MS)}, next probe {_moment(AT_MS)}" in browser.text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["s3", "s1", "s2"]),
        ("topic=code:AX", ["s3", "s1"]),
        ("endpoint=TWO.example", ["s2"]),
        ("endpoint=http://…@Three", ["s3"]),
        ("endpoint=http://user", []),
        ("state=suspended&topic=a/x", ["s3"]),
        ("topic=a//*", []),
    ],
)
def test_filters(browser: Browser, query: str, expected: list[str]) -> None:
    assert browser.get(f"/subscriptions?{query}").status_code == 200
    assert listed(browser) == expected
    assert not browser.shows_hostile("secret", "<b>")
    assert ("connection refused" in browser.text) is ("s3" in expected)
    assert bool(browser.page.xpath("//p[@class='refusal']")) is (query == "topic=a//*")


def test_a_page_behind_an_ended_subscription(browser: Browser) -> None:
    browser.get("/subscriptions?after=s1")
    assert (listed(browser), "first page again" in browser.text) == (["s2"], False)
    browser.get("/subscriptions?after=gone")
    assert (listed(browser), "first page again" in browser.text) == (["s3", "s1", "s2"], True)


def test_pausing_resuming_and_ending(parts: ConsoleParts, browser: Browser) -> None:
    browser.submit("/subscriptions/act", id=["s1", "s2", "gone"], action="pause")
    assert "1 subscription paused; 2 unchanged." in browser.answer.text
    assert parts.subscription("s1").paused
    for name in ("s1", "s3"):
        browser.at(f"/subscriptions/{name}").submit("/subscriptions/act", action="resume")
    assert not parts.subscription("s1").paused
    assert "s3" not in parts.control.suspensions
    parts.put(SUSPENDED)
    browser.at("/subscriptions").submit("/subscriptions/act", id=["s1", "s3"], action="end")
    assert "Delete 2 subscriptions?" in browser.text
    assert parts.subscription("s1")
    browser.submit("/subscriptions/act")
    assert [each.id for each in parts.control.table.subscriptions()] == ["s2"]
    assert "s3" not in parts.control.suspensions
    assert listed(browser) == ["s2"]
    assert browser.get("/subscriptions/s1").status_code == 404


def test_filters_stay_after_an_action(browser: Browser) -> None:
    for action in ("pause", "resume"):
        answer = browser.at("/subscriptions?topic=a/x").submit("/subscriptions/act", id=["s1"], action=action)
        assert str(answer.url).endswith("/subscriptions?topic=a/x")
    browser.submit("/subscriptions/act", id=["s1"], action="end")
    answer = browser.submit("/subscriptions/act")
    assert (str(answer.url).endswith("?topic=a/x"), listed(browser)) == (True, ["s3"])
    for elsewhere in ("//evil.example/subscriptions", "/topics", "https://evil.example/"):
        answer = browser.at("/subscriptions").submit("/subscriptions/act", id=["s2"], action="resume", back=elsewhere)
        assert answer.url.path == "/subscriptions/s2"


def test_a_pull_point_and_an_expression_with_a_prefix(
    parts: ConsoleParts, browser: Browser, asked: Asked, answering: Answering
) -> None:
    one = TopicFilter(CONCRETE, "tns:plant//.", "{urn:acme}plant//.", {"tns": "urn:acme"})
    made = make_subscription("s4", "a", consumer="http://b/pull/p1")
    parts.put(SubscriptionRecord(msgspec.structs.replace(made, topics=(one,), pull_point="p1")))
    for page in ("/subscriptions?state=pull+point", "/subscriptions/s4"):
        browser.get(page)
        assert "{urn:acme}plant//." in browser.text
        assert "tns:" not in browser.text
    assert f"In the pull point 2,100 (48,300 bytes), the oldest since {_moment(AT_MS)}; 3 in transit" in browser.text
    assert f"Last fetch of messages {_moment(AT_MS + 9_000)}" in browser.text
    assert (subscriptions.pull_point, (parts.console.settings, "p1")) in asked
    answering({**ANSWERS, subscriptions.pull_point: InfrastructureError("the gateway does not answer")})
    parts.console.questions.forget()
    browser.get("/subscriptions/s4")
    assert "In the pull point not known: the gateway does not answer Pending for the pull point 5" in browser.text
    assert listed(browser.at("/subscriptions?state=pull+point")) == ["s4"]


def test_a_change_without_a_choice_or_kafka(parts: ConsoleParts, browser: Browser) -> None:
    written = len(parts.changes.records)
    assert "Select at least one subscription" in browser.submit("/subscriptions/act", action="end").text
    parts.changes.error = InfrastructureError("Kafka is away")
    assert browser.submit("/subscriptions/act", id=["s1"], action="pause").status_code == 503
    assert browser.page.xpath("//main//a[text()='Go back']/@href") == ["/subscriptions"]
    assert len(parts.changes.records) == written


def test_a_long_list_is_served_in_parts(tmp_path: Path) -> None:
    made = [make_subscription(f"s{number:04}", "a", consumer=f"http://h/{number % 3}") for number in range(250)]
    browser = Browser(console_parts(tmp_path, map(SubscriptionRecord, made)).app)
    seen: list[str] = []
    browser.get("/subscriptions")
    while True:
        seen += listed(browser)
        following = browser.page.xpath("//a[text()='Next']/@href")
        if not following:
            break
        browser.get(following[0])
    assert sorted(seen) == sorted(each.id for each in made)


def test_a_rotated_secret_is_shown_once(tmp_path: Path) -> None:
    """The change and its record are those of the subscriber's page, see test_receiver.py."""
    add_key(tmp_path / "secrets.keys", "k1")
    parts = console_parts(tmp_path)
    made = make_subscription("s1", "a", consumer="http://one.example/in")
    keys = KeyFile(Path(parts.console.settings.secrets.key_file))
    former = SigningSecret(keys.seal(b"x" * 32, made.sealing_context()))
    parts.put(SubscriptionRecord(msgspec.structs.replace(made, protection=Protection((former,)))))
    browser = Browser(parts.app)
    browser.at("/subscriptions/s1").submit("/subscriptions/act", action="rotate")
    assert "Confirm that you will pass the new secret on." in browser.answer.text
    assert not parts.operations
    browser.submit("/subscriptions/act", action="rotate", sure="yes")
    assert browser.page.xpath("//code[starts-with(text(), 'whsec_')]")
    assert "whsec_" not in browser.get("/subscriptions/s1").text
