"""The decision after a server's answer to a request. Pure.

| answer | decision |
|---|---|
| 2xx | the server has the request |
| 202, the result later | the server is busy until its result, which counts; without one in time it has failed |
| 422, a fault with the subcode {urn:arborcast:queue}Invalid, any other permanent failure | another server gets it; when
all have refused it, it is given up | | 410 | the server's subscription ends, another gets the request |
| any other answer, no answer | retried with the same server, or at once with another if this one is sick;
`retry.retransmissions` times |"""  # a table

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, NamedTuple

from arborcast.dispatch.delivery.outcomes import Outcome
from arborcast.dispatch.delivery.settlement import Decision, Pending, settle
from arborcast.dispatch.delivery.verdict import GONE, Push, RetryPolicy, Verdict, is_permanent
from arborcast.dispatch.logs.parked import Tries
from arborcast.topic_model.namespaces import ARBORCAST_QUEUE

_INVALID = 422

# As in `outcomes`: the answer is cut off and may be anything, so it is not parsed.
_INVALID_FAULT = re.compile(rb"<(?:[\w.-]+:)?(?:faultcode|Value)(?:\s[^<>]*+)?>\s*+(?:[\w.-]+:)?Invalid\s*+</")

_NAMESPACE = ARBORCAST_QUEUE.encode()

Answer = Literal["taken", "invalid", "gone", "nothing"]


def _is_invalid(response: bytes) -> bool:
    """Whether an answer begins with a SOAP fault for an invalid request."""
    return _NAMESPACE in response and _INVALID_FAULT.search(response) is not None


def answer_of(outcome: Outcome, response: bytes, policy: RetryPolicy) -> Answer:
    if outcome.delivered:
        return "taken"
    if outcome.status == GONE:
        return "gone"
    if outcome.status == _INVALID or _is_invalid(response) or is_permanent(outcome, policy):
        return "invalid"
    return "nothing"


class NextPush(NamedTuple):
    """The decision for a request after a push, the server of its next push (empty for any), and the servers that have
    refused it."""

    decision: Decision
    server: str
    refused: frozenset[str]


class Sent(NamedTuple):
    """A push of a request: its server, and the servers that had refused the request. `servers` are the current ones;
    `sick`: nothing may be pushed to this one; `probe` is as in `settle`."""

    server: str
    refused: frozenset[str]
    servers: Collection[str]
    sick: bool
    probe: bool


def decide(
    request: Pending, push: Push, outcome: Outcome, sent: Sent, policy: RetryPolicy, now_ms: int, chance: float
) -> NextPush:
    before, refused = request.tries, sent.refused
    answer = answer_of(outcome, push.result.response, policy)
    if answer in ("gone", "invalid"):
        number = before.number + (before.awaits != push.id)  # a later result belongs to its push
        tries = Tries(number, before.counted, now_ms, now_ms)
        if answer == "invalid":
            refused |= {sent.server}
            if refused.issuperset(sent.servers):
                why = all_refuse(len(refused), outcome.detail, outcome.status)
                return NextPush(Decision(Verdict("dead"), tries, why, letter=True), "", refused)
        return NextPush(Decision(Verdict("parked", now_ms), tries, outcome), "", refused)
    decision = settle(request, push, outcome, policy, now_ms, chance, probe=sent.probe)
    if sent.sick and not outcome.taken and decision.verdict.state in ("parked", "expired"):
        # Another worker may get it at once.
        tries = decision.tries._replace(due_ms=now_ms)
        return NextPush(Decision(Verdict("parked", now_ms), tries, outcome), "", refused)
    return NextPush(decision, sent.server if decision.waits else "", refused)


def all_refuse(servers: int, detail: str, status: int = 0) -> Outcome:
    """The reason for a request that every worker has refused."""
    return Outcome("invalid", f"refused by all of its queue's workers ({servers}), the last answer: {detail}", status)


def sequence_of(tries: Tries) -> int:
    """The number of counted pushes of a request, 0 at the first one: a server that has the request must not execute it
    again."""
    return max(1, tries.counted) if tries.number else 0
