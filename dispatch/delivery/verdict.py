"""The verdict after a push, or on a delivery without one. Pure.

The hot path and the redelivery call the same function. Times are milliseconds since the epoch; chance is a parameter,
so that tests can repeat every decision.

| answer | verdict |
|---|---|
| 410 | the subscription ends, and its waiting deliveries are cancelled |
| a status of `retry.permanent_statuses`, a SOAP fault that blames the sender, a forbidden address | given up |
| any other status, no answer | retried: `retry.retransmissions` times, with growing waits |
| 202, the result later | waits for the result, which counts; without one in time it has failed |
| 429 or 503 with Retry-After | retried at that time, within `retry.longest_retry_after_s` |

A timely subscription has the first of these; any other failure drops the message (`settlement.settle`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from arborcast.dispatch.delivery.outcomes import Outcome
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.logs.attempts import State
from arborcast.dispatch.settings import RetrySettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryPolicy

GONE = 410

# Time for a result that a gateway has accepted just before the deadline.
RESULT_TRANSIT_MS = 1_000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The policy of one subscription: its own values, and the engine's settings of waits."""

    maximum_attempts: int
    lifespan_ms: int
    permanent: frozenset[int]
    waits: RetrySettings

    def expires_ms(self, notification: Notification) -> int:
        """The end of a notification's lifespan or validity, in milliseconds since the epoch."""
        end_ms = notification.accepted_ms + self.lifespan_ms
        return min(end_ms, notification.valid_until_ms) if notification.valid_until_ms else end_ms


def lifespan_ms(requested: DeliveryPolicy, settings: RetrySettings) -> int:
    return int(settings.lifespan_s * 1000) if requested.lifespan_ms is None else requested.lifespan_ms


# Answers of another engine, or a proxy, to a wrong key or URL. Operators repair these; the message is not to blame.
_CONFIGURATION_ERRORS = frozenset({401, 403, 404, 405})


def policy_of(requested: DeliveryPolicy, settings: RetrySettings, *, link: bool = False) -> RetryPolicy:
    """The engine's settings with the subscription's values; `link`: to another engine."""
    requested_attempts = sys.maxsize if requested.reliability == "strict" else requested.maximum_attempts
    return RetryPolicy(
        maximum_attempts=settings.retransmissions + 1 if requested_attempts is None else requested_attempts,
        lifespan_ms=lifespan_ms(requested, settings),
        permanent=settings.permanent() - _CONFIGURATION_ERRORS if link else settings.permanent(),
        waits=settings,
    )


def is_permanent(outcome: Outcome, policy: RetryPolicy) -> bool:
    """Whether the same push would get the same answer again."""
    return outcome.status in policy.permanent or outcome.hopeless


def wait_ms(policy: RetryPolicy, counted: int, chance: float, retry_after_s: float) -> int:
    """The wait after the `counted`th attempt. Jitter only adds: retries are never earlier than promised."""
    waits = policy.waits
    if retry_after_s > 0:
        base_s = min(max(retry_after_s, waits.first_wait_s), waits.longest_retry_after_s)
    else:
        # The exponent is bounded because a delivery without a limit on attempts may be tried for weeks.
        base_s = min(waits.first_wait_s * waits.factor ** min(max(counted - 1, 0), 64), waits.longest_wait_s)
    return int(base_s * 1000 * (1 + waits.jitter * chance))


class Verdict(NamedTuple):
    """The state of a delivery. `next_ms`: the time of its next attempt, 0 for none."""

    state: State
    next_ms: int = 0


DELIVERED = Verdict("delivered")


def leaves_letter(state: State, notification: Notification, lifespan_ms: int) -> bool:
    """Whether a delivery that ended in this state leaves a dead letter: given up, or past its lifespan. One past its
    publisher's validity leaves none."""
    if state != "expired":
        return state == "dead"
    return not 0 < notification.valid_until_ms <= notification.accepted_ms + lifespan_ms


def too_old(notification: Notification, lifespan_ms: int, otherwise: str) -> str:
    """The reason of an expiry: the validity ended, or `otherwise`."""
    if leaves_letter("expired", notification, lifespan_ms):
        return otherwise
    until = datetime.fromtimestamp(notification.valid_until_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return f"its validity ended at {until.replace('+00:00', 'Z')}"


class Push(NamedTuple):
    """A push with an outcome. `started_ms` is milliseconds since the epoch. `answer_by_ms`, unless 0: it is still in
    flight, and is answered by that time."""

    id: str
    notifications: Sequence[Notification]
    request: PushRequest
    result: PushResult
    started_ms: int
    answer_by_ms: int = 0


def verdict_of(
    outcome: Outcome,
    policy: RetryPolicy,
    notification: Notification,
    counted: int,
    push: Push,
    now_ms: int,
    chance: float,
) -> Verdict:
    """The verdict on a delivery after this push.

    `counted`: the pushes that count against the delivery, with this one; a probe of an unreachable endpoint does not.
    `chance` is a random number in [0, 1).
    """
    if outcome.delivered:
        return DELIVERED
    if outcome.taken:
        by_ms = push.request.result_by_ms
        # Counted from now, too: the clock may have been put back since the push began.
        return Verdict("parked", min(by_ms, now_ms + by_ms - push.started_ms) + RESULT_TRANSIT_MS)
    if outcome.status == GONE:
        return Verdict("cancelled")
    if is_permanent(outcome, policy):
        # Any of several messages may be the cause: each is pushed alone, at once.
        return Verdict("parked", now_ms) if len(push.notifications) > 1 else Verdict("dead")
    if counted >= policy.maximum_attempts:
        return Verdict("dead")
    at_ms = now_ms + wait_ms(policy, counted, chance, push.result.retry_after_s)
    if at_ms >= policy.expires_ms(notification):
        return Verdict("expired")
    return Verdict("parked", at_ms)


def dropped(why: Outcome) -> Outcome:
    """Why a timely delivery is dropped, where another would be parked."""
    detail = why.detail if why.error == "waiting" else f"{why.error}: {why.detail}"
    return Outcome("timely", detail, why.status)
