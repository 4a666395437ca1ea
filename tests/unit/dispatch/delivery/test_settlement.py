"""The decisions after a push, for workers, redelivery and queues."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from arborcast.dispatch.delivery.outcomes import DELIVERED, Outcome, failed
from arborcast.dispatch.delivery.settlement import UNTRIED, Decision, at_once, attempt, settle, unpushed, untried
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.delivery.verdict import RESULT_TRANSIT_MS, Push, Verdict, policy_of
from arborcast.dispatch.logs.attempts import Attempt, State
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.settings import RetrySettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DEFAULT_POLICY
from arborcast.topic_model.topics import TopicPath
from tests.support.make import notification

NOW_MS = 100_000_000
SETTINGS = RetrySettings(retransmissions=2, first_wait_s=1.0, factor=2.0, jitter=0.0, lifespan_s=60.0)
POLICY = policy_of(DEFAULT_POLICY, SETTINGS)
BROKEN = Outcome("server-error", "HTTP 500", 500)
REFUSED = Outcome("client-error", "HTTP 400", 400, hopeless=True)
AWAY = failed("connect", "refused")
GONE = Outcome("client-error", "HTTP 410", 410)
LATER = Outcome("later", "HTTP 202", 202)
TRIED = Tries(2, 1, NOW_MS - 5_000, NOW_MS - 9_000)
AWAITS = TRIED._replace(awaits="p")


class Waiting(NamedTuple):
    notification: Notification
    tries: Tries = UNTRIED


def message(age_ms: int = 0, valid_until_ms: int = 0) -> Notification:
    return notification("n", "a", accepted_ms=NOW_MS - age_ms, valid_until_ms=valid_until_ms)


def push(messages: int = 1, answer_by_ms: int = 0, result_by_ms: int = 0, retry_after_s: float = 0.0) -> Push:
    request = PushRequest("http://s/", (), b"", result_by_ms=result_by_ms)
    result = PushResult(500, retry_after_s=retry_after_s)
    return Push("p", [message()] * messages, request, result, NOW_MS, answer_by_ms)


def at(number: int, counted: int, due_ms: int = 0, awaits: str = "") -> Tries:
    return Tries(number, counted, due_ms, NOW_MS, awaits)


# Tries before, push, outcome; state, tries after, whether there is a dead letter.
@pytest.mark.parametrize(
    ("tries", "made", "outcome", "state", "expected", "letter"),
    [
        (UNTRIED, push(), DELIVERED, "delivered", at(1, 1), False),
        (TRIED, push(), DELIVERED, "delivered", at(3, 2), False),
        (UNTRIED, push(), BROKEN, "parked", at(1, 1, NOW_MS + 1_000), False),
        (UNTRIED, push(retry_after_s=9.0), BROKEN, "parked", at(1, 1, NOW_MS + 9_000), False),
        (TRIED, push(), BROKEN, "parked", at(3, 2, NOW_MS + 2_000), False),
        (TRIED._replace(counted=2), push(), BROKEN, "dead", at(3, 3), True),
        (UNTRIED, push(), REFUSED, "dead", at(1, 1), True),
        (UNTRIED, push(2), REFUSED, "parked", at(1, 1, NOW_MS), False),
        (TRIED, push(), GONE, "cancelled", at(3, 2), False),
        # A push with a later result counts with its result, which is no further push.
        (TRIED, push(result_by_ms=NOW_MS + 7), LATER, "parked", at(3, 1, NOW_MS + 7 + RESULT_TRANSIT_MS, "p"), False),
        (AWAITS, push(), BROKEN, "parked", at(2, 2, NOW_MS + 2_000), False),
        (AWAITS, push(), DELIVERED, "delivered", at(2, 2), False),
        (AWAITS._replace(awaits="another"), push(), DELIVERED, "delivered", at(3, 2), False),
        # A push in flight counts with its answer.
        (UNTRIED, push(answer_by_ms=NOW_MS + 5), failed("waiting", ""), "parked", at(1, 0, NOW_MS + 5, ">p"), False),
    ],
)
def test_decisions_after_a_push(
    tries: Tries, made: Push, outcome: Outcome, state: State, expected: Tries, letter: bool
) -> None:
    decision = settle(Waiting(message(), tries), made, outcome, POLICY, NOW_MS, 0.0)

    assert decision == Decision(Verdict(state, expected.due_ms), expected, outcome, letter)
    assert decision.waits == (state == "parked")


def test_a_decision_for_all_messages_of_a_push() -> None:
    for outcome in (DELIVERED, Outcome("", "", 202)):
        decision, same = settle(Waiting(message()), push(), outcome, POLICY, NOW_MS, 0.0), at_once(outcome)
        assert same is not None
        assert (same.verdict, same.tries.number, same.letter) == (decision.verdict, decision.tries.number, False)
    assert [at_once(each) for each in (BROKEN, GONE, LATER, Outcome("", "sent as a datagram"))] == [None] * 4


def test_a_probe_of_an_unreachable_endpoint_does_not_count() -> None:
    def counted(outcome: Outcome, probe: bool) -> int:
        return settle(Waiting(message(), TRIED), push(), outcome, POLICY, NOW_MS, 0.0, probe=probe).tries.counted

    assert [counted(AWAY, probe=True), counted(AWAY, probe=False), counted(BROKEN, probe=True)] == [1, 2, 2]


@pytest.mark.parametrize(
    ("outcome", "state", "why"),
    [
        (DELIVERED, "delivered", DELIVERED),
        (LATER, "delivered", LATER),
        (GONE, "cancelled", GONE),
        (BROKEN, "dropped", Outcome("timely", "server-error: HTTP 500", 500)),
        (failed("waiting", "no answer yet"), "dropped", Outcome("timely", "no answer yet")),
    ],
)
def test_a_timely_delivery_has_one_try_and_never_waits(outcome: Outcome, state: State, why: Outcome) -> None:
    for made in (push(), push(answer_by_ms=NOW_MS + 5)):
        decision = settle(Waiting(message()), made, outcome, POLICY, NOW_MS, 0.0, drops=True)
        assert (decision.verdict, decision.why, decision.letter) == (Verdict(state), why, False)


def test_dead_letters_of_expired_deliveries() -> None:
    by_lifespan, by_validity = Waiting(message(59_500)), Waiting(message(0, NOW_MS + 500))
    assert [settle(each, push(), BROKEN, POLICY, NOW_MS, 0.0).letter for each in (by_lifespan, by_validity)] == [
        True,
        False,
    ]


def test_a_decision_without_a_push_keeps_the_tries() -> None:
    waits, why = Verdict("parked"), failed("waiting", "behind another")

    assert unpushed(Waiting(message(), TRIED), waits, why) == Decision(waits, TRIED, why)
    timely = unpushed(Waiting(message(), TRIED), waits, why, drops=True)
    assert timely == Decision(Verdict("dropped"), TRIED, Outcome("timely", "behind another"))
    assert unpushed(Waiting(message()), Verdict("dead"), BROKEN).letter


def test_rows_of_a_push_and_of_a_decision_without_one() -> None:
    result = PushResult(500, "", "", 0.0123456, b"no", 4_000, True, 0.0)
    made = Push("p", [message(7), message(7)], PushRequest("http://proxied/", (), b"12345"), result, NOW_MS)
    waits = Verdict("parked", NOW_MS + 9)
    failure = Outcome("server-error", "x" * 501, 500)
    row = attempt("s", "http://s/", message(7), Decision(waits, Tries(3), failure), made, 17)
    common: dict[str, Any] = {
        "notification": "n",
        "subscription": "s",
        "topic": TopicPath("a"),
        "endpoint": "http://s/",
    }
    common |= {"state": "parked", "accepted_ms": NOW_MS - 7, "started_ms": NOW_MS, "batch": 17, "next_ms": NOW_MS + 9}
    assert row == Attempt(
        **common,
        number=3,
        push="p",
        duration_ms=12.346,
        error="server-error",
        detail="x" * 500,
        status=500,
        messages=2,
        request_bytes=5,
        response_bytes=4_000,
        response=b"no",
        reused=True,
    )
    decision = Decision(waits, Tries(2), failed("waiting", "y" * 501))
    row = untried("s", "http://s/", message(7), decision, NOW_MS, 17)
    assert row == Attempt(**common, number=2, push="", duration_ms=0.0, error="waiting", detail="y" * 500)
