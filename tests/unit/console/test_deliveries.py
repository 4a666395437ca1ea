"""The screen Deliveries: results of admin functions as pages."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from arborcast.admin import dead_letters, erasures, messages, slo, trace, waiting
from arborcast.admin.dead_letters import LetterFilter, LetterList, RedriveCounts, WholeLetter
from arborcast.admin.erasures import ErasureRequest, RequestedErasure
from arborcast.admin.filters import DeliveryGroup, TopicTest
from arborcast.admin.messages import MessageSearch, RecentNotification
from arborcast.admin.times import moment_ms
from arborcast.admin.waiting import WaitingFilter, WaitingList
from arborcast.console.questions import Questions
from arborcast.console.screens import deliveries
from arborcast.core.errors import ConfigError, InfrastructureError
from arborcast.dispatch.operations.audit import Problem, Report, Tally
from arborcast.dispatch.operations.slo import Objective, Objectives, SubscriptionObjective
from arborcast.dispatch.operations.trace.evidence import DeliveryExplanation, Step
from arborcast.topic_model.records.control import Erasure, ErasureScope
from arborcast.topic_model.records.operations import Operator
from arborcast.topic_model.topics import TopicPath
from tests.support import console_answers
from tests.support.console import EVIL, Browser, ConsoleParts
from tests.support.console_answers import Answering, Asked

AT_MS = 1_767_225_600_000

BY = Operator("console", "without a name, from 127.0.0.1")

EXPLANATION = dataclasses.replace(
    console_answers.EXPLANATION,
    notification="01ab",
    payload=f"<x>{EVIL}</x>",
    steps=[Step(datetime(2026, 1, 1, 0, 0, 0, 123456, UTC), "accepted", EVIL)],
    deliveries=[
        DeliveryExplanation("s1", "http://one/", "a//.", "delivered", "the endpoint answered 200"),
        DeliveryExplanation("s2", "", "", "dead", EVIL, [Step(None, "refused")]),
    ],
)

LETTER = msgspec.structs.replace(
    console_answers.LETTER, notification="01ab", topic=TopicPath("a/b"), endpoint="http://u:secret@one/", detail=EVIL
)

WAIT = msgspec.structs.replace(
    console_answers.PARKED,
    notification="01ab",
    state="suspended",
    endpoint="http://one/",
    stage="due",
    next_ms=0,
    detail=EVIL,
)

TALLY = Tally(delivered=5, dead=1, pending=1)

REPORT = Report(
    since_ms=0,
    until_ms=0,
    notifications=3,
    matches=7,
    waiting=1,
    duplicates=1,
    totals=TALLY,
    subscriptions={"s1": TALLY},
    unbalanced=1,
    problems=[Problem("missing", "01ab", "", 1, 0, TopicPath("a/b"))],
    order=True,
    first_attempts=9,
)


OBJECTIVE = Objective(995, 3, 2, 7, 0.995, 0.5, 1.5, 0.2)

ERASURE = Erasure(ErasureScope("e1", AT_MS, subject=EVIL), EVIL, AT_MS, {"dead_letters": 1_200}, AT_MS)


@pytest.fixture
def asked(answering: Answering) -> Asked:
    """The calls of admin functions, with the results above."""
    return answering(
        {
            trace.trace: EXPLANATION,
            waiting.oldest: WaitingList((WAIT,), 4, complete=True),
            waiting.retry: 2,
            waiting.probe: None,
            dead_letters.listed: LetterList((LETTER,), 1),
            dead_letters.first_whole: WholeLetter(LETTER, "", "", "", "", EVIL, EVIL),
            dead_letters.count: 2,
            dead_letters.redrive: RedriveCounts(2, 1, 0),
            dead_letters.purge: 2,
            deliveries._audit: REPORT,
            messages.recent: (RecentNotification("01ab", TopicPath("a/b"), AT_MS),),
            slo.measured: Objectives(OBJECTIVE, (SubscriptionObjective("s1", EVIL, OBJECTIVE),), 3),
            erasures.listed: [RequestedErasure(ERASURE, {"dead": 0, "tables": AT_MS})],
            erasures.erase: RequestedErasure(ERASURE, {}),
        },
    )


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("/deliveries?notification=01ab", "the endpoint answered 200"),
        ("/deliveries?notification=01ab&subscription=s1", "failed"),
        ("/deliveries/waiting", "Showing the oldest 1 of 5"),
        ("/deliveries/waiting", "now connect"),
        ("/deliveries/dead", "Showing 1 of 2"),
        ("/deliveries/dead/01ab?subscription=s1", "Response"),
        ("/deliveries/audit?since=1h", "1 discrepancy"),
        ("/deliveries/audit?since=1h", "1 not checked yet. 1 delivery repeated."),
        ("/deliveries/audit?since=1h&order=1", "9 first attempts, none out of order."),
        ("/deliveries/slo", "99.500 %"),
        ("/deliveries/slo?owner=ann", "and 3 more"),
        ("/deliveries/erasures", "dead letters 1,200"),
        ("/deliveries/erasures", "no limit: set max.compaction.lag.ms"),
    ],
)
def test_an_answer_is_shown_and_does_nothing(browser: Browser, page: str, words: str) -> None:
    assert browser.get(page).status_code == 200
    assert words in browser.text
    assert not browser.shows_hostile("secret")


def test_a_trace_is_opened_from_the_newest_notifications(browser: Browser, asked: list[Any]) -> None:
    browser.get("/deliveries/audit")
    assert not asked, "an audit is slow"
    (link,) = browser.at("/deliveries").page.xpath("//td//a[code='01ab']/@href")
    (table,) = browser.at(link).page.xpath("//table[.//th='Where']")
    assert table.xpath("thead//th/text()") == ["Time", "Step", "Where", "Detail"]
    assert [each.text_content() for each in table.xpath(".//td[3]/a")] == ["s2", "http://one/"]
    assert "2026-01-01 00:00:00.123 accepted" in browser.text
    (newest, _), (function, (_, notification, subscription)) = asked
    assert (newest, function, notification, subscription) == (messages.recent, trace.trace, "01ab", "")


@pytest.mark.parametrize(
    ("action", "function", "said"),
    [
        ("redrive", dead_letters.redrive, "2 deliveries re-queued; 1 skipped (subscription ended)."),
        ("purge", dead_letters.purge, "2 dead letters"),
    ],
)
def test_letters_are_redriven_after_a_confirmation(
    browser: Browser, parts: ConsoleParts, asked: Asked, action: str, function: Any, said: str
) -> None:
    browser.at("/deliveries/dead?topic=a//.&since=2h").submit("/deliveries/dead/act", action=f"{action}-all")
    (_, (_, (counted, *_))) = asked
    assert [each for each, _ in asked] == [dead_letters.listed, dead_letters.count]
    assert counted.until, "letters after the confirmation page are excluded"
    assert "2 dead letters" in browser.text
    browser.submit("/deliveries/dead/act")
    wanted = LetterFilter(topic=TopicTest("a//."), since="2h")
    assert counted == wanted._replace(until=counted.until, since=counted.since)
    begin_ms, end_ms = (moment_ms("", each) for each in (counted.since, counted.until))
    assert abs(end_ms - begin_ms - 2 * 3_600_000) <= 1, "the span before the list, at each later step"
    assert asked[2:] == [
        (function, (counted, None, parts.console.control, BY)),
        # Read again, with the same filter.
        (dead_letters.listed, (wanted, 100, parts.console.control, 0, parts.console.questions.views)),
    ]
    assert said in browser.answer.text


def test_selected_letters_or_all_after_a_confirmation(browser: Browser, asked: Asked) -> None:
    def acted_on() -> list[tuple[Any, LetterFilter]]:
        return [(function, wanted) for function, (wanted, *_) in asked if function is not dead_letters.listed]

    browser.get("/deliveries/dead")
    assert browser.page.xpath("//input[@type='checkbox']/@value") == ["01ab s1"]
    assert "Select at least one dead letter." in browser.submit("/deliveries/dead/act", action="purge").text
    browser.submit("/deliveries/dead/act", action="purge", letter="01ab s1")
    assert "No filter is set" not in browser.text
    browser.submit("/deliveries/dead/act")
    assert [wanted.chosen for _, wanted in acted_on()] == [frozenset({("01ab", "s1")})] * 2
    asked.clear()
    browser.get("/deliveries/dead")
    (listed,) = browser.page.xpath("//form[@action='/deliveries/dead/act']//input[@name='until']/@value")
    browser.submit("/deliveries/dead/act", action="purge-all")
    assert "this affects all dead letters" in browser.text
    browser.submit("/deliveries/dead/act", typed="delete")
    assert dead_letters.purge not in [function for function, _ in acted_on()]
    browser.submit("/deliveries/dead/act", typed="delete all")
    assert acted_on()[-1][0] is dead_letters.purge
    assert {wanted.until for _, wanted in acted_on()} == {listed}, "only letters of the list, not later ones"


def test_attempts_and_probes_are_requested(browser: Browser, parts: ConsoleParts, asked: Asked) -> None:
    browser.at("/deliveries/waiting?topic=a//.").submit("/deliveries/waiting/act", action="retry")
    assert "Select at least one delivery." in browser.answer.text
    browser.submit("/deliveries/waiting/act", action="retry", delivery="01ab s1")
    assert "Attempts of 2 deliveries requested." in browser.answer.text
    browser.submit("/deliveries/waiting/act", action="retry-all")
    control = parts.console.control
    wanted = WaitingFilter(topic=TopicTest("a//."))
    assert [values for function, values in asked if function is waiting.retry] == [
        (wanted._replace(chosen=frozenset({("01ab", "s1")})), None, control, BY, parts.console.questions.views),
        (wanted, None, control, BY, parts.console.questions.views),
    ]

    browser.at("/deliveries/waiting").submit("/deliveries/waiting/act", action="probe", endpoint="http://one/")
    assert "Probe requested." in browser.answer.text
    assert (waiting.probe, ("http://one/", control, BY, parts.console.questions.views)) in asked


def test_a_list_is_shown_before_its_last_attempts_are_found(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    unsought = WaitingList((msgspec.structs.replace(WAIT, error="", detail=""),), 4, complete=False)
    release = asyncio.Event()

    async def value(_self: Questions, _function: Any, arguments: tuple[Any, ...], **_: Any) -> Any:
        if arguments[-1]:  # the time limit of the search
            await release.wait()
        return unsought

    monkeypatch.setattr(Questions, "_value", value)
    browser.get("/deliveries/waiting")
    assert "Showing the oldest 1 of 5" in browser.text
    assert "Last responses are still being read." in browser.text


def test_a_trace_links_the_dead_letter_and_retries_waiting_ones(
    browser: Browser, parts: ConsoleParts, answering: Answering
) -> None:
    deliveries = [
        DeliveryExplanation("s1", "http://one/", "a", "dead", ""),
        DeliveryExplanation("s2", "", "a", "waiting", ""),
    ]
    asked = answering({trace.trace: dataclasses.replace(EXPLANATION, deliveries=deliveries), waiting.retry: 1})
    (link,) = browser.at("/deliveries?notification=01ab").page.xpath("//a[.='Dead letter']/@href")
    assert link == "/deliveries/dead/01ab?subscription=s1"
    assert "Attempts of 1 delivery requested." in browser.submit("/deliveries/waiting/act", action="retry").text
    (wanted,) = [values[0] for function, values in asked if function is waiting.retry]
    assert wanted == WaitingFilter(chosen=frozenset({("01ab", "s2")}))
    assert str(browser.answer.url).endswith("/deliveries?notification=01ab")


def test_a_long_list_has_groups_and_pages(browser: Browser, answering: Answering) -> None:
    groups = (DeliveryGroup("http://u:secret@one/", "503", 250), DeliveryGroup("http://two/", "connect", 20))
    asked = answering({dead_letters.listed: LetterList((LETTER,), 150, groups)})
    browser.get("/deliveries/dead?topic=a&page=1")
    assert asked[0][1][3] == 100
    assert "secret" not in browser.answer.text
    assert "/deliveries/dead?endpoint=http%3A%2F%2Ftwo%2F&topic=a&reason=connect" in browser.page.xpath("//td/a/@href")
    assert browser.page.xpath("//nav[@aria-label='Pages']/a/@href") == [
        "/deliveries/dead?topic=a",
        "/deliveries/dead?topic=a&page=2",
    ]
    browser.get("/deliveries/dead?topic=a&page=100")
    assert browser.page.xpath("//nav[@aria-label='Pages']/a/text()") == ["Previous"], "no page is behind the last"
    answering({dead_letters.listed: LetterList((), 0), waiting.oldest: WaitingList((), 0, True)})
    for name in ("dead", "waiting"):
        browser.get(f"/deliveries/{name}?topic=a&page=3")
        assert "This page is empty" in browser.text
        assert browser.page.xpath("//a[.='First page']/@href") == [f"/deliveries/{name}?topic=a"]


def test_an_error_in_a_change_is_shown_at_once(browser: Browser, asked: Asked, answering: Answering) -> None:
    browser.at("/deliveries/dead").submit("/deliveries/dead/act", action="purge", letter="01ab s1")
    away = answering(
        {dead_letters.purge: InfrastructureError("Kafka: away"), dead_letters.listed: LetterList((LETTER,), 0)},
    )
    assert browser.submit("/deliveries/dead/act").status_code == 503
    assert "Kafka: away" in browser.text
    browser.get("/deliveries/dead")
    assert [each for each, _ in away] == [dead_letters.purge, dead_letters.listed]


def test_the_error_of_a_call_is_shown_unchanged(browser: Browser, parts: ConsoleParts, answering: Answering) -> None:
    (said,) = browser.at("/deliveries/waiting?limit=3").page.xpath("//p[@class='refusal']/text()")
    assert said.startswith("no engine runs in"), "the real function, with a stopped engine"
    answering({waiting.oldest: ConfigError("topic x: error: <b>")})
    parts.console.questions.forget()
    assert browser.at("/deliveries/waiting").page.xpath("//p[@class='refusal']/text()") == ["topic x: error: <b>"]


def test_an_erasure_is_requested_after_a_confirmation(
    browser: Browser, parts: ConsoleParts, asked: Asked, answering: Answering
) -> None:
    browser.at("/deliveries/erasures").submit("/deliveries/erasures", notification="019aca")
    assert "'019aca' is not the id of a notification" in browser.text
    asked.clear()
    browser.at("/deliveries/erasures").submit("/deliveries/erasures", subject="4711", topic="a//.")
    assert "Erase these payloads?" in browser.text
    assert [each for each, _ in asked] == [erasures.listed] * 2
    browser.submit("/deliveries/erasures")
    assert asked[2] == (erasures.erase, (ErasureRequest("4711", TopicTest("a//.")), BY, parts.console.control))
    assert "Erasure e1 was requested." in browser.answer.text
    answering({erasures.listed: [], erasures.erase: ConfigError("say what to erase")})
    browser.submit("/deliveries/erasures")
    browser.submit("/deliveries/erasures")
    assert "say what to erase" in browser.text


def test_a_search_shows_messages_and_continues(parts: ConsoleParts, browser: Browser, answering: Answering) -> None:
    asked = answering()
    browser.get("/deliveries/messages")
    assert asked == [], "only on request"
    browser.get("/deliveries/messages?text=hot&topic=a//.&since=2h&until=1h")
    wanted = MessageSearch("hot", TopicTest("a//."), "2h", "1h")
    assert asked == [(messages.search, (wanted, parts.control))]
    assert "<hot>xxx" in browser.text
    assert "1,204 messages of 5.0 MiB searched." in browser.text
    assert (
        browser.page.xpath("//tbody//a/@href")[1] == f"/deliveries?notification={console_answers.PARKED.notification}"
    )
    (onward,) = browser.page.xpath("//a[.='Continue the search']/@href")
    browser.get(onward)
    assert asked[1] == (messages.search, (wanted._replace(after="120.98"), parts.control))
    answering({messages.search: ConfigError("since: yesterday is no time")})
    assert browser.get("/deliveries/messages?since=yesterday").status_code == 200
    assert "since: yesterday is no time" in browser.text
