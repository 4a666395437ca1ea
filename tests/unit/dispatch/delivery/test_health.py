"""Health of endpoints: breakers, probes, trials, and the registry."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Set
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.dispatch.delivery.health import HEALTHY, EndpointHealthRegistry, Health, Kind, Sign, after, probing
from arborcast.dispatch.settings import RetrySettings

SETTINGS = RetrySettings(breaker_failures=3, first_probe_s=2.0, longest_probe_s=10.0)
FORGIVEN_MS = 1_800_000
REFUSED = Sign("unreachable", "m")


def having(health: Health, *kinds: Kind, now: int = 0) -> Health:
    """The health after failures of different messages."""
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
def test_consecutive_failures_open_the_breaker(kinds: tuple[Kind, ...], breaker: str, degraded: bool) -> None:
    health = having(HEALTHY, *kinds, now=1000)
    assert (health.breaker, health.degraded) == (breaker, degraded)
    assert (health.may_try(2999), health.may_try(3000)) == (breaker == "closed", True)


def test_one_message_that_always_fails_opens_no_breaker() -> None:
    health = HEALTHY
    for _ in range(20):
        health = after(health, Sign("failing", "poison"), 0, SETTINGS)
    assert (health.breaker, health.degraded) == ("closed", False)
    # An open breaker stays open, whichever message the probe fails with.
    health = having(HEALTHY, "failing", "failing", "failing")
    again = after(probing(health), Sign("failing", health.failed_message), 2_000, SETTINGS)
    assert (again.breaker, again.probe_at_ms) == ("open", 6_000)


@pytest.mark.parametrize(("retry_after_ms", "wait_ms"), [(500, 2_000), (30_000, 30_000), (10**12, 60_000)])
def test_retry_after_opens_the_breaker_within_bounds(retry_after_ms: int, wait_ms: int) -> None:
    settings = RetrySettings(first_probe_s=2.0, longest_retry_after_s=60.0)
    health = after(HEALTHY, Sign("unreachable", "m", retry_after_ms), 1_000, settings)
    assert (health.breaker, health.probe_at_ms) == ("open", 1_000 + wait_ms)
    again = after(probing(health), Sign("failing", "other"), 31_000, settings)
    assert (again.breaker, again.probe_at_ms) == ("open", 35_000), "without Retry-After: the wait between probes"


def test_waits_between_probes_grow_and_an_answer_closes() -> None:
    health = having(HEALTHY, "unreachable", "unreachable", "unreachable")
    waits = []
    for _ in range(4):
        waits.append(health.probe_at_ms)
        health = having(probing(health), "unreachable")
    assert waits == [2000, 4000, 8000, 10_000]

    health = having(probing(health), "slow")
    assert (health.breaker, health.degraded) == ("closed", True)


def test_recovered_after_quick_answers_and_the_quarantine() -> None:
    degraded = having(HEALTHY, "slow", now=10_000)
    assert degraded.degraded
    assert having(degraded, "quick", "quick", now=11_000).degraded
    assert having(degraded, "quick", "quick", "quick", now=11_000) == Health(relapses=1, relapsed_ms=10_000)
    assert having(degraded, "quick", "quick", "quick", now=10_999).degraded
    for relapse in ("slow", "failing", "unreachable"):
        assert having(degraded, "quick", "quick", relapse, "quick", "quick", now=11_000).degraded


@pytest.mark.parametrize(
    ("again_ms", "quarantine_ms"), [(1_000, 2_000), (FORGIVEN_MS, 2_000), (FORGIVEN_MS + 1, 1_000)]
)
def test_each_relapse_within_half_an_hour_doubles_the_quarantine(again_ms: int, quarantine_ms: int) -> None:
    recovered = having(having(HEALTHY, "unreachable", now=0), "quick", "quick", "quick", now=1000)
    again = having(recovered, "unreachable", now=again_ms)
    assert having(again, "quick", "quick", "quick", now=again_ms + quarantine_ms - 1).degraded
    assert not having(again, "quick", "quick", "quick", now=again_ms + quarantine_ms).degraded
    assert [recovered.forgettable(now_ms) for now_ms in (FORGIVEN_MS, FORGIVEN_MS + 1)] == [False, True]
    # These are dropped with the last subscription, not by time.
    assert not having(HEALTHY, "failing").forgettable(10**10)
    assert not having(HEALTHY, "slow").forgettable(10**10)


def trials_of(*signs: Sign, patient: bool = False) -> list[int]:
    """The times of the trials of a degraded endpoint, in seconds, with these outcomes."""
    health, now_ms, found = HEALTHY, 0, []
    for sign in signs:
        while health.degraded and not health.on_trial(now_ms, patient):
            now_ms += 1_000
        found.append(now_ms // 1_000)
        health = after(health, sign, now_ms, SETTINGS)
    return found


def test_trials_of_a_degraded_endpoint_are_as_frequent_as_probes() -> None:
    assert trials_of(*[REFUSED] * 7) == [0, 2, 6, 14, 24, 34, 44]
    once = having(HEALTHY, "unreachable")
    again = having(once, "unreachable", "unreachable", now=1)
    assert (again.trials, again.trial_at_ms) == (once.trials, once.trial_at_ms) == (1, 2_000), "before the trial"


def test_late_trials_are_rarer_and_simultaneous() -> None:
    late = trials_of(*[Sign("slow", late=True)] * 15)
    assert late[-1] - late[-2] == 600
    assert late[-1] % 600 == 0
    assert trials_of(*[Sign("unreachable", "m", late=True)] * 15)[-1] % 600 == 0
    waits = [later - earlier for earlier, later in itertools.pairwise(late)]
    assert all(wait <= 1.5 * 2 * 2**number for number, wait in enumerate(waits))
    assert trials_of(*[Sign("slow")] * 3)[-1] > 2
    # In real time a slow receiver is left out only after an unanswered push.
    assert trials_of(*[Sign("slow")] * 4, patient=True) == [0, 0, 0, 0]
    assert trials_of(*[Sign("slow", late=True)] * 2, patient=True) != [0, 0]


def test_a_quick_answer_allows_timely_pushes() -> None:
    health = having(HEALTHY, "unreachable", "unreachable", now=1_000)
    health = having(health, "quick", now=4_000)
    assert health.degraded, "reliable messages stay with the redelivery"
    assert health.on_trial(4_000)
    health = having(health, "unreachable", now=4_001)
    assert not health.on_trial(4_002)
    health = having(health, "quick", "quick", "quick", now=100_000)
    assert not health.degraded
    assert (health.trials, health.trial_at_ms, health.tried_ms, health.took) == (0, 0, 0, False)


# The registry of all endpoints

HERE, THERE = "http://here/", "http://there/"
NOW_MS = 1_700_000_000_000
SICK = Health(degraded=True)


@pytest.fixture
def used() -> set[str]:
    """The endpoints of subscriptions."""
    return {HERE, THERE}


@pytest.fixture
def registry(used: set[str]) -> EndpointHealthRegistry:
    return EndpointHealthRegistry(RetrySettings(), used.__contains__)


def open_breaker(registry: EndpointHealthRegistry) -> Health:
    """The breaker opens, and its probe begins."""
    for message in "abc":
        registry.note(HERE, Sign("unreachable", message), NOW_MS)
    assert registry.begin_push(HERE)
    health = registry.get(HERE)
    assert health.breaker == "half-open"
    return health


def test_a_lost_probe_is_repeated(registry: EndpointHealthRegistry) -> None:
    half_open = open_breaker(registry)
    registry.note(THERE, REFUSED, NOW_MS)
    closed = registry.get(THERE)
    registry.forget_probes()
    assert (registry.get(HERE).breaker, registry.get(THERE)) == ("open", closed)
    restarted = EndpointHealthRegistry(RetrySettings(), {HERE}.__contains__)
    restarted.restore({HERE: half_open})
    assert restarted.get(HERE).breaker == "open"
    assert restarted.get(HERE).may_try(restarted.get(HERE).probe_at_ms)


def test_restore_ignores_unused_endpoints_and_newer_health(registry: EndpointHealthRegistry) -> None:
    half_open = open_breaker(registry)
    registry.restore({HERE: Health(), THERE: SICK, "http://gone/": SICK})
    assert registry.everything() == {HERE: half_open, THERE: SICK}


def test_healthy_endpoints_take_no_memory(registry: EndpointHealthRegistry) -> None:
    assert registry.note(HERE, Sign("quick"), NOW_MS) == Health()
    assert registry.everything() == {}
    for sign, at_ms in [(Sign("slow"), NOW_MS)] * 3 + [(Sign("quick"), NOW_MS + 1_000)] * 3:
        registry.note(HERE, sign, at_ms)
    assert list(registry.everything()) == [HERE]  # kept: a relapse doubles the quarantine
    registry.note(HERE, Sign("quick"), NOW_MS + 2_000_000)
    assert registry.everything() == {}


def test_resume_probes_at_once_and_resets_the_failing_time(registry: EndpointHealthRegistry) -> None:
    for message in "abc":
        registry.note(HERE, Sign("unreachable", message), NOW_MS)
    opened = registry.get(HERE)
    # A resume does not delay a probe that is due.
    for endpoint, at_ms in ((HERE, NOW_MS + 10), (HERE, NOW_MS + 60_000), (THERE, NOW_MS)):
        registry.resume(endpoint, at_ms)
    resumed = registry.get(HERE)
    assert (resumed.breaker, resumed.probe_at_ms, resumed.failing_since_ms) == ("open", NOW_MS + 10, 0)
    assert resumed.failures == opened.failures
    assert list(registry.everything()) == [HERE]


def test_an_endpoint_without_a_subscription_is_forgotten(registry: EndpointHealthRegistry, used: set[str]) -> None:
    open_breaker(registry)
    registry.note(THERE, Sign("slow"), NOW_MS)
    used.remove(HERE)
    registry.forget(HERE)
    registry.forget("http://never/")
    assert list(registry.everything()) == [THERE]
    assert registry.degraded() == registry.watched() == {THERE}
    assert registry.get(HERE) == Health()
    # A push that ends later does not restore it.
    assert registry.note(HERE, Sign("unreachable", "late"), NOW_MS) == Health()
    assert not registry.begin_push(HERE)
    assert list(registry.everything()) == [THERE]
    used.add(HERE)
    assert registry.note(HERE, Sign("unreachable", "later"), NOW_MS).failures == 1


def test_sets_of_endpoints_are_rebuilt_only_after_a_change() -> None:
    registry = EndpointHealthRegistry(SETTINGS, lambda _: True)
    refused, failing, quick = Sign("unreachable", "m"), Sign("failing", "m"), Sign("quick")

    def sets() -> tuple[Set[str], Set[str]]:
        return registry.degraded(), registry.watched()

    registry.note("e", refused, 0)
    registry.note("f", failing, 0)
    assert sets() == ({"e"}, {"e", "f"})
    before = sets()
    for sign in (refused, failing):
        registry.note("e", sign, 1_000)
        registry.begin_push("e")
    registry.allow_probe("e", 1_000)
    assert [one is other for one, other in zip(sets(), before, strict=True)] == [True, True]
    registry.note("f", quick, 2_000)
    assert sets() == ({"e"}, {"e"})
    registry.note("f", refused, 3_000)
    assert sets() == ({"e", "f"}, {"e", "f"})
    known = registry.everything()
    registry.forget("e")
    assert sets() == ({"f"}, {"f"})
    registry.restore(known)
    assert sets() == ({"e", "f"}, {"e", "f"})


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(["quick", "slow", "failing", "unreachable", "forgotten"]),
            st.booleans(),
            st.one_of(st.integers(0, 5_000), st.integers(-10_000, 10_000)),
        ),
        max_size=60,
    )
)
def test_endpoints_on_trial_equal_a_full_scan(history: list[tuple[str, str, bool, int]]) -> None:
    """The registry examines only endpoints that may have changed, also after the clock was set back."""
    registry, now_ms = EndpointHealthRegistry(SETTINGS, lambda _: True), NOW_MS
    for endpoint, event, patient, pause_ms in history:
        now_ms += pause_ms
        if event == "forgotten":
            registry.forget(endpoint)
        else:
            registry.note(endpoint, Sign(cast(Kind, event), f"m{now_ms}", late=event == "slow"), now_ms)
        known = registry.everything().items()
        expected = {each for each, health in known if health.degraded and health.on_trial(now_ms, patient)}
        assert registry.on_trial(now_ms, patient) == expected


def test_only_endpoints_that_may_have_changed_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, examined = EndpointHealthRegistry(SETTINGS, lambda _: True), Counter[int]()
    for number in range(1_000):
        registry.note(f"e{number}", REFUSED, number)
    on_trial = Health.on_trial

    def count(health: Health, now_ms: int, patient: bool = False) -> bool:
        examined[now_ms] += 1
        return on_trial(health, now_ms, patient)

    registry.on_trial(1_000)
    monkeypatch.setattr(Health, "on_trial", count)
    before = registry.on_trial(1_001)
    assert registry.on_trial(1_999) is before
    assert len(registry.on_trial(2_002)) == 3, "three are due"
    assert examined == {2_002: 6}, "each one, for both kinds of callers"
