"""Breakers, probes and limits of endpoints in the redelivery, and attempts requested by operators."""

from __future__ import annotations

from collections import Counter

import pytest

from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.settings import PushSettings
from tests.support.redelivery_setup import BROKEN, HOUR_MS, OK, REFUSED, START_MS, Setup, one, retry


def test_probes_of_an_unreachable_endpoint_do_not_count() -> None:
    setup = one(REFUSED)
    setup.park_some("s", 50)
    setup.run(HOUR_MS)
    tried_by_then = len(setup.arrivals)
    assert tried_by_then < 75  # three to open the breaker, then a probe a minute
    assert setup.most_in_flight == 1
    assert set(setup.states().values()) == {"parked"}
    assert [event.kind for event in setup.events] == ["breaker-opened", "subscription-failing"]

    setup.answers("s", OK)
    setup.run(HOUR_MS)
    assert set(setup.states().values()) == {"delivered"}
    assert len(setup.arrivals) == tried_by_then + 50
    assert setup.health.get("http://s/").breaker == "closed"
    assert [event.kind for event in setup.events[2:]] == ["breaker-closed", "subscription-recovered"]


def test_lanes_of_an_endpoint_probe_it_in_turn() -> None:
    setup = Setup()
    for name in ("a", "b", "c"):
        setup.subscribe(name, endpoint="shared")
        setup.park_some(name, 3)
    setup.answers("a", REFUSED)
    setup.run(HOUR_MS)
    probes = Counter(arrival.subscription for arrival in setup.arrivals[6:])
    assert max(probes.values()) - min(probes[name] for name in "abc") <= 1
    # A lane that ends during its probe leaves the next probe to the others.
    setup.answers("a", REFUSED, takes_ms=500)
    while not setup.in_flight:
        setup.run(100)
    setup.end(setup.arrivals[-1].subscription)
    setup.run(1_000)
    left = sorted(setup.subscriptions)
    setup.answers(left[0], OK)
    setup.run(HOUR_MS)
    states = Counter(setup.states().values())
    assert states == {"delivered": 6, "cancelled": 3}


def test_retry_after_applies_to_the_endpoint() -> None:
    setup = one(PushResult(503, retry_after_s=600.0))
    setup.park_some("s", 2)
    setup.run(599_000)
    assert setup.arrived("s") == ["n0"]
    setup.answers("s", OK)
    setup.run(10_000)
    assert sorted(setup.arrived("s")) == ["n0", "n0", "n1"]


def test_probes_of_unreachable_endpoints_delay_no_other_lane() -> None:
    setup = Setup(push=PushSettings(max_in_flight=4), retry=retry(longest_probe_s=10.0))
    for number in range(30):
        setup.subscribe(f"away{number}")
        setup.answers(f"away{number}", REFUSED, takes_ms=5_000)
        setup.park(f"away{number}", f"a{number}")
    setup.run(300_000)
    assert all(setup.health.get(address).breaker != "closed" for address in setup.endpoints)
    probed = len(setup.arrivals)
    setup.subscribe("well")
    setup.park_some("well", 20)
    setup.run(1_000)
    assert setup.arrived("well") == [f"n{number}" for number in range(20)]
    setup.run(300_000)
    assert len({each.subscription for each in setup.arrivals[probed:]}) == 31, "all are probed"


def test_answers_are_quick_within_half_of_batch_wait_s() -> None:
    setup = Setup(retry=retry(batch_wait_s=2.0))
    for name, duration_s in (("quick", 1.0), ("slow", 1.001)):
        setup.subscribe(name)
        setup.park(name, "n")
        setup.answers(name, PushResult(202, duration_s=duration_s))
    setup.run(1_000)
    assert setup.health.degraded() == {"http://slow/"}


def test_a_probe_is_the_one_message_with_the_fewest_tries() -> None:
    setup = Setup()
    setup.subscribe("tried")
    setup.park("tried", "often", Tries(5, 1, START_MS - 60_000, START_MS - 90_000))
    setup.park("tried", "once", Tries(1, 1, START_MS, START_MS - 2_000))
    setup.subscribe("untried", form="notify")
    setup.park_some("untried", 2)
    for name in ("tried", "untried"):
        setup.open_breaker(name)
        setup.answers(name, REFUSED)
    setup.run(2_500)
    assert (setup.arrived("tried"), setup.arrived("untried")) == (["once"], ["n0"])
    assert setup.too_much == []


def test_failures_of_earlier_pushes_are_no_probes() -> None:
    setup = one(REFUSED)
    setup.answers("s", REFUSED, takes_ms=1_000)
    for number in range(16):
        setup.park("s", f"n{number}", Tries(1, 1, START_MS, START_MS - 2_000))
    setup.run(1_500)
    assert len(setup.arrivals) == 16
    assert setup.health.get("http://s/").probes == 1


def test_a_requested_attempt_is_made_at_once_and_counts() -> None:
    setup = one(BROKEN, retry=retry(first_wait_s=3_600.0))
    delivery, other = setup.park("s", "n"), setup.park("s", "other")
    setup.run(1_000)
    setup.request_attempt(delivery)
    setup.run(1_000)
    assert setup.arrived("s") == ["n", "other", "n"], "an hour early"
    waiting = [setup.store.get(each) for each in (delivery, other)]
    assert [each and each.tries.number for each in waiting] == [2, 1]


@pytest.mark.parametrize("answers", [[REFUSED, OK], [OK]], ids=["tried", "untried"])
def test_a_requested_attempt_probes_behind_an_open_breaker(answers: list[PushResult]) -> None:
    setup = one(retry=retry(first_probe_s=3_600.0))
    setup.open_breaker("s")
    since_ms = setup.health.get("http://s/").failing_since_ms
    delivery = setup.park("s", "n")
    setup.run(1_000)
    assert not setup.arrived("s")
    for number, answer in enumerate(answers, 1):
        setup.answers("s", answer)
        setup.request_attempt(delivery)
        setup.run(1_000)
        assert setup.arrived("s") == ["n"] * number
        health = setup.health.get("http://s/")
        # A failed probe keeps the beginning of the failure.
        expected = ("open", since_ms) if answer is REFUSED else ("closed", 0)
        assert (health.breaker, health.failing_since_ms) == expected
    assert (setup.states(), setup.log) == ({("s", "n"): "delivered"}, {}), "the request is removed from the log"
