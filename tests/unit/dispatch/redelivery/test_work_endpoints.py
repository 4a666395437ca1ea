"""Breakers, probes and limits of endpoints in the redelivery, and attempts requested by operators."""

from __future__ import annotations

from collections import Counter

import pytest

from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.settings import PushSettings
from tests.support.redelivery_world import BROKEN, HOUR_MS, OK, REFUSED, START_MS, World, one, retry


def test_probes_of_an_unreachable_endpoint_do_not_count() -> None:
    world = one(REFUSED)
    world.park_some("s", 50)
    world.run(HOUR_MS)
    tried_by_then = len(world.arrivals)
    assert tried_by_then < 75  # three to open the breaker, then a probe a minute
    assert world.most_in_flight == 1
    assert set(world.states().values()) == {"parked"}
    assert [event.kind for event in world.told] == ["breaker-opened", "subscription-failing"]

    world.answers("s", OK)
    world.run(HOUR_MS)
    assert set(world.states().values()) == {"delivered"}
    assert len(world.arrivals) == tried_by_then + 50
    assert world.health.get("http://s/").breaker == "closed"
    assert [event.kind for event in world.told[2:]] == ["breaker-closed", "subscription-recovered"]


def test_lanes_of_an_endpoint_probe_it_in_turn() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.subscribe(name, endpoint="shared")
        world.park_some(name, 3)
    world.answers("a", REFUSED)
    world.run(HOUR_MS)
    probes = Counter(arrival.subscription for arrival in world.arrivals[6:])
    assert max(probes.values()) - min(probes[name] for name in "abc") <= 1
    # A lane that ends during its probe leaves the next probe to the others.
    world.answers("a", REFUSED, takes_ms=500)
    while not world.in_flight:
        world.run(100)
    world.end(world.arrivals[-1].subscription)
    world.run(1_000)
    left = sorted(world.subscriptions)
    world.answers(left[0], OK)
    world.run(HOUR_MS)
    states = Counter(world.states().values())
    assert states == {"delivered": 6, "cancelled": 3}


def test_retry_after_applies_to_the_endpoint() -> None:
    world = one(PushResult(503, retry_after_s=600.0))
    world.park_some("s", 2)
    world.run(599_000)
    assert world.arrived("s") == ["n0"]
    world.answers("s", OK)
    world.run(10_000)
    assert sorted(world.arrived("s")) == ["n0", "n0", "n1"]


def test_probes_of_unreachable_endpoints_delay_no_other_lane() -> None:
    world = World(push=PushSettings(max_in_flight=4), retry=retry(longest_probe_s=10.0))
    for number in range(30):
        world.subscribe(f"away{number}")
        world.answers(f"away{number}", REFUSED, takes_ms=5_000)
        world.park(f"away{number}", f"a{number}")
    world.run(300_000)
    assert all(world.health.get(address).breaker != "closed" for address in world.endpoints)
    probed = len(world.arrivals)
    world.subscribe("well")
    world.park_some("well", 20)
    world.run(1_000)
    assert world.arrived("well") == [f"n{number}" for number in range(20)]
    world.run(300_000)
    assert len({each.subscription for each in world.arrivals[probed:]}) == 31, "all are probed"


def test_answers_are_quick_within_half_of_batch_wait_s() -> None:
    world = World(retry=retry(batch_wait_s=2.0))
    for name, duration_s in (("quick", 1.0), ("slow", 1.001)):
        world.subscribe(name)
        world.park(name, "n")
        world.answers(name, PushResult(202, duration_s=duration_s))
    world.run(1_000)
    assert world.health.degraded() == {"http://slow/"}


def test_a_probe_is_the_one_message_with_the_fewest_tries() -> None:
    world = World()
    world.subscribe("tried")
    world.park("tried", "often", Tries(5, 1, START_MS - 60_000, START_MS - 90_000))
    world.park("tried", "once", Tries(1, 1, START_MS, START_MS - 2_000))
    world.subscribe("untried", form="notify")
    world.park_some("untried", 2)
    for name in ("tried", "untried"):
        world.fall(name)
        world.answers(name, REFUSED)
    world.run(2_500)
    assert (world.arrived("tried"), world.arrived("untried")) == (["once"], ["n0"])
    assert world.too_much == []


def test_failures_of_earlier_pushes_are_no_probes() -> None:
    world = one(REFUSED)
    world.answers("s", REFUSED, takes_ms=1_000)
    for number in range(16):
        world.park("s", f"n{number}", Tries(1, 1, START_MS, START_MS - 2_000))
    world.run(1_500)
    assert len(world.arrivals) == 16
    assert world.health.get("http://s/").probes == 1


def test_a_requested_attempt_is_made_at_once_and_counts() -> None:
    world = one(BROKEN, retry=retry(first_wait_s=3_600.0))
    delivery, other = world.park("s", "n"), world.park("s", "other")
    world.run(1_000)
    world.request_attempt(delivery)
    world.run(1_000)
    assert world.arrived("s") == ["n", "other", "n"], "an hour early"
    waiting = [world.store.get(each) for each in (delivery, other)]
    assert [each and each.tries.number for each in waiting] == [2, 1]


@pytest.mark.parametrize("answers", [[REFUSED, OK], [OK]], ids=["tried", "untried"])
def test_a_requested_attempt_probes_behind_an_open_breaker(answers: list[PushResult]) -> None:
    world = one(retry=retry(first_probe_s=3_600.0))
    world.fall("s")
    since_ms = world.health.get("http://s/").failing_since_ms
    delivery = world.park("s", "n")
    world.run(1_000)
    assert not world.arrived("s")
    for number, answer in enumerate(answers, 1):
        world.answers("s", answer)
        world.request_attempt(delivery)
        world.run(1_000)
        assert world.arrived("s") == ["n"] * number
        health = world.health.get("http://s/")
        # A failed probe keeps the beginning of the failure.
        expected = ("open", since_ms) if answer is REFUSED else ("closed", 0)
        assert (health.breaker, health.failing_since_ms) == expected
    assert (world.states(), world.log) == ({("s", "n"): "delivered"}, {}), "the request is removed from the log"
