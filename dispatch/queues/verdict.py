"""What follows from a server's answer to a request. Pure.

| what came back | what follows |
|---|---|
| 2xx | it has the request |
| 422, a fault with the subcode {urn:arborcast:queue}Invalid, whatever else is permanent | another server gets it; when all have refused it, it is given up |
| 410 | the server's subscription ends, another gets it |
| anything else, no answer | the same server gets it again after a while, or another at once where this one is sick; `retry.retransmissions` times |
"""  # noqa: E501  # a table

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, NamedTuple

from arborcast.dispatch.delivery.outcomes import Outcome
from arborcast.dispatch.delivery.verdict import DELIVERED, GONE, RetryPolicy, Verdict, is_permanent, wait_ms
from arborcast.dispatch.logs.parked import Tries
from arborcast.topic_model.namespaces import ARBORCAST_QUEUE
from arborcast.topic_model.records.notifications import Notification

_INVALID = 422

# As in `outcomes`: the answer is cut off and may be anything, so it is not parsed.
_SAYS_INVALID = re.compile(rb"<(?:[\w.-]+:)?(?:faultcode|Value)(?:\s[^<>]*+)?>\s*+(?:[\w.-]+:)?Invalid\s*+</")

_NAMESPACE = ARBORCAST_QUEUE.encode()

Said = Literal["taken", "invalid", "gone", "nothing"]


def says_invalid(response: bytes) -> bool:
    """Whether an answer's beginning is a SOAP fault that says that a request cannot be done."""
    return _NAMESPACE in response and _SAYS_INVALID.search(response) is not None


def said(outcome: Outcome, response: bytes, policy: RetryPolicy) -> Said:
    """What a server means."""
    if outcome.delivered:
        return "taken"
    if outcome.status == GONE:
        return "gone"
    if outcome.status == _INVALID or says_invalid(response) or is_permanent(outcome, policy):
        return "invalid"
    return "nothing"


class Next(NamedTuple):
    """What becomes of a request after a push: its state, how often it was tried, who is to have it again (empty for
    anybody) and who has refused it; `why` is the outcome of the last push."""

    verdict: Verdict
    tries: Tries
    server: str
    refused: frozenset[str]
    why: Outcome


class Sent(NamedTuple):
    """A push of a request: what it had been through, this push counted, to which server it went, and who had refused
    the request. `servers` are there now, `sick` says that this one is not to be tried; `excused` that the push only
    found out that it still is not."""

    tries: Tries
    server: str
    refused: frozenset[str]
    servers: Collection[str]
    sick: bool
    excused: bool


def decide(
    outcome: Outcome,
    response: bytes,
    sent: Sent,
    policy: RetryPolicy,
    notification: Notification,
    now_ms: int,
    chance: float,
    retry_after_s: float = 0.0,
) -> Next:
    """What becomes of a request."""
    tries, refused = sent.tries, sent.refused
    match said(outcome, response, policy):
        case "taken":
            return Next(DELIVERED, tries, "", refused, outcome)
        case "gone":
            return Next(Verdict("parked", now_ms), _again(tries, now_ms, now_ms), "", refused, outcome)
        case "invalid":
            refused |= {sent.server}
            if not refused.issuperset(sent.servers):
                return Next(Verdict("parked", now_ms), _again(tries, now_ms, now_ms), "", refused, outcome)
            return Next(Verdict("dead"), tries, "", refused, all_refuse(len(refused), outcome.detail, outcome.status))
    counted = tries.counted + (not sent.excused)
    if counted >= policy.maximum_attempts:
        return Next(Verdict("dead"), tries, "", refused, outcome)
    at_ms = now_ms
    if not sent.sick:
        at_ms += wait_ms(policy, counted, chance, retry_after_s)
        if at_ms >= policy.expires_ms(notification):
            return Next(Verdict("expired"), tries, "", refused, outcome)
    server = "" if sent.sick else sent.server
    return Next(Verdict("parked", at_ms), _again(tries, at_ms, now_ms, counted), server, refused, outcome)


def all_refuse(servers: int, detail: str, status: int = 0) -> Outcome:
    """Why a request is given up that every server has refused."""
    return Outcome("invalid", f"refused by all of its queue's servers ({servers}), the last said: {detail}", status)


def sequence_of(tries: Tries) -> int:
    """What a push says of a request that has been through this: how many pushes of it counted, 0 for the first one. A
    server that has the request is not to do it again."""
    return max(1, tries.counted) if tries.number else 0


def _again(tries: Tries, at_ms: int, now_ms: int, counted: int | None = None) -> Tries:
    return Tries(tries.number, tries.counted if counted is None else counted, at_ms, now_ms)
