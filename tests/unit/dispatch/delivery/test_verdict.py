from __future__ import annotations

from arborcast.dispatch.delivery.outcomes import Outcome, failed
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.delivery.verdict import Push, Verdict, attempt, untried
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath

NOW_MS = 100_000_000
MESSAGE = Notification("n", TopicPath("a"), b"<x/>", NOW_MS - 7)


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
