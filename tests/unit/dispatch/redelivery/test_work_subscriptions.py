"""Subscriptions that change while messages wait, and the events for subscribers and operators."""

from __future__ import annotations

from typing import NoReturn

import msgspec
import pytest

from arborcast.core.errors import SecretError
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.matching.filters import Subject
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.subscriptions import Subscription, XPathFilter
from arborcast.topic_model.topics import SYSTEM
from tests.support.redelivery_world import BROKEN, DAY_MS, HOUR_MS, OK, REFUSED, START_MS, World, one, retry

THREE = XPathFilter(XPATH_1, "/x/@n = 3", {})


def test_410_ends_the_subscription_and_cancels_its_messages() -> None:
    world = one(PushResult(410))
    world.park_some("s", 600)
    world.run(1_000)
    assert (len(world.arrivals), world.gone_said) == (1, ["s"])
    assert [(event.kind, event.subscription) for event in world.told] == [("subscription-gone", "s")]
    assert set(world.states().values()) == {"cancelled"}
    assert (len(world.states()), world.log, world.buried, world.redelivery.lanes) == (600, {}, [], 0)


def test_only_changed_subscriptions_are_looked_up() -> None:
    world = World()
    for number in range(100):
        world.subscribe(f"s{number}")
        world.change(f"s{number}", paused=True)
        world.park(f"s{number}", "n")
    world.run(1_000)
    world.hear()
    world.asked = 0
    for number in range(100):
        world.subscribe(f"stranger{number}")  # without waiting messages
    world.change("s7", paused=False)
    assert world.asked == 1
    world.run(1_000)
    assert [arrival.subscription for arrival in world.arrivals] == ["s7"]


def test_a_subscription_moves_to_another_endpoint() -> None:
    world = one(REFUSED)
    world.park("s", "a")
    world.run(10_000)
    assert world.health.get("http://s/").breaker == "open"
    world.subscribe("s", endpoint="moved")
    world.hear()
    world.run(HOUR_MS)
    assert world.states() == {("s", "a"): "delivered"}
    assert (world.redelivery.lanes, world.redelivery.next_turn_ms(), world.health.everything()) == (0, None, {})


def test_a_subscription_ends_with_its_record() -> None:
    """By the clock alone a subscription in renewal, or in its grace period, would lose its deliveries."""
    world = one(BROKEN)
    world.change("s", terminates_ms=START_MS + 1_000)
    world.park("s", "a")
    world.run(10_000)
    tried = len(world.arrivals)
    assert world.states() == {("s", "a"): "parked"}
    assert tried > 1
    world.end("s")
    world.run(100)
    assert (world.states(), len(world.arrivals)) == ({("s", "a"): "cancelled"}, tried)


def test_a_failing_endpoint_suspends_its_subscriptions() -> None:
    world = World(retry=retry(suspend_after_s=1_200.0))
    for name in ("a", "b"):
        world.subscribe(name, endpoint="shared")
        world.park(name, f"{name}1")
    world.answers("a", REFUSED)
    world.run(1_320_000)
    assert set(world.suspended_said) == {"a", "b"}
    assert world.suspended_said["a"] < START_MS + 10_000
    seen = len(world.arrivals)
    world.suspend()
    world.run(2 * HOUR_MS)
    assert len(world.arrivals) == seen

    # Resumed while unreachable: suspend_after_s begins again. Then the endpoint recovers.
    world.resume("a")
    world.run(600_000)
    assert len(world.arrivals) > seen
    assert world.suspended_said == {}
    world.answers("a", OK)
    world.run(HOUR_MS)
    assert world.states() == {("a", "a1"): "delivered", ("b", "b1"): "parked"}


def test_a_resumed_subscription_is_tried_at_once() -> None:
    world = World(retry=retry(suspend_after_s=600.0))
    world.subscribe("a", endpoint="shared")
    world.answers("a", REFUSED)
    world.park("a", "a1")
    world.run(700_000)
    assert set(world.suspended_said) == {"a"}
    world.suspend()
    world.subscribe("c", endpoint="shared")
    world.park("c", "c1")
    world.run(200_000)
    probes = len(world.arrived("c"))
    while len(world.arrived("c")) == probes:
        world.run(1_000)
    world.answers("a", OK)
    world.resume("a")
    world.run(1_000)
    assert world.states()["a", "a1"] == "delivered"


def test_a_resume_while_the_job_is_down_restarts_suspend_after_s() -> None:
    world = one(REFUSED, retry=retry(suspend_after_s=1_200.0, lifespan_s=7 * 86_400.0))
    world.park("s", "n")
    world.run(1_320_000)
    assert set(world.suspended_said) == {"s"}
    kept = world.health.everything()

    world.now_ms += DAY_MS
    world.restart()
    world.health.restore(kept)
    for run_ms, suspensions in ((600_000, 1), (1_200_000, 2)):
        world.run(run_ms)
        assert [event.kind for event in world.told].count("subscription-suspended") == suspensions


def test_one_message_that_always_fails_suspends_no_subscription() -> None:
    world = one(BROKEN, retry=retry(suspend_after_s=600.0, retransmissions=20, longest_wait_s=60.0))
    world.park("s", "n")
    world.run(HOUR_MS)
    assert (world.states(), world.suspended_said) == ({("s", "n"): "dead"}, {})


def test_conditions_of_unjudged_messages_are_checked() -> None:
    world = one()
    world.change("s", content=(THREE,))
    world.suspended_now.add("s")
    world.hear()
    for number in range(6):
        world.park("s", f"n{number}", payload=b"<x n='%d'/>" % number, unjudged=True)
    world.park("s", "judged", payload=b"<x n='9'/>")
    world.run(1_000)
    assert (world.arrived("s"), world.attempts) == ([], [])
    world.resume("s")
    world.run(1_000)
    assert world.arrived("s") == ["n3", "judged"]
    ended = {(row.notification, row.error) for row in world.attempts if row.state == "cancelled"}
    assert ended == {(f"n{number}", "skipped") for number in (0, 1, 2, 4, 5)}
    assert (world.log, world.redelivery.lanes) == ({}, 0)


def test_a_condition_that_costs_too_much_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = one(push=PushSettings(owner_conditions_ms=1))
    world.change("s", content=(XPathFilter(XPATH_1, " or ".join(["//x/@n = 3"] * 20), {}),))
    evaluated: list[str] = []
    passes = Subject.passes

    def counted(self: Subject, each: Subscription) -> bool:
        evaluated.append(each.id)
        return passes(self, each)

    monkeypatch.setattr(Subject, "passes", counted)
    world.park("s", "large", payload=b"<x n='3'>" + b"<y/>" * 20_000 + b"</x>", unjudged=True)
    world.park("s", "small", payload=b"<x n='3'/>", unjudged=True)
    world.run(1_000)
    assert (world.arrived("s"), evaluated) == (["small"], ["s"])
    assert world.states()["s", "large"] == "cancelled"


def test_an_invalid_envelope_does_not_stop_others() -> None:
    world = one()
    consumer = msgspec.structs.replace(world.subscriptions["s"].consumer, reference_parameters=("<torn",))
    world.change("s", addressing=True, consumer=consumer)
    world.subscribe("other")
    world.park("s", "n")
    world.park("other", "n")
    world.run(1_000)
    assert world.states() == {("s", "n"): "dead", ("other", "n"): "delivered"}
    assert world.buried[0].error == "envelope"


def test_a_message_waits_while_its_secret_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: object) -> NoReturn:
        raise SecretError("no key")

    world = one()
    world.park("s", "n")
    with monkeypatch.context() as without_key:
        without_key.setattr(Envelope, "request", locked)
        world.run(1_000)
    assert (world.states(), world.attempts[-1].error) == ({("s", "n"): "parked"}, "internal")
    world.run(10_000)
    assert world.states() == {("s", "n"): "delivered"}


def test_fields_of_operator_events() -> None:
    world = one(REFUSED)
    world.park("s", "n")
    world.fall("s")
    world.run(2_500)
    world.answers("s", OK)
    world.run(10_000)
    world.answers("s", PushResult(400))
    world.park_some("s", 2)
    world.run(10)
    assert [(each.kind, each.endpoint, each.subscription, each.count, each.detail) for each in world.told] == [
        ("subscription-failing", "http://s/", "s", 0, ""),
        ("breaker-closed", "http://s/", "", 0, ""),
        ("subscription-recovered", "http://s/", "s", 0, ""),
        ("dead-letters-growing", "http://s/", "s", 1, "HTTP 400"),
    ]
    assert world.told[0].at_ms == START_MS


def test_a_dead_event_causes_no_event_and_answers_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Envelope, "redact", lambda _, answer: answer.replace(b"hemligt", b"..."))
    world = one(PushResult(400, response=b"not hemligt"))
    world.park("s", "n", topic=f"{SYSTEM}/dead-letters")
    world.run(1_000)
    assert (world.states(), world.told) == ({("s", "n"): "dead"}, [])
    assert [row.response for row in world.attempts] == [letter.response for letter in world.buried] == [b"not ..."]


def test_an_erased_delivery_leaves_no_dead_letter() -> None:
    world = one(REFUSED)
    world.answers("s", REFUSED, takes_ms=1_000)
    delivery = world.park("s", "n")
    world.run(500)
    assert world.in_flight == 1
    del world.log[delivery.key()]
    world.store.apply(delivery.key(), None, 99)
    world.run(10_000)
    assert (world.buried, world.attempts) == ([], [])


def test_a_lane_is_free_after_another_process_ends_it() -> None:
    world = World(retry=retry(first_wait_s=3_600.0))
    world.subscribe("s", order="strict")
    world.answers("s", BROKEN)
    deliveries = [world.park("s", "n1"), world.park("s", "n2")]
    world.run(1_000)
    assert "s" in world.lanes, "the second delivery waits for the first"
    for number, each in enumerate(deliveries):
        world.store.apply(each.key(), None, 98 + number)
    while world.store.ended_elsewhere:
        world.redelivery.ended_elsewhere(world.store.ended_elsewhere.pop())
    world.run(1_000)
    assert ("s" in world.lanes, world.redelivery.lanes) == (False, 0), "an hour before the next attempt"
