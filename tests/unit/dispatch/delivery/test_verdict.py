from __future__ import annotations

import pytest

from arborcast.dispatch.delivery.outcomes import DELIVERED, Outcome, failed
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.delivery.verdict import Push, Verdict, attempt, judge, policy_of, untried
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.settings import RetrySettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DEFAULT_POLICY, EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath

NOW_MS = 100_000_000
POLICY = policy_of(DEFAULT_POLICY, RetrySettings(retransmissions=5, first_wait_s=1.0, jitter=0.5, lifespan_s=60.0))
BROKEN = Outcome("server-error", "HTTP 500", 500)
MESSAGE = Notification("n", TopicPath("a"), b"<x/>", NOW_MS - 7)


def pushed(*messages: Notification, retry_after_s: float = 0.0) -> Push:
    return Push("p", messages, PushRequest("http://s/", (), b""), PushResult(500, retry_after_s=retry_after_s), NOW_MS)


@pytest.mark.parametrize(
    ("outcome", "counted", "age_ms", "expected"),
    [
        (DELIVERED, 6, 10**9, Verdict("delivered")),
        (BROKEN, 1, 0, Verdict("parked", NOW_MS + 1_000)),
        (BROKEN, 6, 0, Verdict("dead")),
        (BROKEN, 1, 59_000, Verdict("expired")),
        (Outcome("client-error", "HTTP 404", 404), 1, 0, Verdict("dead")),
        (Outcome("client-error", "HTTP 410", 410), 1, 0, Verdict("cancelled")),
    ],
)
def test_what_becomes_of_a_delivery(outcome: Outcome, counted: int, age_ms: int, expected: Verdict) -> None:
    message = Notification("n", TopicPath("a"), b"<x/>", NOW_MS - age_ms)

    assert judge(outcome, POLICY, message, counted, pushed(message), NOW_MS, 0.0) == expected


def test_the_row_of_a_push_says_all_of_it() -> None:
    result = PushResult(500, "", "", 0.0123456, b"no", 4_000, True, 0.0)
    push = Push("p", [MESSAGE, MESSAGE], PushRequest("http://proxied/", (), b"12345"), result, NOW_MS)
    subscription = Subscription("s", EndpointReference("http://s/"))

    row = attempt(
        subscription, MESSAGE, 3, Verdict("parked", NOW_MS + 9), Outcome("server-error", "x" * 501, 500), push, 17
    )

    assert row == Attempt(
        notification="n",
        subscription="s",
        topic=TopicPath("a"),
        endpoint="http://s/",
        number=3,
        push="p",
        state="parked",
        accepted_ms=NOW_MS - 7,
        started_ms=NOW_MS,
        duration_ms=12.346,
        error="server-error",
        detail="x" * 500,
        status=500,
        messages=2,
        request_bytes=5,
        response_bytes=4_000,
        response=b"no",
        reused=True,
        batch=17,
        next_ms=NOW_MS + 9,
    )


def test_the_row_of_a_decision_without_a_push_says_how_often_there_was_one() -> None:
    row = untried("s", "http://s/", MESSAGE, 2, Verdict("parked", NOW_MS + 9), failed("waiting", "y" * 501), NOW_MS, 17)

    assert row == Attempt(
        notification="n",
        subscription="s",
        topic=TopicPath("a"),
        endpoint="http://s/",
        number=2,
        push="",
        state="parked",
        accepted_ms=NOW_MS - 7,
        started_ms=NOW_MS,
        duration_ms=0.0,
        error="waiting",
        detail="y" * 500,
        batch=17,
        next_ms=NOW_MS + 9,
    )
