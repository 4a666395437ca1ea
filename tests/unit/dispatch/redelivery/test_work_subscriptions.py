"""Subscriptions that change while messages wait, and the events for subscribers and operators."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import msgspec
import pytest

from arborcast.core.errors import SecretError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.health import Kind, Sign
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.matching.filters import Subject
from arborcast.dispatch.matching.view import ControlState
from arborcast.dispatch.redelivery.events import NewLetters, OperatorEvent
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.expressions.conditions import XPATH_1
from arborcast.topic_model.records.control import ControlRecord, SubscriptionEnded, Tombstone
from arborcast.topic_model.subscriptions import DeliveryPolicy, Subscription, XPathFilter
from arborcast.topic_model.topics import SYSTEM
from tests.support.make import known_to_redelivery, subscription
from tests.support.outbound import THIS_MACHINE
from tests.support.redelivery_setup import BROKEN, DAY_MS, HOUR_MS, OK, REFUSED, START_MS, Setup, one, retry

THREE = XPathFilter(XPATH_1, "/x/@n = 3", {})


def test_410_ends_the_subscription_and_cancels_its_messages() -> None:
    setup = one(PushResult(410))
    setup.park_some("s", 600)
    setup.run(1_000)
    assert (len(setup.arrivals), setup.gone_reported) == (1, ["s"])
    assert [(event.kind, event.subscription) for event in setup.events] == [("subscription-gone", "s")]
    assert set(setup.states().values()) == {"cancelled"}
    assert (len(setup.states()), setup.log, setup.buried, setup.redelivery.lanes) == (600, {}, [], 0)


def test_nothing_is_pushed_after_a_410_before_the_end_of_the_subscription_is_read() -> None:
    """In strict order each message is parked, and so the next one, too."""
    setup = one(PushResult(410))
    setup.change("s", policy=DeliveryPolicy(reliability="strict"))
    for name in ("a", "b"):
        setup.park("s", name)
        setup.run(1_000)
    assert (len(setup.arrivals), setup.gone_reported) == (1, ["s"])
    assert setup.states() == {("s", "a"): "cancelled", ("s", "b"): "cancelled"}

    # Subscriptions of the settings have the same id again.
    setup.end("s")
    setup.read_changes()
    setup.subscribe("s")
    setup.answers("s", OK)
    setup.read_changes()
    setup.park("s", "c")
    setup.run(1_000)
    assert setup.states()["s", "c"] == "delivered"


def test_operators_get_events_for_the_pushes_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of timely subscriptions there are no other pushes."""
    events: list[OperatorEvent] = []
    known = known_to_redelivery(ControlState(), subscription("s", "plant", "http://receiver.example/"))
    redeliverer = Redeliverer(
        *(KafkaSettings(), PushSettings(), RetrySettings(breaker_failures=1), THIS_MACHINE, known, tmp_path / "parked"),
        publish=events.append,
    )
    log: list[ControlRecord] = []
    monkeypatch.setattr(redeliverer._ends, "_control", SimpleNamespace(append=log.extend, close=lambda: None))
    kinds: tuple[Kind, ...] = ("unreachable", "quick")
    for kind in kinds:
        redeliverer.batch_done([PartitionReport(signs=[("http://receiver.example/", Sign(kind, "n"))])])
    new = NewLetters(2, "s", "http://receiver.example/", "HTTP 400")
    redeliverer.batch_done([PartitionReport(gone={"s", "ended meanwhile"}), *[PartitionReport(new_letters=new)] * 3])
    redeliverer._alarm.publish_due(START_MS)
    assert [type(each) for each in log] == [SubscriptionEnded, *[Tombstone] * 3]
    assert [(each.kind, each.subscription, each.endpoint) for each in events] == [
        ("breaker-opened", "", "http://receiver.example/"),
        ("breaker-closed", "", "http://receiver.example/"),
        ("subscription-gone", "s", "http://receiver.example/"),
        ("dead-letters-growing", "s", "http://receiver.example/"),
    ]
    assert events[-1].count == 6


def test_the_outcomes_of_many_ended_deliveries_are_written_in_between() -> None:
    setup = Setup()
    for name in ("a", "b", "c", "d"):
        setup.subscribe(name)
        setup.change(name, paused=True)
        setup.park_some(name, 400)
        setup.end(name)
    setup.read_changes()
    setup.redelivery.work()
    assert setup.store.count == 2 * 400, "the caller writes, and reads the log for the start of a query"
    setup.run(1_000)
    assert (setup.store.count, len(setup.states()), set(setup.states().values())) == (0, 1_600, {"cancelled"})


def test_only_changed_subscriptions_are_looked_up() -> None:
    setup = Setup()
    for number in range(100):
        setup.subscribe(f"s{number}")
        setup.change(f"s{number}", paused=True)
        setup.park(f"s{number}", "n")
    setup.run(1_000)
    setup.read_changes()
    setup.reads = 0
    for number in range(100):
        setup.subscribe(f"stranger{number}")  # without waiting messages
    setup.change("s7", paused=False)
    assert setup.reads == 1
    setup.run(1_000)
    assert [arrival.subscription for arrival in setup.arrivals] == ["s7"]


def test_a_subscription_moves_to_another_endpoint() -> None:
    setup = one(REFUSED)
    setup.park("s", "a")
    setup.run(10_000)
    assert setup.health.get("http://s/").breaker == "open"
    setup.subscribe("s", endpoint="moved")
    setup.read_changes()
    setup.run(HOUR_MS)
    assert setup.states() == {("s", "a"): "delivered"}
    assert (setup.redelivery.lanes, setup.redelivery.next_turn_ms(), setup.health.everything()) == (0, None, {})


def test_a_subscription_ends_with_its_record() -> None:
    """By the clock alone a subscription in renewal, or in its grace period, would lose its deliveries."""
    setup = one(BROKEN)
    setup.change("s", terminates_ms=START_MS + 1_000)
    setup.park("s", "a")
    setup.run(10_000)
    tried = len(setup.arrivals)
    assert setup.states() == {("s", "a"): "parked"}
    assert tried > 1
    setup.end("s")
    setup.run(100)
    assert (setup.states(), len(setup.arrivals)) == ({("s", "a"): "cancelled"}, tried)


def test_a_failing_endpoint_suspends_its_subscriptions() -> None:
    setup = Setup(retry=retry(suspend_after_s=1_200.0))
    for name in ("a", "b"):
        setup.subscribe(name, endpoint="shared")
        setup.park(name, f"{name}1")
    setup.answers("a", REFUSED)
    setup.run(1_320_000)
    assert set(setup.suspended_reported) == {"a", "b"}
    assert setup.suspended_reported["a"] < START_MS + 10_000
    seen = len(setup.arrivals)
    setup.suspend()
    setup.run(2 * HOUR_MS)
    assert len(setup.arrivals) == seen

    # Resumed while unreachable: suspend_after_s begins again. Then the endpoint recovers.
    setup.resume("a")
    setup.run(600_000)
    assert len(setup.arrivals) > seen
    assert setup.suspended_reported == {}
    setup.answers("a", OK)
    setup.run(HOUR_MS)
    assert setup.states() == {("a", "a1"): "delivered", ("b", "b1"): "parked"}


def test_a_resumed_subscription_is_tried_at_once() -> None:
    setup = Setup(retry=retry(suspend_after_s=600.0))
    setup.subscribe("a", endpoint="shared")
    setup.answers("a", REFUSED)
    setup.park("a", "a1")
    setup.run(700_000)
    assert set(setup.suspended_reported) == {"a"}
    setup.suspend()
    setup.subscribe("c", endpoint="shared")
    setup.park("c", "c1")
    setup.run(200_000)
    probes = len(setup.arrived("c"))
    while len(setup.arrived("c")) == probes:
        setup.run(1_000)
    setup.answers("a", OK)
    setup.resume("a")
    setup.run(1_000)
    assert setup.states()["a", "a1"] == "delivered"


def test_a_resume_while_the_job_is_down_restarts_suspend_after_s() -> None:
    setup = one(REFUSED, retry=retry(suspend_after_s=1_200.0, lifespan_s=7 * 86_400.0))
    setup.park("s", "n")
    setup.run(1_320_000)
    assert set(setup.suspended_reported) == {"s"}
    kept = setup.health.everything()

    setup.now_ms += DAY_MS
    setup.restart()
    setup.health.restore(kept)
    for run_ms, suspensions in ((600_000, 1), (1_200_000, 2)):
        setup.run(run_ms)
        assert [event.kind for event in setup.events].count("subscription-suspended") == suspensions


def test_one_message_that_always_fails_suspends_no_subscription() -> None:
    setup = one(BROKEN, retry=retry(suspend_after_s=600.0, retransmissions=20, longest_wait_s=60.0))
    setup.park("s", "n")
    setup.run(HOUR_MS)
    assert (setup.states(), setup.suspended_reported) == ({("s", "n"): "dead"}, {})


def test_conditions_of_unjudged_messages_are_checked() -> None:
    setup = one()
    setup.change("s", content=(THREE,))
    setup.suspended_now.add("s")
    setup.read_changes()
    for number in range(6):
        setup.park("s", f"n{number}", payload=b"<x n='%d'/>" % number, unjudged=True)
    setup.park("s", "judged", payload=b"<x n='9'/>")
    setup.run(1_000)
    assert (setup.arrived("s"), setup.attempts) == ([], [])
    setup.resume("s")
    setup.run(1_000)
    assert setup.arrived("s") == ["n3", "judged"]
    ended = {(row.notification, row.error) for row in setup.attempts if row.state == "cancelled"}
    assert ended == {(f"n{number}", "skipped") for number in (0, 1, 2, 4, 5)}
    assert (setup.log, setup.redelivery.lanes) == ({}, 0)


def test_a_condition_that_costs_too_much_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = one(push=PushSettings(owner_conditions_ms=1))
    setup.change("s", content=(XPathFilter(XPATH_1, " or ".join(["//x/@n = 3"] * 20), {}),))
    evaluated: list[str] = []
    passes = Subject.passes

    def counted(self: Subject, each: Subscription) -> bool:
        evaluated.append(each.id)
        return passes(self, each)

    monkeypatch.setattr(Subject, "passes", counted)
    setup.park("s", "large", payload=b"<x n='3'>" + b"<y/>" * 20_000 + b"</x>", unjudged=True)
    setup.park("s", "small", payload=b"<x n='3'/>", unjudged=True)
    setup.run(1_000)
    assert (setup.arrived("s"), evaluated) == (["small"], ["s"])
    assert setup.states()["s", "large"] == "cancelled"


def test_an_invalid_envelope_does_not_stop_others() -> None:
    setup = one()
    consumer = msgspec.structs.replace(setup.subscriptions["s"].consumer, reference_parameters=("<torn",))
    setup.change("s", addressing=True, consumer=consumer)
    setup.subscribe("other")
    setup.park("s", "n")
    setup.park("other", "n")
    setup.run(1_000)
    assert setup.states() == {("s", "n"): "dead", ("other", "n"): "delivered"}
    assert setup.buried[0].error == "envelope"


def test_a_message_waits_while_its_secret_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: object) -> NoReturn:
        raise SecretError("no key")

    setup = one()
    setup.park("s", "n")
    with monkeypatch.context() as without_key:
        without_key.setattr(Envelope, "request", locked)
        setup.run(1_000)
    assert (setup.states(), setup.attempts[-1].error) == ({("s", "n"): "parked"}, "internal")
    setup.run(10_000)
    assert setup.states() == {("s", "n"): "delivered"}


def test_fields_of_operator_events() -> None:
    setup = one(REFUSED)
    setup.park("s", "n")
    setup.open_breaker("s")
    setup.run(2_500)
    setup.answers("s", OK)
    setup.run(10_000)
    setup.answers("s", PushResult(400))
    setup.park_some("s", 2)
    setup.run(10)
    assert [(each.kind, each.endpoint, each.subscription, each.count, each.detail) for each in setup.events] == [
        ("subscription-failing", "http://s/", "s", 0, ""),
        ("breaker-closed", "http://s/", "", 0, ""),
        ("subscription-recovered", "http://s/", "s", 0, ""),
        ("dead-letters-growing", "http://s/", "s", 1, "HTTP 400"),
    ]
    assert setup.events[0].at_ms == START_MS


def test_a_dead_event_causes_no_event_and_answers_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Envelope, "redact", lambda _, answer: answer.replace(b"hemligt", b"..."))
    setup = one(PushResult(400, response=b"not hemligt"))
    setup.park("s", "n", topic=f"{SYSTEM}/dead-letters")
    setup.run(1_000)
    assert (setup.states(), setup.events) == ({("s", "n"): "dead"}, [])
    assert [row.response for row in setup.attempts] == [letter.response for letter in setup.buried] == [b"not ..."]


def test_an_erased_delivery_leaves_no_dead_letter() -> None:
    setup = one(REFUSED)
    setup.answers("s", REFUSED, takes_ms=1_000)
    delivery = setup.park("s", "n")
    setup.run(500)
    assert setup.in_flight == 1
    del setup.log[delivery.key()]
    setup.store.apply(delivery.key(), None, 99)
    setup.run(10_000)
    assert (setup.buried, setup.attempts) == ([], [])


def test_a_lane_is_free_after_another_process_ends_it() -> None:
    setup = Setup(retry=retry(first_wait_s=3_600.0))
    setup.subscribe("s", order="strict")
    setup.answers("s", BROKEN)
    deliveries = [setup.park("s", "n1"), setup.park("s", "n2")]
    setup.run(1_000)
    assert "s" in setup.lanes, "the second delivery waits for the first"
    for number, each in enumerate(deliveries):
        setup.store.apply(each.key(), None, 98 + number)
    while setup.store.ended_elsewhere:
        setup.redelivery.turn_now(setup.store.ended_elsewhere.pop())
    setup.run(1_000)
    assert ("s" in setup.lanes, setup.redelivery.lanes) == (False, 0), "an hour before the next attempt"
