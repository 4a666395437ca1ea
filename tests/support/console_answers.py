"""What commands print, for screens that show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from arborcast.console.commands import Commands
from arborcast.console.questions import Questions

_NO_OPTIONS: Mapping[str, str] = {}

QUEUE: dict[str, Any] = {
    "queue": "{urn:plant}plant/inspections",
    "merge": True,
    "waiting": 3,
    "executing": 2,
    "oldest_s": 74.2,
    "servers": [
        {
            "subscription": "s7",
            "endpoint": "https://camera1.example:8443/inspect",
            "capacity": 1,
            "state": "active",
            "busy_s": 12.3,
        },
        {
            "subscription": "s8",
            "endpoint": "https://camera2.example:8443/inspect",
            "capacity": 2,
            "state": "active",
            "busy_s": 3.1,
        },
        {
            "subscription": "s9",
            "endpoint": "https://camera3.example:8443/inspect",
            "capacity": 1,
            "state": "paused",
            "busy_s": None,
        },
    ],
}

_UNSERVED = {**QUEUE, "queue": "reports", "waiting": 1, "executing": 0, "oldest_s": 5.0, "servers": []}

_QUIET = {**QUEUE, "queue": "labels", "waiting": 0, "executing": 0, "oldest_s": 0.0}

REQUESTS = [
    {
        "notification": f"019b7d4a6c10707fa1c0a3f2e5d8b10{number}",
        "priority": 50 if number == 0 else 0,
        "accepted": f"2026-01-01 11:20:{number + 10}.000+01:00",
        "attempts": 1 if number < 2 else 0,
        "next": "",
    }
    for number in range(5)
]

MEMBERS = [
    {
        "engine": engine,
        "state": state,
        "represents": represents,
        "url": f"https://{engine.partition('/')[2]}.example:8080",
        "number": number,
        "version": "2.0.0",
        "silent_s": silent_s,
    }
    for number, (engine, state, represents, silent_s) in enumerate(
        [
            ("north/n1", "live", True, 0.4),
            ("north/n2", "suspect", False, 7.0),
            ("south/s1", "gone", False, 4_000.0),
            ("south/s2", "live", True, 0.8),
        ]
    )
]

LINKS = [
    {
        "link": "peer-n2",
        "to": "north/n2",
        "url": "https://n2.example:8080/federation",
        "state": "active",
        "topics": ["plant//alarm", "building//."],
        "since": "2026-01-01 11:20:00.000+01:00",
        "waiting": 41,
        "waiting_since": "2026-01-01 11:21:00.000+01:00",
    },
    {
        "link": "peer-group.south",
        "to": "south/",
        "url": "https://s2.example:8080/federation",
        "state": "active",
        "topics": [f"a{number}//." for number in range(7)],
        "since": "2026-01-01 11:20:00.000+01:00",
        "waiting": 0,
        "waiting_since": "",
    },
]

PARKED = {
    "notification": "019b7d4a6c10707fa1c0a3f2e5d8b100",
    "subscription": "s1",
    "state": "active",
    "endpoint": "https://panel1.example:8443/notifications",
    "topic": "{urn:plant}plant/line2/press/alarm",
    "priority": 50,
    "accepted": "2026-01-01 11:20:00.000+01:00",
    "since": "2026-01-01 11:20:00.000+01:00",
    "attempts": 2,
    "next": "2026-01-01 11:21:00.000+01:00",
    "error": "connect",
    "detail": "connection refused",
    "status": "",
}

LETTER = {**PARKED, "state": "dead", "attempts": 12, "given_up": "2026-01-01 12:20:00.000+01:00"}

ANSWERS: Mapping[tuple[str, ...], Any] = {
    ("queues", "list"): [_QUIET, _UNSERVED, QUEUE],
    ("queues", "show"): {**QUEUE, "requests": REQUESTS, "more": 4},
    ("federation", "members"): {"members": MEMBERS, "problem": ""},
    ("federation", "links"): {"links": LINKS},
    ("waiting", "list"): {"waiting": [PARKED], "more": 4},
    ("dead-letters", "list"): {"letters": [LETTER], "more": 0},
}

Asked = list[tuple[Any, Any]]
"""Questions with their arguments."""

FEDERATED = {
    "federation__name": "n1",
    "federation__group": "north",
    "federation__administrator": "http://127.0.0.1:9",
    "federation__url": "https://n1.example:8080",
    "federation__key_file": "federation.key",
}
"""Settings of an engine that is in a federation."""


def answering(monkeypatch: pytest.MonkeyPatch, answers: Mapping[Any, Any] = ANSWERS) -> Asked:
    """Neither commands nor functions of `admin` are run: these are their answers, by the words of the command or the
    function itself. Returns what is asked. An exception is raised."""
    runs: Asked = []

    def answer_to(question: Any, arguments: Any) -> Any:
        runs.append((question, arguments))
        answer = answers[question]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ask(
        _self: Commands, *words: str, given: tuple[str, ...] = (), options: Mapping[str, str] = _NO_OPTIONS
    ) -> Any:
        return answer_to(words, {**options, **({"given": given[0]} if given else {})})

    async def value(_self: Questions, function: Any, arguments: tuple[Any, ...], **_: Any) -> Any:
        return answer_to(function, arguments)

    monkeypatch.setattr(Commands, "ask", ask)
    monkeypatch.setattr(Questions, "_value", value)
    return runs
