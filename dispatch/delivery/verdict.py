"""What a push, or the decision not to push, becomes in the `attempts` log. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dispatch.delivery.outcomes import Outcome
from dispatch.delivery.retry import DeliverLater, DeliveryHistory, EndSubscription, GiveUp, RetryPolicy, decide
from dispatch.delivery.transport.contract import PushRequest, PushResult
from dispatch.logs.attempts import Attempt, State
from topic_model.records.notifications import Notification
from topic_model.subscriptions import Subscription


class Verdict(NamedTuple):
    """What becomes of a delivery. `next_ms` is when it is due again, 0 when it is not."""

    state: State
    next_ms: int = 0


DELIVERED = Verdict("delivered")

# These are kept as dead letters.
GIVEN_UP: frozenset[State] = frozenset({"dead", "expired"})


class Push(NamedTuple):
    """A push that has an outcome. `started_ms` is milliseconds since the epoch."""

    id: str
    notifications: Sequence[Notification]
    request: PushRequest
    result: PushResult
    started_ms: int


def judge(
    outcome: Outcome,
    policy: RetryPolicy,
    notification: Notification,
    counted: int,
    push: Push,
    now_ms: int,
    chance: float,
) -> Verdict:
    """What becomes of a delivery after a push with this outcome; see `retry` for `counted` and `chance`."""
    if outcome.delivered:
        return DELIVERED
    history = DeliveryHistory(notification.accepted_ms, counted, companions=len(push.notifications) - 1)
    match decide(outcome, policy, history, now_ms, chance, push.result.retry_after_s):
        case DeliverLater(at_ms):
            return Verdict("parked", at_ms)
        case GiveUp("expired"):
            return Verdict("expired")
        case GiveUp():
            return Verdict("dead")
        case EndSubscription():
            return Verdict("cancelled")


def attempt(
    subscription: Subscription,
    notification: Notification,
    number: int,
    verdict: Verdict,
    outcome: Outcome,
    push: Push,
    batch: int,
) -> Attempt:
    """The row of one notification in a push."""
    result = push.result
    return Attempt(
        notification=notification.id,
        subscription=subscription.id,
        topic=notification.topic,
        endpoint=subscription.consumer.address,
        number=number,
        push=push.id,
        state=verdict.state,
        accepted_ms=notification.accepted_ms,
        started_ms=push.started_ms,
        duration_ms=round(result.duration_s * 1000, 3),
        error=outcome.error,
        detail=outcome.detail[:500],
        status=result.status,
        messages=len(push.notifications),
        request_bytes=len(push.request.body),
        response_bytes=result.response_bytes,
        response=result.response,
        reused=result.reused,
        batch=batch,
        next_ms=verdict.next_ms,
    )


def untried(
    subscription_id: str,
    endpoint: str,
    notification: Notification,
    number: int,
    verdict: Verdict,
    why: Outcome,
    now_ms: int,
    batch: int,
) -> Attempt:
    """The row of a delivery about which something was decided without a push; `number` attempts came before."""
    return Attempt(
        notification=notification.id,
        subscription=subscription_id,
        topic=notification.topic,
        endpoint=endpoint,
        number=number,
        push="",
        state=verdict.state,
        accepted_ms=notification.accepted_ms,
        started_ms=now_ms,
        duration_ms=0.0,
        error=why.error,
        detail=why.detail[:500],
        batch=batch,
        next_ms=verdict.next_ms,
    )
