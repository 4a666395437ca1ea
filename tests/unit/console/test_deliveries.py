"""The screen Deliveries: values of admin functions, as pages."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from arborcast.admin import dead_letters, erasures, messages, slo, trace, waiting
from arborcast.admin.dead_letters import Letter, LetterFilter, LetterList, Redriven, WholeLetter
from arborcast.admin.erasures import ErasureRequest, RequestedErasure
from arborcast.admin.filters import DeliveryGroup, TopicTest
from arborcast.admin.messages import RecentNotification
from arborcast.admin.waiting import WaitingEntry, WaitingFilter, WaitingList
from arborcast.console.questions import Questions
from arborcast.console.screens import deliveries
from arborcast.core.errors import ConfigError, InfrastructureError
from arborcast.dispatch.operations.audit import Problem, Report, Tally
from arborcast.dispatch.operations.slo import Objective, Objectives, SubscriptionObjective
from arborcast.dispatch.operations.trace.story import DeliveryStory, Step, Story
from arborcast.topic_model.records.control import Erasure, ErasureScope
from arborcast.topic_model.records.operations import Operator
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, ConsoleParts
from tests.support.console_answers import Asked, answering

EVIL = "<img src=x onerror=alert(1)>"

AT_MS = 1_767_225_600_000

STORY = Story(
    notification="01ab",
    found=True,
    topic="a/b",
    payload=f"<x>{EVIL}</x>",
    steps=[Step(datetime(2026, 1, 1, 0, 0, 0, 123456, UTC), "accepted", EVIL)],
    deliveries=[
        DeliveryStory("s1", "http://one/", "a//.", "delivered", "the endpoint answered 200"),
        DeliveryStory("s2", "", "", "dead", EVIL, [Step(None, "refused")]),
    ],
    notes=["a note"],
)

LETTER = Letter(
    notification="01ab",
    subscription="s1",
    endpoint="http://u:secret@one/",
    topic=TopicPath("a/b"),
    accepted_ms=AT_MS,
    given_up_ms=AT_MS + 1_000,
    state="dead",
    attempts=3,
    error="connect",
    detail=EVIL,
    status=0,
)

WAIT = WaitingEntry(
    notification="01ab",
    subscription="s1",
    state="suspended",
    endpoint="http://one/",
    topic=TopicPath("a/b"),
    priority=0,
    accepted_ms=AT_MS,
    since_ms=AT_MS,
    attempts=2,
    stage="due",
    next_ms=0,
    error="connect",
    detail=EVIL,
    status=0,
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
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The questions that were asked; their answers are those above."""
    return answering(
        monkeypatch,
        {
            trace.trace: STORY,
            waiting.oldest: WaitingList((WAIT,), 4, complete=True),
            waiting.retry: 2,
            waiting.probe: None,
            dead_letters.listed: LetterList((LETTER,), 1),
            dead_letters.first_whole: WholeLetter(LETTER, "", "", "", "", EVIL, EVIL),
            dead_letters.count: 2,
            dead_letters.redrive: Redriven(2, 1, 0),
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
    assert "<img" not in browser.answer.text.partition("<main")[2]
    assert "secret" not in browser.text


def test_a_notification_is_chosen_from_the_newest_ones_and_what_failed_comes_first(
    browser: Browser, asked: list[Any]
) -> None:
    browser.get("/deliveries/audit")
    assert not asked, "an audit takes long"
    browser.get("/deliveries")
    (link,) = browser.page.xpath("//td//a[code='01ab']/@href")
    browser.get(link)
    (table,) = browser.page.xpath("//table[.//th='Where']")
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
def test_letters_are_asked_about_before(
    browser: Browser, parts: ConsoleParts, asked: Asked, action: str, function: Any, said: str
) -> None:
    browser.get("/deliveries/dead?topic=a//.&since=2h")
    browser.submit("/deliveries/dead/act", action=f"{action}-all")
    (_, (_, (counted, *_))) = asked
    assert [each for each, _ in asked] == [dead_letters.listed, dead_letters.count]
    assert counted.until, "letters that are failed after the question are left alone"
    assert "2 dead letters" in browser.text
    browser.submit("/deliveries/dead/act")
    wanted = LetterFilter(topic=TopicTest("a//."), since="2h")
    assert counted == wanted._replace(until=counted.until)
    assert asked[2:] == [
        (function, (counted, None, parts.console.control, Operator("console", "without a name, from 127.0.0.1"))),
        # Looked up again, with the same filter.
        (dead_letters.listed, (wanted, 100, parts.console.control, 0, parts.console.questions.views)),
    ]
    assert said in browser.answer.text


def test_the_letters_of_the_list_are_those_of_the_action(browser: Browser, asked: Asked) -> None:
    browser.get("/deliveries/dead/01ab?subscription=s1")
    assert browser.page.xpath("//dd/a/@href") == ["/subscriptions/s1", "/topics?at=a/b"]
    asked.clear()
    browser.get("/deliveries/dead")
    (listed,) = browser.page.xpath("//form[@action='/deliveries/dead/act']//input[@name='until']/@value")
    browser.submit("/deliveries/dead/act", action="redrive-all")
    browser.submit("/deliveries/dead/act")
    assert [wanted.until for function, (wanted, *_) in asked if function is not dead_letters.listed] == [listed] * 2


def test_selected_letters_and_no_others_are_acted_on(browser: Browser, asked: Asked) -> None:
    browser.get("/deliveries/dead")
    assert browser.page.xpath("//input[@type='checkbox']/@value") == ["01ab s1"]
    browser.submit("/deliveries/dead/act", action="purge")
    assert "Select at least one dead letter." in browser.answer.text
    browser.submit("/deliveries/dead/act", action="purge", letter="01ab s1")
    assert "No filter is set" not in browser.text
    browser.submit("/deliveries/dead/act")
    found = [wanted.chosen for function, (wanted, *_) in asked if function is not dead_letters.listed]
    assert found == [frozenset({("01ab", "s1")})] * 2


def test_attempts_are_requested_of_selected_deliveries_or_of_all_of_the_list(
    browser: Browser, parts: ConsoleParts, asked: Asked
) -> None:
    browser.get("/deliveries/waiting?topic=a//.")
    browser.submit("/deliveries/waiting/act", action="retry")
    assert "Select at least one delivery." in browser.answer.text
    browser.submit("/deliveries/waiting/act", action="retry", delivery="01ab s1")
    assert "Attempts of 2 deliveries requested." in browser.answer.text
    browser.submit("/deliveries/waiting/act", action="retry-all")
    by, control = Operator("console", "without a name, from 127.0.0.1"), parts.console.control
    wanted = WaitingFilter(topic=TopicTest("a//."))
    assert [values for function, values in asked if function is waiting.retry] == [
        (wanted._replace(chosen=frozenset({("01ab", "s1")})), None, control, by, parts.console.questions.views),
        (wanted, None, control, by, parts.console.questions.views),
    ]


def test_a_list_is_shown_before_its_last_attempts_are_found(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    unsought = WaitingList((msgspec.structs.replace(WAIT, error="", detail=""),), 4, complete=False)
    release = asyncio.Event()

    async def value(_self: Questions, _function: Any, arguments: tuple[Any, ...], **_: Any) -> Any:
        if arguments[-1]:  # the time for the search
            await release.wait()
        return unsought

    monkeypatch.setattr(Questions, "_value", value)
    browser.get("/deliveries/waiting")
    assert "Showing the oldest 1 of 5" in browser.text
    assert "Last responses are still being read." in browser.text


def test_a_trace_leads_to_the_dead_letter_and_retries_what_waits(
    browser: Browser, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliveries = [DeliveryStory("s1", "http://one/", "a", "dead", ""), DeliveryStory("s2", "", "a", "waiting", "")]
    asked = answering(monkeypatch, {trace.trace: dataclasses.replace(STORY, deliveries=deliveries), waiting.retry: 1})
    browser.get("/deliveries?notification=01ab")
    (link,) = browser.page.xpath("//a[.='Dead letter']/@href")
    assert link == "/deliveries/dead/01ab?subscription=s1"
    browser.submit("/deliveries/waiting/act", action="retry")
    assert "Attempts of 1 delivery requested." in browser.answer.text
    (wanted,) = [values[0] for function, values in asked if function is waiting.retry]
    assert wanted == WaitingFilter(chosen=frozenset({("01ab", "s2")}))
    assert str(browser.answer.url).endswith("/deliveries?notification=01ab")


def test_a_probe_is_requested_of_an_endpoint(browser: Browser, parts: ConsoleParts, asked: Asked) -> None:
    browser.get("/deliveries/waiting")
    browser.submit("/deliveries/waiting/act", action="probe", endpoint="http://one/")
    assert "Probe requested." in browser.answer.text
    by = Operator("console", "without a name, from 127.0.0.1")
    assert (waiting.probe, ("http://one/", parts.console.control, by, parts.console.questions.views)) in asked


def test_all_letters_are_deleted_only_after_a_typed_confirmation(browser: Browser, asked: Asked) -> None:
    browser.get("/deliveries/dead")
    browser.submit("/deliveries/dead/act", action="purge-all")
    assert "this affects all dead letters" in browser.text
    browser.submit("/deliveries/dead/act", typed="delete")
    assert dead_letters.purge not in [function for function, _ in asked]
    browser.submit("/deliveries/dead/act", typed="delete all")
    assert dead_letters.purge in [function for function, _ in asked]


def test_a_long_list_has_groups_and_pages(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = (DeliveryGroup("http://u:secret@one/", "503", 250), DeliveryGroup("http://two/", "connect", 20))
    asked = answering(monkeypatch, {dead_letters.listed: LetterList((LETTER,), 150, groups)})
    browser.get("/deliveries/dead?topic=a&page=1")
    assert asked[0][1][3] == 100
    assert "secret" not in browser.answer.text
    assert "/deliveries/dead?endpoint=http%3A%2F%2Ftwo%2F&topic=a&reason=connect" in browser.page.xpath("//td/a/@href")
    assert browser.page.xpath("//nav[@aria-label='Pages']/a/@href") == [
        "/deliveries/dead?topic=a",
        "/deliveries/dead?topic=a&page=2",
    ]


def test_an_error_in_the_middle_of_a_change_is_shown_and_nothing_older(
    browser: Browser, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.get("/deliveries/dead")
    browser.submit("/deliveries/dead/act", action="purge", letter="01ab s1")
    away = answering(
        monkeypatch,
        {dead_letters.purge: InfrastructureError("Kafka: away"), dead_letters.listed: LetterList((LETTER,), 0)},
    )
    assert browser.submit("/deliveries/dead/act").status_code == 503
    assert "Kafka: away" in browser.text
    browser.get("/deliveries/dead")
    assert [each for each, _ in away] == [dead_letters.purge, dead_letters.listed]


def test_the_error_of_a_question_is_shown_as_it_is(
    browser: Browser, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.get("/deliveries/waiting?limit=3")
    (said,) = browser.page.xpath("//p[@class='refusal']/text()")
    assert said.startswith("no engine runs in"), "the real function, of an engine that does not run"
    answering(monkeypatch, {waiting.oldest: ConfigError(f"topic x: error: {EVIL}")})
    parts.console.questions.forget()
    browser.get("/deliveries/waiting")
    assert browser.page.xpath("//p[@class='refusal']/text()") == [f"topic x: error: {EVIL}"]


def test_an_erasure_is_requested_after_a_question_and_a_bad_request_is_shown(
    browser: Browser, parts: ConsoleParts, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.get("/deliveries/erasures")
    browser.submit("/deliveries/erasures", subject="4711", topic="a//.")
    assert "Erase these payloads?" in browser.text
    assert [each for each, _ in asked] == [erasures.listed] * 2
    browser.submit("/deliveries/erasures")
    by = Operator("console", "without a name, from 127.0.0.1")
    assert asked[2] == (erasures.erase, (ErasureRequest("4711", TopicTest("a//.")), by, parts.console.control))
    assert "Erasure e1 was requested." in browser.answer.text
    answering(monkeypatch, {erasures.listed: [], erasures.erase: ConfigError("say what to erase")})
    browser.submit("/deliveries/erasures")
    browser.submit("/deliveries/erasures")
    assert "say what to erase" in browser.text
