"""The screen *Changes*, and the records of changes that are made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arborcast.admin import operations
from arborcast.core.errors import InfrastructureError
from arborcast.topic_model.records.control import SubscriptionRecord
from arborcast.topic_model.records.operations import OperationBegun, OperationEnded
from tests.support.console import Browser, ConsoleParts, console_parts
from tests.support.console_answers import Asked, answering
from tests.support.routing import make_subscription


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return answering(monkeypatch)


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    return console_parts(
        tmp_path, [SubscriptionRecord(make_subscription("s1", "a//.", consumer="http://one.example/"))]
    )


def test_changes_are_listed_with_their_values_and_results(browser: Browser, asked: Asked) -> None:
    browser.get("/operations?since=yesterday")
    assert (bool(browser.page.xpath("//*[@role='alert']")), asked) == (True, [])
    browser.get("/operations?who=anna&since=2h")
    for words in ("topics save plant/press", '{"code":"1"}', '{"code":"2"}', "and 2 more", "3 deleted", "And 3 more"):
        assert words in browser.text
    ((function, (wanted, limit)),) = asked
    assert (function, wanted.who, wanted.what, wanted.subject, limit) == (operations.listed, "anna", "", "", 100)
    assert wanted.since_ms > 0


def test_a_visitors_change_is_recorded_before_it_is_made(parts: ConsoleParts, browser: Browser) -> None:
    browser.get("/subscriptions")
    browser.submit("/subscriptions/act", action="pause", id=["s1"])
    begun, ended = parts.operations
    assert isinstance(begun, OperationBegun)
    assert (begun.door, begun.who, begun.what) == (
        "console",
        "without a name, from 127.0.0.1",
        "subscriptions pause",
    )
    (change,) = begun.changes
    assert (json.loads(change.before)["paused"], json.loads(change.after)["paused"]) == (False, True)
    assert ended == OperationEnded(begun.id, "done", 1)


def test_a_change_that_fails_is_recorded_so_and_without_a_record_there_is_none(
    parts: ConsoleParts, browser: Browser
) -> None:
    def away(_: object) -> None:
        raise InfrastructureError("Kafka is away")

    browser.get("/subscriptions")
    parts.changes.error = InfrastructureError("Kafka is away")
    assert browser.submit("/subscriptions/act", action="pause", id=["s1"]).status_code == 503
    assert [each.result for each in parts.operations if isinstance(each, OperationEnded)] == ["failed: Kafka is away"]
    parts.changes.error, parts.console.changes._record = None, away
    before = len(parts.changes.records)
    browser.get("/subscriptions")
    assert browser.submit("/subscriptions/act", action="pause", id=["s1"]).status_code == 503
    assert len(parts.changes.records) == before
