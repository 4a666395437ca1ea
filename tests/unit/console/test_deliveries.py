"""The screen Deliveries: what commands print, as pages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from arborcast.console.commands import CommandFailed, Commands, options_of
from tests.support.console import Browser
from tests.support.console_answers import Asked, answering

EVIL = "<img src=x onerror=alert(1)>"

STORY = {
    "notification": "01ab",
    "topic": "a/b",
    "cause": "",
    "payload": f"<x>{EVIL}</x>",
    "steps": [{"at": "2026-01-01T00:00:00.123456+00:00", "what": "accepted", "detail": EVIL}],
    "deliveries": [
        {
            "subscription": "s1",
            "outcome": "delivered",
            "expression": "a//.",
            "endpoint": "http://one/",
            "steps": [],
            "why": "the endpoint answered 200",
        },
        {
            "subscription": "s2",
            "outcome": "dead",
            "expression": "",
            "endpoint": "",
            "steps": [{"at": None, "what": "refused", "detail": ""}],
            "why": EVIL,
        },
    ],
    "notes": ["a note"],
}

LETTER = {
    "notification": "01ab",
    "subscription": "s1",
    "endpoint": "http://u:secret@one/",
    "topic": "a/b",
    "accepted": "2026-01-01 00:00:00.000+00:00",
    "given_up": "2026-01-01 00:00:01.000+00:00",
    "state": "dead",
    "attempts": 3,
    "error": "connect",
    "detail": EVIL,
    "status": "",
}

WAIT = {
    "notification": "01ab",
    "subscription": "s1",
    "state": "suspended",
    "endpoint": "http://one/",
    "topic": "a/b",
    "priority": 0,
    "accepted": "2026-01-01 00:00:00.000+00:00",
    "since": "2026-01-01 00:00:00.000+00:00",
    "attempts": 2,
    "next": "",
    "error": "connect",
    "detail": EVIL,
    "status": "",
}

TALLY = {"matches": 7, "delivered": 5, "dead": 1, "expired": 0, "cancelled": 0, "dropped": 0, "pending": 1}

REPORT = {
    "published": 3,
    "matches": 7,
    "waiting": 1,
    "duplicates": 2,
    "totals": TALLY,
    "subscriptions": {"s1": TALLY},
    "balanced": False,
    "unbalanced": 1,
    "notes": [],
    "problems": [{"notification": "01ab", "topic": "a/b", "kind": "missing"}],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What commands were run; their answers are those above."""
    return answering(
        monkeypatch,
        {
            ("trace",): STORY,
            ("why",): STORY,
            ("waiting", "list"): {"waiting": [WAIT], "more": 4},
            ("dead-letters", "list"): {"letters": [LETTER], "more": 1},
            ("dead-letters", "show"): {**LETTER, "payload": EVIL, "answer": EVIL},
            ("dead-letters", "redrive"): {"redriven": 2, "over": 1, "too_new": 0},
            ("dead-letters", "purge"): {"purged": 2},
            ("audit",): REPORT,
        },
    )


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("/deliveries?notification=01ab", "the endpoint answered 200"),
        ("/deliveries?notification=01ab&subscription=s1", "given up"),
        ("/deliveries/waiting", "And 4 more"),
        ("/deliveries/dead", "2 are asked for, of which 1 are shown"),
        ("/deliveries/dead/01ab?subscription=s1", "What the endpoint answered"),
        ("/deliveries/audit?since=1h", "1 do not balance"),
    ],
)
def test_what_a_command_says_is_shown_and_does_nothing(browser: Browser, page: str, words: str) -> None:
    assert browser.get(page).status_code == 200
    assert words in browser.text
    assert "<img" not in browser.answer.text.partition("<main")[2]
    assert "secret" not in browser.text


def test_nothing_is_run_that_nobody_asked_for(browser: Browser, asked: list[Any]) -> None:
    browser.get("/deliveries")
    browser.get("/deliveries/audit")
    assert not asked


def test_who_is_not_well_comes_first(browser: Browser, asked: list[Any]) -> None:
    browser.get("/deliveries?notification=01ab")
    assert [each.text_content() for each in browser.page.xpath("//section/header/h2")][1:] == ["s2", "http://one/"]
    assert asked == [(("trace",), {"given": "01ab"})]


@pytest.mark.parametrize(("action", "said"), [("redrive", "2 deliveries are tried again"), ("purge", "2 dead letters")])
def test_letters_are_asked_about_before(browser: Browser, asked: list[Any], action: str, said: str) -> None:
    browser.get("/deliveries/dead?topic=a//.&since=2h")
    browser.submit("/deliveries/dead/act", action=action)
    assert all(words[1] == "list" for words, _ in asked)
    assert "2 dead letters" in browser.text
    browser.submit("/deliveries/dead/act")
    assert asked[-2][0] == ("dead-letters", action)
    assert asked[-2][1] == {
        "yes": True,
        "subscription": "",
        "endpoint": "",
        "topic": "a//.",
        "notification": "",
        "since": "2h",
        "reason": "",
    }
    assert said in browser.answer.text


def test_what_is_typed_does_not_become_an_option() -> None:
    assert options_of({"since": "--yes", "dead_on": "x y", "yes": True, "none": ""}) == [
        "--since=--yes",
        "--dead-on=x y",
        "--yes",
    ]


def test_the_refusal_of_a_command_is_said(tmp_path: Path, browser: Browser) -> None:
    """The real command, of an engine that does not run."""
    with pytest.raises(CommandFailed, match="no engine runs in"):
        asyncio.run(Commands(tmp_path, None).ask("waiting", "list", options={"limit": "3"}))
    browser.get("/deliveries/waiting?limit=3")
    (said,) = browser.page.xpath("//p[@class='refusal']/text()")
    assert "no engine runs in" in said


def test_a_moment_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="--since"):
        asyncio.run(Commands(tmp_path, None).ask("dead-letters", "list", options={"since": "--help"}))
