from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import ConfigError
from arborcast.dispatch.delivery.outcomes import Outcome, blames_sender, classify
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.delivery.verdict import Push, RetryPolicy, Verdict, is_permanent, judge, policy_of, wait_ms
from arborcast.dispatch.settings import RetrySettings
from arborcast.topic_model.subscriptions import DEFAULT_POLICY, DeliveryPolicy
from tests.support.make import notification

NOW = 1_000_000
PLAIN = RetrySettings(first_wait_s=1.0, factor=2.0, longest_wait_s=10.0, jitter=0.0, lifespan_s=3600.0)
POLICY = policy_of(DEFAULT_POLICY, PLAIN)

FAULT_11 = b'<s:Envelope xmlns:s="x"><s:Body><s:Fault><faultcode>%s</faultcode><faultstring>no</faultstring>'
FAULT_12 = b'<e:Envelope xmlns:e="x"><e:Body><e:Fault><e:Code><e:Value>%s</e:Value></e:Code>'


def judged(
    result: PushResult, counted: int = 1, companions: int = 0, policy: RetryPolicy = POLICY, accepted: int = NOW
) -> Verdict:
    push = Push(
        "p", [notification(accepted_ms=accepted)] * (1 + companions), PushRequest("http://s/", (), b""), result, NOW
    )
    return judge(classify(result), policy, notification(accepted_ms=accepted), counted, push, NOW, 0.0)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (PushResult(410), Verdict("cancelled")),
        *((PushResult(status), Verdict("dead")) for status in (400, 401, 403, 404, 405, 413, 415)),
        (PushResult(0, "address"), Verdict("dead")),
        (PushResult(500, response=FAULT_11 % b"s:Client"), Verdict("dead")),
        (PushResult(500, response=FAULT_12 % b"e:Sender"), Verdict("dead")),
        (PushResult(500, response=FAULT_11 % b"s:Server"), Verdict("parked", NOW + 1000)),
        *(
            (PushResult(status), Verdict("parked", NOW + 1000))
            for status in (301, 307, 402, 406, 408, 409, 422, 429, 500, 501, 502, 503, 504, 599)
        ),
        *(
            (PushResult(0, failure), Verdict("parked", NOW + 1000))
            for failure in ("dns", "connect", "tls", "timeout", "disconnected", "protocol", "internal")
        ),
    ],
)
def test_what_follows_from_the_first_failure(result: PushResult, expected: Verdict) -> None:
    assert judged(result) == expected


def test_five_numbered_retransmissions_ever_longer_apart_then_given_up() -> None:
    waits = [judged(PushResult(500), counted) for counted in range(1, 7)]

    assert waits == [*(Verdict("parked", NOW + wait) for wait in (1000, 2000, 4000, 8000, 10_000)), Verdict("dead")]


@pytest.mark.parametrize(
    ("retry_after", "wait"), [(0.0, 1000), (0.5, 1000), (7.0, 7000), (60.0, 60_000), (1e9, 120_000)]
)
def test_retry_after_is_obeyed_within_bounds(retry_after: float, wait: int) -> None:
    policy = policy_of(DEFAULT_POLICY, RetrySettings(first_wait_s=1.0, jitter=0.0, longest_retry_after_s=120.0))

    assert judged(PushResult(503, retry_after_s=retry_after), policy=policy) == Verdict("parked", NOW + wait)


def test_what_would_be_too_old_at_its_next_try_has_expired() -> None:
    almost = NOW - 3_600_000 + 1000

    assert judged(PushResult(500), accepted=almost) == Verdict("expired")
    assert judged(PushResult(500), accepted=almost + 1) == Verdict("parked", NOW + 1000)


def test_a_push_that_did_not_count_is_followed_by_the_first_wait() -> None:
    assert judged(PushResult(500), counted=0) == judged(PushResult(500), counted=1) == Verdict("parked", NOW + 1000)


def test_subscription_may_ask_for_its_own_limits() -> None:
    policy = policy_of(DeliveryPolicy(maximum_attempts=2, lifespan_ms=1500), PLAIN)

    assert judged(PushResult(500), 1, policy=policy) == Verdict("parked", NOW + 1000)
    assert judged(PushResult(500), 2, policy=policy) == Verdict("dead")
    assert judged(PushResult(500), 1, policy=policy, accepted=NOW - 501) == Verdict("expired")


def test_table_of_permanent_answers_is_a_setting() -> None:
    policy = policy_of(DEFAULT_POLICY, RetrySettings(permanent_statuses="404 500"))

    assert judged(PushResult(500), policy=policy) == Verdict("dead")
    assert judged(PushResult(400), policy=policy).state == "parked"
    assert judged(PushResult(410), policy=policy) == Verdict("cancelled")


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_a_wrong_key_or_url_of_a_link_gives_no_message_up(status: int) -> None:
    outcome = Outcome("client-error", "", status)
    assert is_permanent(outcome, policy_of(DEFAULT_POLICY, PLAIN))
    assert not is_permanent(outcome, policy_of(DEFAULT_POLICY, PLAIN, link=True))
    assert is_permanent(Outcome("client-error", "", 413), policy_of(DEFAULT_POLICY, PLAIN, link=True))


@pytest.mark.parametrize("statuses", ["4xx", "400,404", "200", "99", "600"])
def test_nonsense_in_the_table_is_refused(statuses: str) -> None:
    with pytest.raises(ConfigError, match="permanent_statuses"):
        RetrySettings(permanent_statuses=statuses)


@given(
    counted=st.integers(1, 10**9),
    chance=st.floats(0, 1, exclude_max=True),
    retry_after=st.floats(0, 1e300),
    accepted=st.integers(0, 2 * NOW),
    first=st.floats(0.001, 86_400),
    factor=st.floats(1, 100),
    longest=st.floats(0.001, 604_800),
    attempts=st.integers(1, 2 * 10**9),
    error=st.sampled_from([Outcome("timeout", ""), Outcome("server-error", "", 503)]),
)
def test_any_decision_is_within_its_bounds(
    counted: int,
    chance: float,
    retry_after: float,
    accepted: int,
    first: float,
    factor: float,
    longest: float,
    attempts: int,
    error: Outcome,
) -> None:
    settings = RetrySettings(first_wait_s=first, factor=factor, longest_wait_s=longest)
    policy = policy_of(DeliveryPolicy(maximum_attempts=attempts), settings)

    result = PushResult(error.status, retry_after_s=retry_after)
    push = Push("p", [notification(accepted_ms=accepted)], PushRequest("http://s/", (), b""), result, NOW)

    verdict = judge(error, policy, notification(accepted_ms=accepted), counted, push, NOW, chance)

    match verdict:
        case Verdict("parked", at_ms):
            assert counted < attempts
            assert NOW <= at_ms < policy.expires_ms(notification(accepted_ms=accepted))
            bound = settings.longest_retry_after_s if retry_after else longest
            assert at_ms - NOW <= bound * 1000 * (1 + settings.jitter)
        case Verdict("dead"):
            assert counted >= attempts
        case _:
            assert verdict == Verdict("expired")


@given(st.integers(1, 60), st.floats(0, 1, exclude_max=True))
def test_waits_do_not_shrink_and_jitter_only_adds(counted: int, chance: float) -> None:
    def wait(number: int, jitter: float, chance: float) -> int:
        policy = policy_of(DeliveryPolicy(maximum_attempts=100), RetrySettings(jitter=jitter, lifespan_s=10**7))
        return wait_ms(policy, number, chance, 0.0)

    assert wait(counted, 0.0, chance) <= wait(counted + 1, 0.0, chance)
    assert wait(counted, 0.0, chance) <= wait(counted, 0.5, chance) <= 1.5 * wait(counted, 0.0, 0.0) + 1


@pytest.mark.parametrize(
    ("response", "blamed"),
    [
        (FAULT_11 % b"Client", True),
        (FAULT_11 % b"soap:Client.Authentication", True),
        (FAULT_11 % b"\n soapenv:Client \n", True),
        (FAULT_12 % b"soap:Sender", True),
        (b'<SOAP-ENV:Fault><faultcode xmlns:q="x">q:Client</faultcode>', True),
        (FAULT_12 % b"SOAP-ENV.x:Sender", True),
        (FAULT_12 % b"soap:Receiver", False),
        (FAULT_11 % b"soap:Server.Client", False),
        (FAULT_11 % b"soap:Clientele", False),
        (FAULT_11 % b"soap:MustUnderstand", False),
        (b"<html>Client Sender</html>", False),
        (b"<faultcode>Client", False),
        (b"\xff\x00", False),
        (b"", False),
    ],
)
def test_whom_a_fault_blames(response: bytes, blamed: bool) -> None:
    assert blames_sender(response) is blamed
