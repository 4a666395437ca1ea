from __future__ import annotations

from collections import Counter

from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.settings import PushSettings
from tests.support.redelivery_world import (
    BROKEN,
    HOUR_MS,
    OK,
    REFUSED,
    START_MS,
    FakeEndpoint,
    World,
    one,
    retry,
)


def test_an_endpoint_that_is_away_is_only_probed_and_that_does_not_count() -> None:
    world = one(REFUSED)
    for number in range(50):
        world.park("s", f"n{number}")

    world.run(HOUR_MS)
    tried_by_then = len(world.arrivals)
    assert tried_by_then < 75  # three to open the breaker, then a probe a minute
    assert world.most_in_flight == 1
    assert set(world.states().values()) == {"parked"}
    assert [event.kind for event in world.told] == ["breaker-opened", "subscription-failing"]

    world.endpoint("s").answer = lambda ids: OK
    world.run(HOUR_MS)

    assert set(world.states().values()) == {"delivered"}
    assert len(world.arrivals) == tried_by_then + 50
    assert world.health.get("http://s/").breaker == "closed"
    assert [event.kind for event in world.told[2:]] == ["breaker-closed", "subscription-recovered"]


def test_the_lanes_of_an_endpoint_take_turns_in_probing_it() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.subscribe(name, endpoint="shared")
        for number in range(3):
            world.park(name, f"{name}{number}")
    world.endpoint("a").answer = lambda ids: REFUSED

    world.run(HOUR_MS)

    probes = [arrival.subscription for arrival in world.arrivals[6:]]
    assert {abs(probes.count(one) - probes.count(other)) for one in "abc" for other in "abc"} <= {0, 1}


def test_retry_after_is_obeyed_by_the_whole_endpoint() -> None:
    world = one(PushResult(503, retry_after_s=600.0))
    world.park("s", "a")
    world.park("s", "b")

    world.run(599_000)
    assert world.arrived("s") == ["a"]

    world.endpoint("s").answer = lambda ids: OK
    world.run(10_000)
    assert sorted(world.arrived("s")) == ["a", "a", "b"]


def test_probes_of_many_endpoints_without_an_answer_delay_no_other_lane() -> None:
    world = World(push=PushSettings(max_in_flight=8), retry=retry(longest_probe_s=10.0))
    for number in range(100):
        world.subscribe(f"away{number}")
        world.endpoints[f"http://away{number}/"] = FakeEndpoint(lambda _: REFUSED, takes_ms=5_000)
        world.park(f"away{number}", f"a{number}")
    world.run(HOUR_MS)
    assert all(world.health.get(address).breaker != "closed" for address in world.endpoints)
    probed = len(world.arrivals)
    world.subscribe("well")
    for number in range(20):
        world.park("well", f"n{number}")
    world.run(1_000)
    assert world.arrived("well") == [f"n{number}" for number in range(20)]
    world.run(HOUR_MS)
    seen = Counter(each.subscription for each in world.arrivals[probed:])
    assert len(seen) == 101, "each is probed"


def test_an_answer_is_quick_within_half_of_what_a_batch_waits_wherever_it_is_seen() -> None:
    world = World(retry=retry(batch_wait_s=2.0))
    for name in ("quick", "slow"):
        world.subscribe(name)
        world.park(name, "n")
    world.endpoint("quick").answer = lambda ids: PushResult(202, duration_s=1.0)
    world.endpoint("slow").answer = lambda ids: PushResult(202, duration_s=1.001)

    world.run(1_000)

    assert world.health.degraded() == {"http://slow/"}


def test_a_probe_is_one_message_and_the_one_with_the_fewest_tries() -> None:
    world = World()
    world.subscribe("tried")
    world.park("tried", "often", Tries(5, 1, START_MS - 60_000, START_MS - 90_000))
    world.park("tried", "once", Tries(1, 1, START_MS, START_MS - 2_000))
    world.subscribe("untried", form="notify")
    world.park("untried", "a")
    world.park("untried", "b")
    for name in ("tried", "untried"):
        world.fall(name)
        world.endpoint(name).answer = lambda ids: REFUSED

    world.run(2_500)

    assert (world.arrived("tried"), world.arrived("untried")) == (["once"], ["a"])
    assert world.too_much == []


def test_a_lane_that_is_over_with_its_probe_leaves_the_next_probe_to_the_others() -> None:
    world = World()
    world.subscribe("first", endpoint="shared")
    world.subscribe("other", endpoint="shared")
    world.fall("first")
    world.park("first", "a")
    world.park("other", "b")
    world.endpoint("first").answer = lambda ids: REFUSED
    world.endpoint("first").takes_ms = 500
    world.run(2_200)
    assert world.arrived("first") == ["a"]
    del world.subscriptions["first"]
    world.hear()

    world.run(1_000)
    assert world.states() == {("first", "a"): "cancelled"}
    world.endpoint("other").answer = lambda ids: OK
    world.run(5_000)
    assert world.states()["other", "b"] == "delivered"


def test_failures_of_pushes_that_began_before_the_breaker_opened_say_nothing_new() -> None:
    world = one(REFUSED)
    world.endpoint("s").takes_ms = 1_000
    for number in range(16):
        world.park("s", f"n{number}", Tries(1, 1, START_MS, START_MS - 2_000))

    world.run(1_500)

    assert len(world.arrivals) == 16
    assert world.health.get("http://s/").probes == 1


def test_a_requested_attempt_is_made_at_once_and_counts() -> None:
    world = one(BROKEN, retry=retry(first_wait_s=3_600.0))
    delivery, other = world.park("s", "n"), world.park("s", "other")
    world.run(1_000)
    assert world.arrived("s") == ["n", "other"]

    world.request_attempt(delivery)
    world.run(1_000)
    assert world.arrived("s") == ["n", "other", "n"], "an hour before its time"
    waiting = {each: world.store.get(each) for each in (delivery, other)}
    assert [each and each.tries.number for each in waiting.values()] == [2, 1]


def test_a_requested_attempt_probes_an_endpoint_whose_breaker_is_open() -> None:
    world = one(retry=retry(first_probe_s=3_600.0))
    world.fall("s")
    since_ms = world.health.get("http://s/").failing_since_ms
    delivery = world.park("s", "n")
    world.run(1_000)
    assert not world.arrived("s")
    world.endpoint("s").answer = lambda ids: REFUSED

    world.request_attempt(delivery)
    world.run(1_000)
    assert world.arrived("s") == ["n"]
    health = world.health.get("http://s/")
    assert (health.breaker, health.failing_since_ms) == ("open", since_ms), "it fails for as long as before"

    world.endpoint("s").answer = lambda ids: OK
    world.request_attempt(delivery)
    world.run(1_000)
    assert (world.arrived("s"), world.states()) == (["n", "n"], {("s", "n"): "delivered"})
    assert not world.log, "the request leaves the log with its delivery"

    untried = one(retry=retry(first_probe_s=3_600.0))
    untried.fall("s")
    delivery = untried.park("s", "n")
    untried.run(1_000)
    untried.request_attempt(delivery)
    untried.run(1_000)
    assert (untried.states(), untried.log) == ({("s", "n"): "delivered"}, {})
