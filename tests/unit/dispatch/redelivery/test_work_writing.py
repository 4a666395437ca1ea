from __future__ import annotations

from typing import NoReturn

import msgspec
import pytest

from arborcast.core.errors import SecretError
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.topic_model.topics import SYSTEM
from tests.support.redelivery_world import BROKEN, DAY_MS, OK, REFUSED, START_MS, World, one, retry


def test_a_message_that_cannot_be_written_as_an_envelope_is_given_up_and_the_others_go_on() -> None:
    world = World()
    subscription = world.subscribe("s")
    world.subscriptions["s"] = msgspec.structs.replace(
        subscription,
        addressing=True,
        consumer=msgspec.structs.replace(subscription.consumer, reference_parameters=("<torn",)),
    )
    world.subscribe("other")
    world.park("s", "n")
    world.park("other", "n")

    world.run(1_000)

    assert world.states() == {("s", "n"): "dead", ("other", "n"): "delivered"}
    assert world.buried[0].error == "envelope"


def test_a_message_whose_secret_cannot_be_opened_for_now_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = one()
    world.park("s", "n")
    with monkeypatch.context() as without_key:

        def locked(*_: object) -> NoReturn:
            raise SecretError("the key is not there")

        without_key.setattr(Envelope, "request", locked)
        world.run(1_000)
        assert (world.states(), world.attempts[-1].error) == ({("s", "n"): "parked"}, "internal")

    world.run(10_000)
    assert world.states() == {("s", "n"): "delivered"}


def test_operators_hear_which_endpoint_which_subscription_and_why() -> None:
    world = one(REFUSED)
    world.park("s", "n")
    world.fall("s")
    world.run(2_500)
    world.endpoint("s").answer = lambda ids: OK
    world.run(10_000)
    world.endpoint("s").answer = lambda ids: PushResult(400)
    world.park("s", "bad")
    world.park("s", "worse")
    world.run(10)

    assert [(each.kind, each.endpoint, each.subscription, each.count, each.detail) for each in world.told] == [
        ("subscription-failing", "http://s/", "s", 0, ""),
        ("breaker-closed", "http://s/", "", 0, ""),
        ("subscription-recovered", "http://s/", "s", 0, ""),
        ("dead-letters-growing", "http://s/", "s", 1, "HTTP 400"),
    ]
    assert [each.at_ms - START_MS for each in world.told[:1]] == [0]


def test_no_event_tells_of_dead_events() -> None:
    world = one(PushResult(400))
    world.park("s", "n", topic=f"{SYSTEM}/dead-letters")

    world.run(1_000)

    assert (world.states(), world.told) == ({("s", "n"): "dead"}, [])


def test_answers_are_kept_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Envelope, "redact", lambda _, answer: answer.replace(b"hemligt", b"..."))
    world = one(PushResult(400, response=b"not hemligt"))
    world.park("s", "n")

    world.run(1_000)

    assert [row.response for row in world.attempts] == [b"not ..."]
    assert world.buried[0].response == b"not ..."


def test_a_delivery_that_an_erasure_has_ended_leaves_no_dead_letter() -> None:
    world = one(REFUSED)
    world.endpoint("s").takes_ms = 1_000
    delivery = world.park("s", "n")
    world.run(500)
    assert world.in_flight == 1
    del world.log[delivery.key()]
    world.store.apply(delivery.key(), None, 99)

    world.run(10_000)
    assert (world.buried, world.attempts) == ([], [])


def test_a_lane_whose_deliveries_another_process_has_ended_holds_nothing() -> None:
    world = World(retry=retry(first_wait_s=3_600.0))
    world.subscribe("s", order="strict")
    world.endpoint("s").answer = lambda ids: BROKEN
    first, second = world.park("s", "n1"), world.park("s", "n2")
    world.run(1_000)
    assert "s" in world.lanes, "the second waits for the first"
    for number, each in enumerate((first, second)):
        world.store.apply(each.key(), None, 98 + number)
    while world.store.ended_elsewhere:
        world.redelivery.ended_elsewhere(world.store.ended_elsewhere.pop())
    world.run(1_000)
    assert ("s" in world.lanes, world.redelivery.lanes) == (False, 0), "an hour before its next try"


def test_what_its_publisher_wants_no_more_ends_and_leaves_no_dead_letter() -> None:
    world = one(REFUSED)
    for number in range(510):
        world.park("s", f"short{number}", valid_until_ms=START_MS + 5_000)
    for number in range(10):
        world.park("s", f"long{number}", valid_until_ms=START_MS + 2 * DAY_MS)
    world.run(5_000)

    assert all(world.states()["s", f"short{number}"] == "expired" for number in range(510))
    assert {row.error for row in world.attempts if row.state == "expired"} <= {"lifespan", "connect"}
    assert any("ended at 2023-11-14T22:13:25.000Z" in row.detail for row in world.attempts if row.state == "expired")
    assert (world.buried, world.store.count) == ([], 10)

    world.run(DAY_MS)

    assert set(world.states().values()) == {"expired"}
    assert {letter.notification.id[:4] for letter in world.buried} == {"long"}
    assert len(world.buried) == 10
    assert (world.log, world.redelivery.lanes) == ({}, 0)
