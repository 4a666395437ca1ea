"""The decision about a delivery, after a push or without one, and its row in the `attempts` log, for workers,
redelivery and queues. Pure. `verdict` has the rules; a decision also has the tries of the delivery, and whether it
leaves a dead letter.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from arborcast.dispatch.delivery import outcomes
from arborcast.dispatch.delivery.outcomes import Outcome, failed
from arborcast.dispatch.delivery.transport.contract import NO_REQUEST, NO_RESULT
from arborcast.dispatch.delivery.verdict import (
    DELIVERED,
    GONE,
    Push,
    RetryPolicy,
    Verdict,
    dropped,
    leaves_letter,
    too_old,
    verdict_of,
)
from arborcast.dispatch.logs.attempts import NO_BATCH, Attempt
from arborcast.dispatch.logs.parked import UNANSWERED_PUSH, Tries
from arborcast.topic_model.records.notifications import Notification

UNTRIED = Tries()


class Pending(Protocol):
    """A delivery before a decision, with its tries so far."""

    @property
    def notification(self) -> Notification: ...

    @property
    def tries(self) -> Tries: ...


class Decision(NamedTuple):
    """The decision about a delivery with its reason. `tries` are the attempts so far; `letter`: a dead letter is
    written."""

    verdict: Verdict
    tries: Tries
    why: Outcome
    letter: bool = False

    @property
    def waits(self) -> bool:
        return self.verdict.state == "parked"


class Deferral(NamedTuple):
    """The decision not to push a delivery now: it is parked or cancelled; with the reason."""

    verdict: Verdict
    why: Outcome


# The decision for almost all deliveries.
_AT_ONCE = Decision(DELIVERED, Tries(1, 1), outcomes.DELIVERED)


def at_once(outcome: Outcome) -> Decision | None:
    """The decision after the first push of a delivery if it is the same for all, otherwise None."""
    return _AT_ONCE if outcome.delivered and not outcome.detail else None


def settle(
    pending: Pending,
    push: Push,
    outcome: Outcome,
    policy: RetryPolicy,
    now_ms: int,
    chance: float,
    *,
    drops: bool = False,
    probe: bool = False,
) -> Decision:
    """The decision after a push, or after the result of a push that was taken for later.

    `drops`: a delivery that would be parked is dropped. A `probe` that finds the endpoint unreachable does not count
    against the message; one that is answered counts, or a message that the endpoint always refuses would be tried for
    ever. `chance` is a random number in [0, 1).
    """
    (number, counted, _, _, awaited), awaits = pending.tries, ""
    if not awaited or awaited != push.id:
        number += 1
    if drops:
        verdict = DELIVERED if outcome.taken else Verdict("cancelled" if outcome.status == GONE else "dropped")
        if verdict.state == "dropped":
            outcome = dropped(outcome)
    elif push.answer_by_ms:
        verdict, awaits = Verdict("parked", push.answer_by_ms), UNANSWERED_PUSH + push.id  # counts with its answer
    elif outcome.taken and not outcome.delivered:
        verdict, awaits = verdict_of(outcome, policy, pending.notification, counted, push, now_ms, chance), push.id
    else:
        counted += not (probe and outcome.endpoint_unreachable)
        verdict = verdict_of(outcome, policy, pending.notification, counted, push, now_ms, chance)
    letter = leaves_letter(verdict.state, pending.notification, policy.lifespan_ms)
    return Decision(verdict, Tries(number, counted, verdict.next_ms, now_ms, awaits), outcome, letter)


def unpushed(
    pending: Pending, verdict: Verdict, why: Outcome, lifespan_ms: int = 0, *, drops: bool = False
) -> Decision:
    if drops and verdict.state == "parked":
        verdict, why = Verdict("dropped"), dropped(why)
    return Decision(verdict, pending.tries, why, leaves_letter(verdict.state, pending.notification, lifespan_ms))


def expired(pending: Pending, lifespan_ms: int, detail: str) -> Decision:
    """The decision for a delivery past its validity, or past another limit with `detail`."""
    why = failed("lifespan", too_old(pending.notification, lifespan_ms, detail))
    return unpushed(pending, Verdict("expired"), why, lifespan_ms)


def untried(
    subscription_id: str,
    endpoint: str,
    notification: Notification,
    decision: Decision,
    now_ms: int,
    batch: int = NO_BATCH,
) -> Attempt:
    """The row of a decision without a push."""
    push = Push("", (notification,), NO_REQUEST, NO_RESULT, now_ms)
    return attempt(subscription_id, endpoint, notification, decision, push, batch)


def attempt(
    subscription_id: str,
    endpoint: str,
    notification: Notification,
    decision: Decision,
    push: Push,
    batch: int = NO_BATCH,
) -> Attempt:
    """The row of a decision after a push."""
    (state, next_ms), tries, why, letter = decision
    result = push.result
    return Attempt(
        notification=notification.id,
        subscription=subscription_id,
        topic=notification.topic,
        endpoint=endpoint,
        number=tries.number,
        push=push.id,
        state=state,
        accepted_ms=notification.accepted_ms,
        started_ms=push.started_ms,
        duration_ms=round(result.duration_s * 1000, 3),
        error=why.error,
        detail=why.detail[:500],
        status=result.status,
        messages=len(push.notifications),
        request_bytes=len(push.request.body),
        response_bytes=result.response_bytes,
        response=result.response,
        reused=result.reused,
        batch=batch,
        next_ms=next_ms,
        lapsed=state == "expired" and not letter,
    )
