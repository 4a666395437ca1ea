"""Receivers that accept a push and report its result later, or never, in the redelivery."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.parked import UNANSWERED_PUSH, Tried, Tries
from arborcast.dispatch.redelivery.parked_store import ParkedStore
from arborcast.dispatch.redelivery.reports import AwaitedResults
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.records.results import Promise, Result, State
from tests.support.redelivery_setup import DAY_MS, LATER, OK, Setup, one, retry

CALLBACK_MS = 60_000
RESULT_TRANSIT_MS = 1_000
LATER_ROW, DELIVERED_ROW = ("parked", "later", 1), ("delivered", "", 1)


def setup_of(answer: PushResult = LATER, form: str = "raw", **policy: Any) -> Setup:
    setup = one(answer, retry=retry(retransmissions=2), push=PushSettings(callback_s=CALLBACK_MS / 1000))
    setup.subscribe("s", form=form, **policy)
    return setup


def rows(setup: Setup) -> list[tuple[str, str, int]]:
    return [(row.state, row.error, row.number) for row in setup.attempts if row.notification == "n"]


def pushed(setup: Setup) -> list[str]:
    return [" ".join(each.notifications) for each in setup.arrivals]


def test_a_delivery_ends_with_its_result() -> None:
    setup = setup_of()
    setup.park("s", "n")
    setup.run(5_000)
    assert rows(setup) == [LATER_ROW]
    (arrival,) = setup.arrivals
    assert setup.attempts[0].push == arrival.promise.push
    assert setup.attempts[0].next_ms == arrival.promise.until_ms + RESULT_TRANSIT_MS
    assert setup.lanes.for_workers()[0] == frozenset(), "a tried delivery holds no lane"

    setup.report(arrival, "delivered", "printed")
    setup.run(0)
    assert rows(setup) == [LATER_ROW, DELIVERED_ROW]
    assert setup.attempts[-1].detail == "its receiver reported this after 5.0 s: printed"
    assert (setup.log, setup.redelivery.lanes) == ({}, 0)


def test_missing_results_are_failures_and_late_ones_are_ignored() -> None:
    setup = setup_of()
    setup.park("s", "n")
    setup.run(CALLBACK_MS + RESULT_TRANSIT_MS - 1)
    assert rows(setup) == [LATER_ROW]
    setup.run(10)
    assert rows(setup) == [LATER_ROW, ("parked", "no-result", 1)]
    promise = setup.arrivals[0].promise
    setup.redelivery.reported(Result(promise, "delivered", promise.until_ms))
    setup.run(3 * CALLBACK_MS)
    assert rows(setup)[-2:] == [("parked", "later", 3), ("dead", "no-result", 3)]
    assert len(setup.arrivals) == 3
    assert (setup.health.get("http://s/").breaker, setup.events[:-1]) == ("closed", []), "the endpoint answers"


@pytest.mark.parametrize(("state", "ended"), [("delivered", "delivered"), ("failed", "parked"), ("refused", "dead")])
def test_a_result_before_the_record_of_the_delivery(state: State, ended: str) -> None:
    setup = setup_of()
    promise = Promise("s", "of-a-worker-7", setup.now_ms, setup.now_ms + CALLBACK_MS)
    setup.redelivery.reported(Result(promise, state, setup.now_ms))
    setup.run(500)
    setup.park("s", "n", Tries(1, 0, promise.until_ms, setup.now_ms, promise.push))
    setup.run(0)
    assert setup.states() == {("s", "n"): ended}


def test_a_repeated_batch_waits_for_the_result_of_its_last_push() -> None:
    setup = setup_of()
    first, second = (Tries(1, 0, setup.now_ms + CALLBACK_MS, setup.now_ms, push) for push in ("before", "after"))
    setup.repark(setup.park("s", "n", first), second)
    setup.redelivery.reported(Result(Promise("s", "after", 0, setup.now_ms + 1), "delivered", setup.now_ms))
    setup.run(0)
    assert setup.states() == {("s", "n"): "delivered"}


def test_a_result_before_the_202() -> None:
    setup = setup_of()
    setup.answers("s", LATER, takes_ms=2_000)
    setup.park("s", "n")
    setup.run(10)
    setup.report(setup.arrivals[0], "delivered")
    setup.run(1_000)
    assert rows(setup) == []
    setup.run(1_000)
    assert rows(setup) == [LATER_ROW, DELIVERED_ROW]


def test_messages_of_a_refused_push_are_tried_one_by_one() -> None:
    setup = setup_of(form="notify")
    setup.park_some("s", 3)
    setup.run(100)
    assert setup.arrivals[0].promise.messages == 3
    setup.report(setup.arrivals[0], "refused", "one of them is torn")
    setup.run(100)
    assert (pushed(setup), setup.buried) == (["n0 n1 n2", "n0", "n1", "n2"], [])
    states: list[State] = ["delivered", "refused", "delivered"]
    for arrival, state in zip(setup.arrivals[1:], states, strict=True):
        setup.report(arrival, state)
    setup.run(0)
    assert setup.states() == {("s", "n0"): "delivered", ("s", "n1"): "dead", ("s", "n2"): "delivered"}


def test_waits_for_results_after_the_clock_is_set_back() -> None:
    setup = setup_of()
    setup.subscribe("slow")
    setup.park("s", "later")
    answer_ms = int(setup.push.total_timeout_s * 1000)
    setup.park("slow", "slow", Tries(1, 0, setup.now_ms + answer_ms, setup.now_ms, f"{UNANSWERED_PUSH}p"))
    setup.run(1_000)
    setup.set_clock(-DAY_MS)
    for run_ms, expected in (
        (answer_ms - 1_000, ["later"]),
        (5_000, ["later", "slow"]),
        (CALLBACK_MS - answer_ms - 10_000, ["later", "slow"]),
        (20_000, ["later", "slow", "later"]),
    ):
        setup.run(run_ms)
        assert pushed(setup) == expected


def test_results_for_suspended_and_ended_subscriptions() -> None:
    setup = setup_of()
    setup.park_some("s", 2)
    setup.run(100)
    setup.suspended_now.add("s")
    setup.read_changes()
    setup.report(setup.arrivals[0], "delivered")
    setup.run(0)
    assert setup.states() == {("s", "n0"): "delivered", ("s", "n1"): "parked"}
    setup.end("s")
    setup.report(setup.arrivals[1], "delivered")
    setup.run(100)
    assert (setup.states()["s", "n1"], setup.redelivery.lanes) == ("cancelled", 0)


# Pushes in flight that a worker parks


def park_in_flight(setup: Setup, valid_ms: int = 0) -> Promise:
    """A worker parks a message whose push is in flight."""
    push, now_ms = f"{UNANSWERED_PUSH}p-1", setup.now_ms
    tries = Tries(1, 0, now_ms + 16_000, now_ms, push)
    setup.park("s", "n", tries, valid_until_ms=now_ms + valid_ms if valid_ms else 0)
    return Promise("s", push, now_ms - 2_000, now_ms)


def test_a_later_time_for_the_answer_to_a_push_in_parts() -> None:
    setup = setup_of(OK)
    promise = park_in_flight(setup)
    (delivery,) = [each.delivery for each in setup.store.awaiting("s", promise.push)]
    for _ in range(5):
        setup.run(10_000)
        tries = Tries(1, 0, setup.now_ms + 16_000, setup.now_ms, promise.push)
        value = parked.encode(Tried(tries))
        setup.store.apply(delivery.tried_key(), value, setup.write(delivery.tried_key(), value))
    assert pushed(setup) == []
    setup.run(16_100)
    assert pushed(setup) == ["n"], "its worker has ended"


def test_a_push_in_flight_in_a_worker_holds_its_lane() -> None:
    setup = setup_of(OK)
    promise = park_in_flight(setup)
    setup.park("s", "behind")
    setup.run(10_000)
    assert pushed(setup) == []
    assert setup.lanes.for_workers()[0] == {"s"}
    setup.redelivery.reported(Result(promise, "delivered", setup.now_ms))
    setup.run(100)
    assert (pushed(setup), rows(setup)) == (["behind"], [DELIVERED_ROW])
    assert setup.attempts[0].detail == "answered after 12.0 s"
    assert setup.lanes.for_workers()[0] == frozenset()


def test_a_late_410_ends_the_subscription() -> None:
    setup = setup_of(OK)
    promise = park_in_flight(setup)
    setup.park("s", "behind")
    setup.redelivery.reported(Result(promise, "failed", setup.now_ms, "HTTP 410", "client-error", 410))
    setup.run(1_000)
    assert (setup.gone_reported, pushed(setup)) == (["s"], [])
    assert setup.states() == {("s", "n"): "cancelled", ("s", "behind"): "cancelled"}


def test_the_retry_after_of_a_late_answer_is_kept() -> None:
    setup = setup_of(OK)
    promise, facts = park_in_flight(setup), ("HTTP 503", "server-error", 503, 60.0)
    setup.redelivery.reported(Result(promise, "failed", setup.now_ms, *facts))
    setup.run(59_999)
    assert pushed(setup) == []
    setup.run(1)
    assert pushed(setup) == ["n"]


def test_a_push_without_a_result_is_repeated_and_not_counted() -> None:
    setup = setup_of(OK, maximum_attempts=1)
    park_in_flight(setup)
    setup.park("s", "behind")
    setup.run(15_999)
    assert pushed(setup) == []
    setup.run(1_000)
    assert pushed(setup) == ["behind", "n"]
    assert rows(setup) == [("delivered", "", 2)]


def test_a_push_is_not_repeated_after_its_validity() -> None:
    setup = setup_of(OK)
    park_in_flight(setup, valid_ms=5_000)
    setup.run(20_000)
    assert (pushed(setup), [state for state, _, _ in rows(setup)]) == ([], ["expired"])
    # Over a link it is not pushed together with earlier ones, either.
    setup = Setup()
    setup.link("s")
    setup.park("s", "before", Tries(1, 1, setup.now_ms + 1_000, setup.now_ms))
    park_in_flight(setup, valid_ms=5_000)
    setup.run(25_000)
    assert pushed(setup) == ["before"]
    assert setup.states() == {("s", "before"): "delivered", ("s", "n"): "expired"}


@pytest.mark.parametrize("has_result", [True, False])
def test_a_start_repeats_pushes_without_a_result(has_result: bool) -> None:
    """The result was read before the start, or there is none; no worker has a push in flight."""
    setup = setup_of(OK)
    promise = park_in_flight(setup)
    setup.park("s", "behind")
    if has_result:
        setup.redelivery.reported(Result(promise, "delivered", setup.now_ms))
    else:
        setup.run(10)
        assert pushed(setup) == []
    setup.redelivery.workers_ended()
    setup.run(20_000 if has_result else 100)  # without a result: at once, 16 s early
    assert sorted(pushed(setup)) == (["behind"] if has_result else ["behind", "n"])
    assert rows(setup) == [("delivered", "", 1 if has_result else 2)]


def test_answers_that_kafka_gets_after_an_outage() -> None:
    setup = setup_of(OK)
    promise = park_in_flight(setup)
    setup.set_clock(20_000)  # the session failed meanwhile
    setup.redelivery.kafka_was_unavailable(10.0)
    setup.run(10_000)
    setup.redelivery.reported(Result(promise, "delivered", setup.now_ms))
    setup.run(20_000)
    assert (pushed(setup), rows(setup)) == ([], [("delivered", "", 1)])


def test_old_results_are_removed_after_the_clock_was_set_back() -> None:
    with closing(ParkedStore(None)) as store:
        reports = AwaitedResults(store)
        for hour in (10, 1, 2):
            now_ms = hour * 3_600_000
            reports.add(Result(Promise("s", f"push-{hour}", now_ms, now_ms), "delivered", now_ms), now_ms)
        assert store.query("SELECT push FROM report ORDER BY push") == [("push-10",), ("push-2",)]
