from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import ConfigError
from arborcast.dispatch.delivery.outcomes import Outcome, classify, is_sender_fault
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.delivery.verdict import Push, RetryPolicy, Verdict, is_permanent, policy_of, verdict_of, wait_ms
from arborcast.dispatch.logs.attempts import State
from arborcast.dispatch.settings import RetrySettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DEFAULT_POLICY, DeliveryPolicy
from tests.support.make import notification

NOW = 1_000_000
LIFESPAN_MS = 3_600_000
PLAIN = RetrySettings(
    first_wait_s=1.0,
    factor=2.0,
    longest_wait_s=10.0,
    jitter=0.0,
    lifespan_s=LIFESPAN_MS / 1000,
    longest_retry_after_s=120.0,
)
POLICY = policy_of(DEFAULT_POLICY, PLAIN)
LIMITED = policy_of(DeliveryPolicy(maximum_attempts=2, lifespan_ms=1_500), PLAIN)
BROKEN = PushResult(500)

FAULT_11 = b'<s:Envelope xmlns:s="x"><s:Body><s:Fault><faultcode>%s</faultcode><faultstring>no</faultstring>'
FAULT_12 = b'<e:Envelope xmlns:e="x"><e:Body><e:Fault><e:Code><e:Value>%s</e:Value></e:Code>'


def judged(
    result: PushResult = BROKEN, policy: RetryPolicy = POLICY, counted: int = 1, accepted_ms: int = NOW
) -> Verdict:
    message = notification(accepted_ms=accepted_ms)
    push = Push("p", [message], PushRequest("http://s/", (), b""), result, NOW)
    return verdict_of(classify(result), policy, message, counted, push, NOW, 0.0)


# State after the first attempt, error, whether the endpoint is unreachable; statuses and failures with this outcome.
@pytest.mark.parametrize(
    ("state", "error", "away", "results"),
    [
        # The status decides; the rest of the answer does not matter.
        ("delivered", "", False, [200, 202, 204, 299, (200, "timeout"), (202, "disconnected")]),
        ("cancelled", "client-error", False, [410]),
        ("dead", "client-error", False, [400, 401, 403, 404, 405, 413, 415]),
        ("dead", "address", False, [(0, "address")]),
        ("parked", "redirect", False, [301, 307]),
        ("parked", "client-error", False, [402, 406, 408, 409, 422]),
        ("parked", "client-error", True, [429]),
        ("parked", "server-error", False, [500, 501, 599]),
        ("parked", "server-error", True, [502, 503, 504, (503, "timeout")]),
        *(("parked", failure, True, [(0, failure)]) for failure in ("timeout", "connect", "dns", "tls")),
        *(("parked", failure, False, [(0, failure)]) for failure in ("disconnected", "protocol", "internal")),
        ("parked", "protocol", False, [0, 101, 999]),
    ],
)
def test_outcome_and_verdict_of_a_result(state: str, error: str, away: bool, results: list[Any]) -> None:
    for each in results:
        status, failure = each if isinstance(each, tuple) else (each, "")
        result = PushResult(status, failure)
        outcome = classify(result)
        assert (outcome.error, outcome.delivered, outcome.endpoint_unreachable) == (error, not error, away), each
        # A failure of the transport has its own detail.
        assert bool(outcome.detail) is (not outcome.delivered and outcome.error != failure), each
        verdict = judged(result)
        assert (verdict.state, verdict.next_ms) == (state, NOW + 1_000 if state == "parked" else 0), each


@pytest.mark.parametrize(
    ("result", "by_ms", "error", "delivered", "taken"),
    [
        (PushResult(202, later=True), NOW, "later", False, True),
        (PushResult(202, later=True), 0, "", True, True),
        (PushResult(202), NOW, "", True, True),
        (BROKEN, NOW, "server-error", False, False),
    ],
)
def test_outcome_where_a_result_may_come_later(
    result: PushResult, by_ms: int, error: str, delivered: bool, taken: bool
) -> None:
    outcome = classify(result, by_ms)
    assert (outcome.error, outcome.delivered, outcome.taken) == (error, delivered, taken)
    assert not outcome.is_message_error
    assert not outcome.endpoint_unreachable


@pytest.mark.parametrize(
    ("push", "verdict"),
    [
        # Growing waits for five retransmissions; the first after a push that did not count.
        *(({"counted": number}, 1_000 * wait) for number, wait in enumerate((1, 1, 2, 4, 8, 10))),
        ({"counted": 6}, "dead"),
        ({"accepted_ms": NOW - LIFESPAN_MS + 1_000}, "expired"),
        ({"accepted_ms": NOW - LIFESPAN_MS + 1_001}, 1_000),
        ({"policy": LIMITED}, 1_000),
        ({"policy": LIMITED, "counted": 2}, "dead"),
        ({"policy": LIMITED, "accepted_ms": NOW - 501}, "expired"),
        ({"result": PushResult(503, retry_after_s=0.5)}, 1_000),
        ({"result": PushResult(503, retry_after_s=7.0)}, 7_000),
        ({"result": PushResult(503, retry_after_s=60.0)}, 60_000),
        ({"result": PushResult(503, retry_after_s=1e9)}, 120_000),
    ],
)
def test_waits_and_limits(push: dict[str, Any], verdict: int | State) -> None:
    expected = Verdict("parked", NOW + verdict) if isinstance(verdict, int) else Verdict(verdict)
    assert judged(**push) == expected


def test_permanent_statuses_are_a_setting() -> None:
    policy = policy_of(DEFAULT_POLICY, RetrySettings(permanent_statuses="404, 500"))
    assert [judged(PushResult(status), policy).state for status in (500, 400, 410)] == ["dead", "parked", "cancelled"]
    for statuses in ("4xx", "400;404", "200", "99", "600"):
        with pytest.raises(ConfigError, match="permanent_statuses"):
            RetrySettings(permanent_statuses=statuses)


@pytest.mark.parametrize("status", [401, 403, 404, 405, 413])
def test_a_wrong_key_or_url_of_a_link_is_not_permanent(status: int) -> None:
    outcome = Outcome("client-error", "", status)
    assert is_permanent(outcome, POLICY)
    assert is_permanent(outcome, policy_of(DEFAULT_POLICY, PLAIN, link=True)) == (status == 413)


@given(
    counted=st.integers(1, 10**9),
    chance=st.floats(0, 1, exclude_max=True),
    retry_after=st.floats(0, 1e300),
    message=st.builds(lambda accepted_ms: notification(accepted_ms=accepted_ms), st.integers(0, 2 * NOW)),
    settings=st.builds(
        RetrySettings,
        first_wait_s=st.floats(0.001, 86_400),
        factor=st.floats(1, 100),
        longest_wait_s=st.floats(0.001, 604_800),
    ),
    attempts=st.integers(1, 2 * 10**9),
    error=st.sampled_from([Outcome("timeout", ""), Outcome("server-error", "", 503)]),
)
def test_any_verdict_is_within_its_bounds(
    counted: int,
    chance: float,
    retry_after: float,
    message: Notification,
    settings: RetrySettings,
    attempts: int,
    error: Outcome,
) -> None:
    policy = policy_of(DeliveryPolicy(maximum_attempts=attempts), settings)
    result = PushResult(error.status, retry_after_s=retry_after)
    push = Push("p", [message], PushRequest("http://s/", (), b""), result, NOW)

    match verdict_of(error, policy, message, counted, push, NOW, chance):
        case Verdict("parked", at_ms):
            assert counted < attempts
            assert NOW <= at_ms < policy.expires_ms(message)
            bound = settings.longest_retry_after_s if retry_after else settings.longest_wait_s
            assert at_ms - NOW <= bound * 1000 * (1 + settings.jitter)
        case Verdict("dead"):
            assert counted >= attempts
        case verdict:
            assert verdict == Verdict("expired")


@given(st.integers(1, 60), st.floats(0, 1, exclude_max=True))
def test_waits_do_not_shrink_and_jitter_only_adds(counted: int, chance: float) -> None:
    def wait(number: int, jitter: float, chance: float) -> int:
        policy = policy_of(DeliveryPolicy(maximum_attempts=100), RetrySettings(jitter=jitter, lifespan_s=10**7))
        return wait_ms(policy, number, chance, 0.0)

    assert wait(counted, 0.0, chance) <= wait(counted + 1, 0.0, chance)
    assert wait(counted, 0.0, chance) <= wait(counted, 0.5, chance) <= 1.5 * wait(counted, 0.0, 0.0) + 1


@pytest.mark.parametrize(
    ("response", "permanent"),
    [
        (FAULT_11 % b"Client", True),
        (FAULT_11 % b"soap:Client.Authentication", True),
        (FAULT_11 % b"\n soapenv:Client \n", True),
        (FAULT_12 % b"soap:Sender", True),
        (b'<SOAP-ENV:Fault><faultcode xmlns:q="x">q:Client</faultcode>', True),
        (FAULT_12 % b"SOAP-ENV.x:Sender", True),
        (FAULT_12 % b"soap:Receiver", False),
        (FAULT_11 % b"s:Server", False),
        (FAULT_11 % b"soap:Server.Client", False),
        (FAULT_11 % b"soap:Clientele", False),
        (FAULT_11 % b"soap:MustUnderstand", False),
        (b"<html>Client Sender</html>", False),
        (b"<faultcode>Client", False),
        (b"\xff\x00", False),
        (b"", False),
    ],
)
def test_sender_faults_are_permanent(response: bytes, permanent: bool) -> None:
    assert is_sender_fault(response) is permanent
    assert judged(PushResult(500, response=response)).state == ("dead" if permanent else "parked")
