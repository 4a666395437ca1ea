from __future__ import annotations

import msgspec
import pytest

from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.matching.filters import Subject
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.subscriptions import Subscription, XPathFilter
from tests.support.redelivery_world import BROKEN, HOUR_MS, OK, REFUSED, START_MS, World, one, retry

THREE = XPathFilter(XPATH_1, "/x/@n = 3", {})


def test_gone_ends_the_subscription_and_cancels_what_waits() -> None:
    world = one(PushResult(410))
    for number in range(1_100):
        world.park("s", f"n{number}")

    world.run(1_000)

    assert len(world.arrivals) == 1
    assert world.gone_said == ["s"]
    assert [(event.kind, event.subscription) for event in world.told] == [("subscription-gone", "s")]
    assert set(world.states().values()) == {"cancelled"}
    assert (len(world.states()), world.log, world.buried, world.redelivery.lanes) == (1_100, {}, [], 0)


def test_a_change_costs_a_look_at_what_has_changed_however_many_wait() -> None:
    world = World()
    for number in range(300):
        name = f"s{number}"
        world.subscriptions[name] = msgspec.structs.replace(world.subscribe(name), paused=True)
        world.park(name, f"n{number}")
    world.run(1_000)
    world.hear()
    world.asked = 0

    for number in range(300):
        world.subscribe(f"stranger{number}")  # nothing waits for these
    world.subscriptions["s7"] = msgspec.structs.replace(world.subscriptions["s7"], paused=False)
    world.hear()

    assert world.asked == 1
    world.run(1_000)
    assert world.arrived("s7") == ["n7"]


def test_an_endpoint_whose_subscription_has_moved_away_holds_nothing_back_and_names_nobody_who_is_gone() -> None:
    world = one(REFUSED)
    world.park("s", "a")
    world.run(10_000)
    assert world.health.get("http://s/").breaker == "open"

    world.subscribe("s", endpoint="moved")
    world.hear()
    world.run(HOUR_MS)

    assert world.states() == {("s", "a"): "delivered"}
    assert (world.redelivery.lanes, world.redelivery.next_turn_ms(), world.health.everything()) == (0, None, {})


def test_what_was_accepted_in_time_is_tried_until_the_log_says_that_the_subscription_is_over() -> None:
    """By the clock alone one that is being renewed at this moment, or within its grace, would lose it."""
    world = World()
    world.subscriptions["s"] = msgspec.structs.replace(world.subscribe("s"), terminates_ms=START_MS + 1_000)
    world.endpoint("s").answer = lambda ids: BROKEN
    world.park("s", "a")

    world.run(10_000)
    tried = len(world.arrivals)
    assert world.states() == {("s", "a"): "parked"}
    assert tried > 1
    del world.subscriptions["s"]
    world.hear()
    world.run(100)

    assert (world.states(), len(world.arrivals)) == ({("s", "a"): "cancelled"}, tried)


def test_an_endpoint_that_fails_for_days_suspends_its_subscriptions_until_they_are_resumed() -> None:
    world = World(retry=retry(suspend_after_s=7_200.0, lifespan_s=7 * 86_400.0))
    for name in ("a", "b"):
        world.subscribe(name, endpoint="shared")
        world.park(name, f"{name}1")
    world.endpoint("a").answer = lambda ids: REFUSED

    world.run(2 * HOUR_MS + 120_000)
    assert set(world.suspended_said) == {"a", "b"}
    assert world.suspended_said["a"] < START_MS + 10_000
    seen = len(world.arrivals)
    world.suspended_now = {"a", "b"}
    world.redelivery.suspensions_written()
    world.run(12 * HOUR_MS)
    assert len(world.arrivals) == seen

    # Resumed while still away: it has the whole time again. Then it is back.
    world.suspended_now = {"b"}
    world.hear()
    world.run(HOUR_MS)
    assert len(world.arrivals) > seen
    assert len(world.suspended_said) == 2
    world.endpoint("a").answer = lambda ids: OK
    world.run(HOUR_MS)
    assert world.states() == {("a", "a1"): "delivered", ("b", "b1"): "parked"}


def test_a_subscription_that_is_resumed_is_tried_at_once_though_others_have_just_found_the_endpoint_away() -> None:
    world = World(retry=retry(suspend_after_s=600.0))
    world.subscribe("a", endpoint="shared")
    world.endpoint("a").answer = lambda ids: REFUSED
    world.park("a", "a1")
    world.run(700_000)
    assert set(world.suspended_said) == {"a"}
    world.suspended_now = {"a"}
    world.redelivery.suspensions_written()
    world.subscribe("c", endpoint="shared")
    world.park("c", "c1")
    world.run(200_000)
    probes = len(world.arrived("c"))
    while len(world.arrived("c")) == probes:
        world.run(1_000)

    world.endpoint("a").answer = lambda ids: OK
    world.suspended_now.clear()
    world.hear()
    world.run(1_000)

    assert world.states()["a", "a1"] == "delivered"


def test_a_subscription_that_was_resumed_while_the_job_was_down_has_the_whole_time_again() -> None:
    world = one(retry=retry(suspend_after_s=7_200.0, lifespan_s=7 * 86_400.0))
    world.park("s", "n")
    world.endpoint("s").answer = lambda ids: REFUSED
    world.run(2 * HOUR_MS + 120_000)
    assert set(world.suspended_said) == {"s"}
    kept = world.health.everything()

    world.now_ms += 24 * HOUR_MS
    world.restart()
    world.health.restore(kept)
    world.run(HOUR_MS)

    assert len(world.suspended_said) == 1
    assert len([event for event in world.told if event.kind == "subscription-suspended"]) == 1
    world.run(2 * HOUR_MS)
    assert len([event for event in world.told if event.kind == "subscription-suspended"]) == 2


def test_one_message_that_always_fails_suspends_nobody() -> None:
    world = one(BROKEN, retry=retry(suspend_after_s=600.0, retransmissions=30, longest_wait_s=60.0))
    world.park("s", "n")

    world.run(HOUR_MS)

    assert (world.states(), world.suspended_said) == ({("s", "n"): "dead"}, {})


def test_what_was_parked_unjudged_is_judged_before_it_is_pushed() -> None:
    world = World()
    world.subscriptions["s"] = msgspec.structs.replace(world.subscribe("s"), content=(THREE,))
    world.suspended_now.add("s")
    for number in range(6):
        world.park("s", f"n{number}", payload=b"<x n='%d'/>" % number, unjudged=True)
    world.park("s", "judged", payload=b"<x n='9'/>")
    world.run(1_000)
    assert (world.arrived("s"), world.attempts) == ([], [])

    world.suspended_now.clear()
    world.hear()
    world.run(1_000)

    assert world.arrived("s") == ["n3", "judged"]
    ended = {(row.notification, row.state, row.error) for row in world.attempts if row.state == "cancelled"}
    assert ended == {(f"n{number}", "cancelled", "skipped") for number in (0, 1, 2, 4, 5)}
    assert (world.log, world.redelivery.lanes) == ({}, 0)


def test_what_costs_too_much_by_itself_is_not_asked_afterwards_either(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(push=PushSettings(owner_conditions_ms=1))
    costly = XPathFilter(XPATH_1, " or ".join(["//x/@n = 3"] * 20), {})
    world.subscriptions["s"] = msgspec.structs.replace(world.subscribe("s"), content=(costly,))
    asked: list[str] = []
    passes = Subject.passes

    def counted(self: Subject, each: Subscription) -> bool:
        asked.append(each.id)
        return passes(self, each)

    monkeypatch.setattr(Subject, "passes", counted)
    world.park("s", "large", payload=b"<x n='3'>" + b"<y/>" * 20_000 + b"</x>", unjudged=True)
    world.park("s", "small", payload=b"<x n='3'/>", unjudged=True)

    world.run(1_000)

    assert world.arrived("s") == ["small"]
    assert asked == ["s"]
    assert world.states()["s", "large"] == "cancelled"
