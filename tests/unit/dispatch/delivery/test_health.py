from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.dispatch.delivery.health import HEALTHY, Health, Kind, Sign, after, probing
from arborcast.dispatch.settings import RetrySettings

SETTINGS = RetrySettings(breaker_failures=3, first_probe_s=2.0, longest_probe_s=10.0)


def having(health: Health, *kinds: Kind, now: int = 0) -> Health:
    """Each failure is that of another message."""
    for kind in kinds:
        health = after(health, Sign(kind, f"m{health.failures}"), now, SETTINGS)
    return health


@pytest.mark.parametrize(
    ("kinds", "breaker", "degraded"),
    [
        (("unreachable",), "closed", True),
        (("unreachable", "unreachable", "unreachable"), "open", True),
        (("unreachable", "unreachable", "quick", "unreachable", "unreachable"), "closed", True),
        (("unreachable", "unreachable", "slow", "unreachable", "unreachable"), "closed", True),
        (("quick",), "closed", False),
        (("failing", "failing"), "closed", False),
        (("failing", "failing", "failing"), "open", True),
    ],
)
def test_failures_in_a_row_open_the_breaker_and_the_first_takes_an_endpoint_out_of_the_batches(
    kinds: tuple[Kind, ...], breaker: str, degraded: bool
) -> None:
    health = having(HEALTHY, *kinds, now=1000)
    assert (health.breaker, health.degraded) == (breaker, degraded)
    assert (health.may_try(2999), health.may_try(3000)) == (breaker == "closed", True)


def test_one_message_that_fails_again_and_again_opens_no_breaker() -> None:
    health = HEALTHY
    for _ in range(20):
        health = after(health, Sign("failing", "poison"), 0, SETTINGS)
    assert (health.breaker, health.degraded) == ("closed", False)


def test_an_endpoint_that_asks_to_be_left_alone_is() -> None:
    health = after(HEALTHY, Sign("unreachable", "m", wait_ms=30_000), 1_000, SETTINGS)

    assert health.breaker == "open"
    assert health.probe_at_ms == 31_000
    again = after(probing(health), Sign("failing", "other"), 31_000, SETTINGS)
    assert (again.breaker, again.probe_at_ms) == ("open", 35_000)


@pytest.mark.parametrize(("asked_ms", "wait_ms"), [(500, 2_000), (10**12, 60_000)])
def test_for_no_shorter_than_a_probe_waits_and_no_longer_than_is_obeyed(asked_ms: int, wait_ms: int) -> None:
    settings = RetrySettings(first_probe_s=2.0, longest_retry_after_s=60.0)

    assert after(HEALTHY, Sign("unreachable", "m", asked_ms), 1_000, settings).probe_at_ms == 1_000 + wait_ms


def test_failed_probe_waits_longer_up_to_a_bound_and_an_answered_one_closes() -> None:
    health = having(HEALTHY, "unreachable", "unreachable", "unreachable")
    waits = []
    for _ in range(4):
        waits.append(health.probe_at_ms)
        health = having(probing(health), "unreachable")
    assert waits == [2000, 4000, 8000, 10_000]

    health = having(probing(health), "slow")
    assert health.breaker == "closed"
    assert health.degraded


def test_a_probe_that_fails_at_the_message_that_failed_last_opens_the_breaker_again() -> None:
    health = having(HEALTHY, "failing", "failing", "failing")

    again = after(probing(health), Sign("failing", health.failed_message), 2_000, SETTINGS)

    assert (again.breaker, again.probe_at_ms) == ("open", 6_000)


def test_recovered_after_quick_answers_and_the_quarantine() -> None:
    degraded = having(HEALTHY, "slow", now=10_000)

    assert degraded.degraded
    assert having(degraded, "quick", "quick", now=11_000).degraded
    assert having(degraded, "quick", "quick", "quick", now=11_000) == Health(relapses=1, relapsed_ms=10_000)
    assert having(degraded, "quick", "quick", "quick", now=10_999).degraded
    for relapse in ("slow", "failing", "unreachable"):
        assert having(degraded, "quick", "quick", relapse, "quick", "quick", now=11_000).degraded


def test_each_relapse_doubles_the_quarantine_until_it_is_forgiven() -> None:
    recovered = having(having(HEALTHY, "unreachable", now=0), "quick", "quick", "quick", now=1000)
    again = having(recovered, "unreachable", now=1000)

    assert having(again, "quick", "quick", "quick", now=2999).degraded
    assert not having(again, "quick", "quick", "quick", now=3000).degraded

    late = having(recovered, "unreachable", now=1_800_000)
    assert having(late, "quick", "quick", "quick", now=1_801_999).degraded
    later = having(recovered, "unreachable", now=1_800_001)
    assert having(later, "quick", "quick", "quick", now=1_801_000).degraded
    assert not having(later, "quick", "quick", "quick", now=1_801_001).degraded


def test_what_is_well_for_long_is_forgotten_and_what_is_not_as_long_as_nobody_says_that_it_is_over() -> None:
    recovered = having(having(HEALTHY, "unreachable", now=0), "quick", "quick", "quick", now=1000)

    assert not recovered.forgettable(1_800_000)
    assert recovered.forgettable(1_800_001)
    # These go with the last subscription (see test_health_book.py): no time makes them well.
    assert not having(HEALTHY, "failing").forgettable(10**10)
    assert not having(HEALTHY, "slow").forgettable(10**10)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["quick", "slow", "failing", "unreachable"]), st.sampled_from("abc"), st.integers(0, 10_000)
        ),
        max_size=200,
    )
)
def test_an_endpoint_can_always_be_tried_again_before_long(history: list[tuple[Kind, str, int]]) -> None:
    health, now = HEALTHY, 0
    for kind, message, pause in history:
        now += pause
        if health.may_try(now):
            health = after(probing(health), Sign(kind, message), now, SETTINGS)

    assert health.may_try(now + int(SETTINGS.longest_probe_s * 1000))


def trials_of(*signs: Sign, patient: bool = False) -> list[int]:
    """When a degraded endpoint is on trial, in seconds, and what comes of each."""
    health, now_ms, found = HEALTHY, 0, []
    for sign in signs:
        while health.degraded and not health.on_trial(now_ms, patient):
            now_ms += 1_000
        found.append(now_ms // 1_000)
        health = after(health, sign, now_ms, SETTINGS)
    return found


REFUSED = Sign("unreachable", "m")


def test_a_degraded_endpoint_is_on_trial_now_and_then() -> None:
    assert trials_of(*[REFUSED] * 7) == [0, 2, 6, 14, 24, 34, 44], "no more seldom than probes"


def test_more_seldom_when_a_trial_costs_time_and_then_together_with_others() -> None:
    late = trials_of(*[Sign("slow", late=True)] * 15)
    assert late[-1] - late[-2] == 600
    assert late[-1] % 600 == 0
    assert trials_of(*[Sign("unreachable", "m", late=True)] * 15)[-1] % 600 == 0
    waits = [later - earlier for earlier, later in itertools.pairwise(late)]
    assert all(wait <= 1.5 * 2 * 2**number for number, wait in enumerate(waits))
    assert trials_of(*[Sign("slow")] * 3)[-1] > 2


def test_who_waits_for_no_push_leaves_a_slow_receiver_alone_only_when_it_takes_nothing() -> None:
    assert trials_of(*[Sign("slow")] * 4, patient=True) == [0, 0, 0, 0]
    assert trials_of(*[Sign("slow", late=True)] * 2, patient=True) != [0, 0]


def test_an_endpoint_that_answers_quickly_has_all_that_is_timely_and_the_next_failure_ends_that() -> None:
    health = having(HEALTHY, "unreachable", "unreachable", now=1_000)
    health = having(health, "quick", now=4_000)
    assert health.degraded, "others go on through the redelivery for a while"
    assert health.on_trial(4_000)
    health = having(health, "unreachable", now=4_001)
    assert not health.on_trial(4_002)
    health = having(health, "quick", "quick", "quick", now=100_000)
    assert not health.degraded
    assert (health.trials, health.trial_at_ms, health.tried_ms, health.took) == (0, 0, 0, False)


def test_what_began_before_a_trial_failed_does_not_put_the_next_one_off() -> None:
    once = having(HEALTHY, "unreachable")
    again = having(once, "unreachable", "unreachable", now=1)
    assert (again.trials, again.trial_at_ms) == (once.trials, once.trial_at_ms) == (1, 2_000)
