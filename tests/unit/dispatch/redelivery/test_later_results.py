"""Receivers that accept a push and report its result later, or never, in the redelivery."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.parked import UNANSWERED_PUSH, Tries
from arborcast.dispatch.redelivery.parked_store import ParkedStore
from arborcast.dispatch.redelivery.reports import AwaitedResults
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.records.results import Promise, Result, State
from tests.support.redelivery_world import DAY_MS, LATER, OK, World, one, retry

CALLBACK_MS = 60_000
RESULT_TRANSIT_MS = 1_000
LATER_ROW, DELIVERED_ROW = ("parked", "later", 1), ("delivered", "", 1)


def world_of(answer: PushResult = LATER, form: str = "raw", **policy: Any) -> World:
    world = one(answer, retry=retry(retransmissions=2), push=PushSettings(callback_s=CALLBACK_MS / 1000))
    world.subscribe("s", form=form, **policy)
    return world


def rows(world: World) -> list[tuple[str, str, int]]:
    return [(row.state, row.error, row.number) for row in world.attempts if row.notification == "n"]


def pushed(world: World) -> list[str]:
    return [" ".join(each.notifications) for each in world.arrivals]


def test_a_delivery_ends_with_its_result() -> None:
    world = world_of()
    world.park("s", "n")
    world.run(5_000)
    assert rows(world) == [LATER_ROW]
    (arrival,) = world.arrivals
    assert world.attempts[0].push == arrival.promise.push
    assert world.attempts[0].next_ms == arrival.promise.until_ms + RESULT_TRANSIT_MS
    assert world.lanes.for_workers()[0] == frozenset(), "a tried delivery holds no lane"

    world.report(arrival, "delivered", "printed")
    world.run(0)
    assert rows(world) == [LATER_ROW, DELIVERED_ROW]
    assert world.attempts[-1].detail == "its receiver reported this after 5.0 s: printed"
    assert (world.log, world.redelivery.lanes, world.redelivery.outcomes.delivered) == ({}, 0, 1)


def test_missing_results_are_failures_and_late_ones_are_ignored() -> None:
    world = world_of()
    world.park("s", "n")
    world.run(CALLBACK_MS + RESULT_TRANSIT_MS - 1)
    assert rows(world) == [LATER_ROW]
    world.run(10)
    assert rows(world) == [LATER_ROW, ("parked", "no-result", 1)]
    promise = world.arrivals[0].promise
    world.redelivery.reported(Result(promise, "delivered", promise.until_ms))
    world.run(3 * CALLBACK_MS)
    assert rows(world)[-2:] == [("parked", "later", 3), ("dead", "no-result", 3)]
    assert len(world.arrivals) == 3
    assert (world.health.get("http://s/").breaker, world.told[:-1]) == ("closed", []), "the endpoint answers"


@pytest.mark.parametrize(("state", "ended"), [("delivered", "delivered"), ("failed", "parked"), ("refused", "dead")])
def test_a_result_before_the_record_of_the_delivery(state: State, ended: str) -> None:
    world = world_of()
    promise = Promise("s", "of-a-worker-7", world.now_ms, world.now_ms + CALLBACK_MS)
    world.redelivery.reported(Result(promise, state, world.now_ms))
    world.run(500)
    world.park("s", "n", Tries(1, 0, promise.until_ms, world.now_ms, promise.push))
    world.run(0)
    assert world.states() == {("s", "n"): ended}


def test_a_repeated_batch_waits_for_the_result_of_its_last_push() -> None:
    world = world_of()
    first, second = (Tries(1, 0, world.now_ms + CALLBACK_MS, world.now_ms, push) for push in ("before", "after"))
    world.repark(world.park("s", "n", first), second)
    world.redelivery.reported(Result(Promise("s", "after", 0, world.now_ms + 1), "delivered", world.now_ms))
    world.run(0)
    assert world.states() == {("s", "n"): "delivered"}


def test_a_result_before_the_202() -> None:
    world = world_of()
    world.answers("s", LATER, takes_ms=2_000)
    world.park("s", "n")
    world.run(10)
    world.report(world.arrivals[0], "delivered")
    world.run(1_000)
    assert rows(world) == []
    world.run(1_000)
    assert rows(world) == [LATER_ROW, DELIVERED_ROW]


def test_messages_of_a_refused_push_are_tried_one_by_one() -> None:
    world = world_of(form="notify")
    world.park_some("s", 3)
    world.run(100)
    assert world.arrivals[0].promise.messages == 3
    world.report(world.arrivals[0], "refused", "one of them is torn")
    world.run(100)
    assert (pushed(world), world.buried) == (["n0 n1 n2", "n0", "n1", "n2"], [])
    for arrival, state in zip(world.arrivals[1:], ("delivered", "refused", "delivered"), strict=True):
        world.report(arrival, state)  # type: ignore[arg-type]
    world.run(0)
    assert world.states() == {("s", "n0"): "delivered", ("s", "n1"): "dead", ("s", "n2"): "delivered"}


def test_waits_for_results_after_the_clock_is_set_back() -> None:
    world = world_of()
    world.subscribe("slow")
    world.park("s", "later")
    answer_ms = int(world.push.total_timeout_s * 1000)
    world.park("slow", "slow", Tries(1, 0, world.now_ms + answer_ms, world.now_ms, f"{UNANSWERED_PUSH}p"))
    world.run(1_000)
    world.set_clock(-DAY_MS)
    for run_ms, expected in (
        (answer_ms - 1_000, ["later"]),
        (5_000, ["later", "slow"]),
        (CALLBACK_MS - answer_ms - 10_000, ["later", "slow"]),
        (20_000, ["later", "slow", "later"]),
    ):
        world.run(run_ms)
        assert pushed(world) == expected


def test_results_for_suspended_and_ended_subscriptions() -> None:
    world = world_of()
    world.park_some("s", 2)
    world.run(100)
    world.suspended_now.add("s")
    world.hear()
    world.report(world.arrivals[0], "delivered")
    world.run(0)
    assert world.states() == {("s", "n0"): "delivered", ("s", "n1"): "parked"}
    world.end("s")
    world.report(world.arrivals[1], "delivered")
    world.run(100)
    assert (world.states()["s", "n1"], world.redelivery.lanes) == ("cancelled", 0)


def test_without_a_callback_address_202_is_the_result() -> None:
    world = one(LATER, push=PushSettings(callback_s=0))
    world.park("s", "n")
    world.run(100)
    assert rows(world) == [DELIVERED_ROW]


# Pushes in flight that a worker parks


def park_in_flight(world: World, valid_ms: int = 0) -> Promise:
    """A worker parks a message whose push is in flight."""
    push, now_ms = f"{UNANSWERED_PUSH}p-1", world.now_ms
    tries = Tries(1, 0, now_ms + 16_000, now_ms, push)
    world.park("s", "n", tries, valid_until_ms=now_ms + valid_ms if valid_ms else 0)
    return Promise("s", push, now_ms - 2_000, now_ms)


def test_a_push_in_flight_in_a_worker_holds_its_lane() -> None:
    world = world_of(OK)
    promise = park_in_flight(world)
    world.park("s", "behind")
    world.run(10_000)
    assert pushed(world) == []
    assert world.lanes.for_workers()[0] == {"s"}
    world.redelivery.reported(Result(promise, "delivered", world.now_ms))
    world.run(100)
    assert (pushed(world), rows(world)) == (["behind"], [DELIVERED_ROW])
    assert world.attempts[0].detail == "answered after 12.0 s"
    assert world.lanes.for_workers()[0] == frozenset()


def test_a_push_without_a_result_is_repeated_and_not_counted() -> None:
    world = world_of(OK, maximum_attempts=1)
    park_in_flight(world)
    world.park("s", "behind")
    world.run(15_999)
    assert pushed(world) == []
    world.run(1_000)
    assert pushed(world) == ["behind", "n"]
    assert rows(world) == [("delivered", "", 2)]


def test_a_push_is_not_repeated_after_its_validity() -> None:
    world = world_of(OK)
    park_in_flight(world, valid_ms=5_000)
    world.run(20_000)
    assert (pushed(world), [state for state, _, _ in rows(world)]) == ([], ["expired"])
    # Over a link it is not pushed together with earlier ones, either.
    world = World()
    world.link("s")
    world.park("s", "before", Tries(1, 1, world.now_ms + 1_000, world.now_ms))
    park_in_flight(world, valid_ms=5_000)
    world.run(25_000)
    assert pushed(world) == ["before"]
    assert world.states() == {("s", "before"): "delivered", ("s", "n"): "expired"}


@pytest.mark.parametrize("has_result", [True, False])
def test_a_start_repeats_pushes_without_a_result(has_result: bool) -> None:
    """The result was read before the start, or there is none; no worker has a push in flight."""
    world = world_of(OK)
    promise = park_in_flight(world)
    world.park("s", "behind")
    if has_result:
        world.redelivery.reported(Result(promise, "delivered", world.now_ms))
    else:
        world.run(10)
        assert pushed(world) == []
    world.redelivery.workers_ended()
    world.run(20_000 if has_result else 100)  # without a result: at once, 16 s early
    assert sorted(pushed(world)) == (["behind"] if has_result else ["behind", "n"])
    assert rows(world) == [("delivered", "", 1 if has_result else 2)]


def test_old_results_are_removed_after_the_clock_was_set_back() -> None:
    with closing(ParkedStore(None)) as store:
        reports = AwaitedResults(store)
        for hour in (10, 1, 2):
            now_ms = hour * 3_600_000
            reports.add(Result(Promise("s", f"push-{hour}", now_ms, now_ms), "delivered", now_ms), now_ms)
        assert store.query("SELECT push FROM report ORDER BY push") == [("push-10",), ("push-2",)]
