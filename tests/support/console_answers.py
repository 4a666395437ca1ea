"""Results of admin functions, for the screens that show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from arborcast.admin import (
    cameras,
    dead_letters,
    erasures,
    federation,
    messages,
    operations,
    queues,
    slo,
    subscriptions,
    trace,
    waiting,
)
from arborcast.admin.dead_letters import Letter, LetterList, WholeLetter
from arborcast.admin.erasures import RequestedErasure
from arborcast.admin.federation import LinkStatus, MemberList, MemberStatus
from arborcast.admin.messages import FoundMessage, FoundMessages, RecentNotification
from arborcast.admin.operations import Recorded
from arborcast.admin.queues import JobFigures, QueueRequests, RequestStatus
from arborcast.admin.waiting import WaitingEntry, WaitingList
from arborcast.console.questions import Questions
from arborcast.dispatch.logs.attempts import Attempt, State
from arborcast.dispatch.operations.slo import HourAttempts, Objective, Objectives, SubscriptionObjective
from arborcast.dispatch.operations.trace.evidence import DeliveryExplanation, Explanation, Step
from arborcast.engine.monitoring.samples import Scrape
from arborcast.topic_model.projections.pull_store import PullPointStatus
from arborcast.topic_model.records.control import (
    ControlRecord,
    Erasure,
    ErasureScope,
    SubscriptionRecord,
    TopicPolicy,
    TopicRecord,
)
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_subscription
from tests.support.table_rows import attempt

INSPECTIONS = TopicPath("{urn:plant}plant/inspections")


def _server(number: int, *, paused: bool = False) -> SubscriptionRecord:
    made = make_subscription(
        f"s{number + 6}",
        f"{INSPECTIONS}|labels",
        consumer=f"https://camera{number}.example:8443/inspect",
        created_ms=number,
        paused=paused,
        queue=2 if number == 2 else 1,
    )
    return SubscriptionRecord(made)


QUEUE_RECORDS: tuple[ControlRecord, ...] = (
    *(TopicRecord(TopicPath(name), policy=TopicPolicy(queue=True)) for name in (INSPECTIONS, "reports", "labels")),
    *(_server(number, paused=number == 3) for number in (1, 2, 3)),
)
"""Three queues: one with servers and waiting requests, one without a server, one without requests."""

JOB = JobFigures(
    Scrape.of(
        f"""
arborcast_queue_requests{{queue="{INSPECTIONS}",state="waiting"}} 3
arborcast_queue_requests{{queue="{INSPECTIONS}",state="executing"}} 2
arborcast_queue_oldest_seconds{{queue="{INSPECTIONS}"}} 74.2
arborcast_queue_server_busy_seconds{{queue="{INSPECTIONS}",server="s7"}} 12.3
arborcast_queue_server_busy_seconds{{queue="{INSPECTIONS}",server="s8"}} 3.1
arborcast_queue_requests{{queue="reports",state="waiting"}} 1
arborcast_queue_oldest_seconds{{queue="reports"}} 5
"""
    )
)

_AT_MS = 1_767_262_800_000

REQUESTS = tuple(
    RequestStatus(
        notification=f"019b7d4a6c10707fa1c0a3f2e5d8b10{number}",
        priority=50 if number == 0 else 0,
        accepted_ms=_AT_MS + 10_000 + number * 1_000,
        attempts=1 if number < 2 else 0,
        next_ms=0,
    )
    for number in range(5)
)

OPERATIONS = [
    Recorded(_AT_MS, "console", "anna", "topics save", "plant/press", '{"code":"1"}', '{"code":"2"}', 2, "done"),
    Recorded(_AT_MS, "command", "bert@host", "dead-letters purge", "--reason 404", "", "", 0, "3 deleted"),
    Recorded(_AT_MS, "directory", "ldap://here/", "edit", "plant/lathe", '{"code":""}', "", 0, ""),
]

MEMBERS = tuple(
    MemberStatus(
        engine, state, represents, f"https://{engine.partition('/')[2]}.example:8080", number, "2.0.0", silent_s
    )
    for number, (engine, state, represents, silent_s) in enumerate(
        [
            ("north/n1", "live", True, 0.4),
            ("north/n2", "suspect", False, 7.0),
            ("south/s1", "gone", False, 4_000.0),
            ("south/s2", "live", True, 0.8),
        ]
    )
)

LINKS = (
    LinkStatus(
        "peer-n2",
        "north/n2",
        "https://n2.example:8080/federation",
        "active",
        ("plant//alarm", "building//."),
        _AT_MS,
        41,
        _AT_MS + 60_000,
    ),
    LinkStatus(
        "peer-group.south",
        "south/",
        "https://s2.example:8080/federation",
        "active",
        tuple(f"a{number}//." for number in range(7)),
        _AT_MS,
    ),
)

PARKED = WaitingEntry(
    notification="019b7d4a6c10707fa1c0a3f2e5d8b100",
    subscription="s1",
    state="active",
    endpoint="https://panel1.example:8443/notifications",
    topic=TopicPath("{urn:plant}plant/line2/press/alarm"),
    priority=50,
    accepted_ms=_AT_MS,
    since_ms=_AT_MS,
    attempts=2,
    stage="scheduled",
    next_ms=_AT_MS + 60_000,
    error="connect",
    detail="connection refused",
    status=0,
)

LETTER = Letter(
    notification=PARKED.notification,
    subscription="s1",
    endpoint=PARKED.endpoint,
    topic=PARKED.topic,
    accepted_ms=_AT_MS,
    given_up_ms=_AT_MS + 3_600_000,
    state="dead",
    attempts=12,
    error="connect",
    detail="connection refused",
    status=0,
)


def _attempt(number: int, name: str, state: State, status: int, body: bytes = b"") -> Attempt:
    facts: dict[str, Any] = {"endpoint": "http://one.example/in", "push": f"p{number}", "duration_ms": 20.0}
    facts |= {"accepted_ms": _AT_MS, "started_ms": _AT_MS, "status": status, "response": body}
    return attempt(name, "s1", state, **facts)


ATTEMPTS = (_attempt(1, "n2", "delivered", 202), _attempt(0, "n1", "parked", 503, b"<b>no room</b>"))

_STEP = Step(
    datetime(2026, 1, 1, tzinfo=UTC),
    "attempt 1: no answer after 20 ms",
    "(connect: refused)",
    f"{PARKED.endpoint}/{'x' * 90}",
)

EXPLANATION = Explanation(
    notification=PARKED.notification,
    found=True,
    topic=PARKED.topic,
    payload="<hot/>",
    steps=[Step(None, "stored in the log", where="partition 1, offset 9")],
    deliveries=[
        DeliveryExplanation("s1", PARKED.endpoint, f"{PARKED.topic}//.", "waiting", "queued", [_STEP, _STEP]),
        DeliveryExplanation("s3", PARKED.endpoint, "a//.", "delivered", "delivered on attempt 1", [_STEP]),
    ],
    notes=["the logs could not be read"],
)

OBJECTIVE = Objective(1_799_400, 310, 12, 5_120, 0.99982, 0.821, 0.0, 0.3)

_HOUR_MS = 3_600_000

HOURS = (
    *(HourAttempts(_AT_MS + each * _HOUR_MS) for each in range(-23, -1)),
    HourAttempts(_AT_MS - _HOUR_MS, 15, 4),
    HourAttempts(_AT_MS),
)

ERASURE = Erasure(
    ErasureScope("5f0c1b2a9d3e", _AT_MS, "{urn:plant}plant//.", subject="4711"),
    "anna@operations.example",
    _AT_MS,
    {"notifications": 1_204, "dead_letters": 1},
    _AT_MS + 60_000,
)

CAMERAS = JobFigures(
    Scrape.of(
        'arborcast_camera_connected{camera="gate"} 1\narborcast_camera_connected{camera="yard"} 0\n'
        'arborcast_camera_renewals_total{camera="gate"} 1440\narborcast_camera_events_total{camera="gate"} 17\n'
        'arborcast_camera_clock_offset_seconds{camera="gate"} -3.2\n'
        f'arborcast_camera_last_event_seconds{{camera="gate"}} {_AT_MS / 1000}\n'
    )
)

ANSWERS: Mapping[Any, Any] = {
    slo.measured: Objectives(OBJECTIVE, (SubscriptionObjective("s1", "anna", OBJECTIVE),), 4),
    slo.attempts: HOURS,
    subscriptions.pull_point: PullPointStatus(2_100, 48_300, _AT_MS, 3, _AT_MS + 9_000),
    erasures.listed: [RequestedErasure(ERASURE, {"arborcast.notifications": _AT_MS + 9_000_000, "arborcast.dead": 0})],
    cameras.figures: CAMERAS,
    queues.job_figures: JOB,
    queues.requests: QueueRequests(REQUESTS, 4),
    operations.listed: (OPERATIONS, 3),
    federation.members: MemberList(MEMBERS, ""),
    federation.with_waiting: LINKS,
    waiting.oldest: WaitingList((PARKED,), 4, complete=True),
    waiting.counts: {},
    dead_letters.listed: LetterList((LETTER,), 0),
    dead_letters.first_whole: WholeLetter(LETTER, "anna", "urn:m7", "", "p7", "no room", "<hot/>"),
    messages.search: FoundMessages(
        (FoundMessage(PARKED.notification, PARKED.topic, _AT_MS, "anna", f"<hot>{'x' * 400}</hot>"),),
        1_204,
        5_242_880,
        "120.98",
    ),
    messages.recent: (RecentNotification(PARKED.notification, PARKED.topic, _AT_MS),),
    trace.trace: EXPLANATION,
    messages.last_attempts: ATTEMPTS,
}

Asked = list[tuple[Any, Any]]
"""Calls with their arguments."""

Answering = Callable[..., Asked]
"""`answering` of the console's fixtures: with the answers only."""

FEDERATED = {
    "federation__name": "n1",
    "federation__group": "north",
    "federation__administrator": "http://127.0.0.1:9",
    "federation__url": "https://n1.example:8080",
    "federation__key_file": "federation.key",
}
"""Settings of an engine in a federation."""


def answering(monkeypatch: pytest.MonkeyPatch, answers: Mapping[Any, Any] = ANSWERS) -> Asked:
    """Replace functions of `admin` by these answers; returns the calls. An exception is raised, a function called."""
    runs: Asked = []

    async def value(_self: Questions, function: Any, arguments: tuple[Any, ...], **_: Any) -> Any:
        runs.append((function, arguments))
        answer = answers[function]
        if isinstance(answer, Exception):
            raise answer
        return answer(*arguments) if callable(answer) else answer

    monkeypatch.setattr(Questions, "_value", value)
    return runs
