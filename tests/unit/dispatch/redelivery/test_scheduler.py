"""Order, waits and limits of waiting messages, and links to other engines."""

from __future__ import annotations

import itertools

import pytest

from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.settings import PushSettings, RetrySettings
from tests.support.redelivery_world import BROKEN, DAY_MS, HOUR_MS, OK, START_MS, World, one


def together(world: World) -> list[str]:
    """The notifications of each push."""
    return [" ".join(arrival.notifications) for arrival in world.arrivals]


@pytest.mark.parametrize(
    ("push", "payloads", "expected"),
    [
        (PushSettings(max_notify_messages=3, max_notify_bytes=8), ["<x/>"] * 5, ["n0 n1", "n2 n3", "n4"]),
        (PushSettings(), [f'<x xml:id="{each}"/>' for each in "abca"], ["n0 n1 n2", "n3"]),  # equal xml:ids
    ],
)
def test_waiting_messages_in_one_push(push: PushSettings, payloads: list[str], expected: list[str]) -> None:
    world = World(push=push)
    world.subscribe("s", form="notify")
    for number, payload in enumerate(payloads):
        world.park("s", f"n{number}", payload=payload.encode())
    world.run(1_000)
    assert together(world) == expected


def test_a_failed_message_does_not_delay_the_others() -> None:
    world = one()
    world.answers("s", lambda ids: BROKEN if "bad" in ids else OK)
    for name in ("a", "bad", "b", "c"):
        world.park("s", name)
    world.run(DAY_MS)
    assert world.arrived("s")[:4] == ["a", "bad", "b", "c"]
    bad = [arrival for arrival in world.arrivals if "bad" in arrival.notifications]
    waits = [round((later.at_ms - earlier.at_ms) / 1000) for earlier, later in itertools.pairwise(bad)]
    assert waits == [2, 6, 18, 54, 162]  # five retransmissions after the first attempt
    assert [arrival.attempt for arrival in bad] == [1, 2, 3, 4, 5, 6]
    assert world.states()["s", "bad"] == "dead"
    assert [(letter.notification.id, letter.number) for letter in world.buried] == [("bad", 6)]
    assert [event.kind for event in world.told] == ["dead-letters-growing"]


def test_a_slow_first_attempt_does_not_delay_retries() -> None:
    world = one()
    world.answers("s", OK, takes_ms=10_000)
    world.park("s", "new")
    world.park("s", "tried", Tries(1, 1, START_MS + 1_000, START_MS))
    world.run(2_000)
    assert world.arrived("s") == ["new", "tried"]


def test_the_limit_of_an_endpoint_leaves_room_for_others() -> None:
    world = World(push=PushSettings(max_in_flight=10, max_in_flight_per_host=8, max_in_flight_per_endpoint=4))
    for number in range(30):
        world.subscribe(f"slow{number}", endpoint="slow")
        world.park(f"slow{number}", "n")
    world.subscribe("quick")
    world.answers("slow0", OK, takes_ms=10_000)
    world.run(1)
    world.park("quick", "q")
    world.run(100)
    assert world.states() == {("quick", "q"): "delivered"}
    assert (world.redelivery.in_flight, world.redelivery.statistics().due) == (4, 26)
    world.run(10_000 * 8)
    assert set(world.states().values()) == {"delivered"}


def test_the_oldest_untried_messages_above_the_limit_are_dropped() -> None:
    world = World(retry=RetrySettings(jitter=0.0, parked_messages=3))
    policies = {"s": {}, "strict": {"reliability": "strict"}, "order": {"order": "strict"}}
    for name, policy in policies.items():
        world.subscribe(name, **policy)
        world.change(name, paused=True)
        if name == "s":
            world.park(name, "tried", Tries(1, 1, START_MS + HOUR_MS))
        world.park_some(name, 5)
    world.run(1_000)
    dropped = {("s", "n0"), ("s", "n1"), ("s", "n2"), ("order", "n0"), ("order", "n1")}
    assert {key for key, state in world.states().items() if state == "dropped"} == dropped
    row = next(row for row in world.attempts if row.subscription == "s")
    assert (row.error, row.number, row.push) == ("resources", 0, "")
    assert row.detail == "6 messages waited for its subscription, retry.parked_messages is 3"
    assert world.buried == []
    world.restart()
    world.run(1_000)
    assert len(world.attempts) == 5, "nothing is dropped twice"
    for name in policies:
        world.change(name, paused=False)
    world.run(2 * HOUR_MS)
    assert world.arrived("s") == ["n3", "n4", "tried"]
    assert world.arrived("strict") == ["n0", "n1", "n2", "n3", "n4"]
    assert (world.arrived("order"), world.log) == (["n2", "n3", "n4"], {})


def test_waiting_messages_are_bounded_in_bytes() -> None:
    world = one(retry=RetrySettings(jitter=0.0, parked_bytes=3_000))
    world.fall("s")
    for number in range(9):
        world.park("s", f"n{number}", payload=b"<x>%s</x>" % (b"." * 900))
        world.run(1)
    assert [row.notification for row in world.attempts] == [f"n{number}" for number in range(6)]
    assert "retry.parked_bytes is 3000" in world.attempts[0].detail


def test_refused_messages_of_a_link_are_tried_one_by_one() -> None:
    """The refused one becomes a dead letter; the others arrive once and in order."""
    world = World()
    world.link("link")
    world.answers("link", lambda ids: PushResult(400) if "n1" in ids else OK)
    world.park_some("link", 4)
    world.run(60_000)
    states = {notification: state for (_, notification), state in world.states().items()}
    assert states == {"n0": "delivered", "n1": "dead", "n2": "delivered", "n3": "delivered"}
    assert together(world) == ["n0 n1 n2 n3", "n0", "n1", "n2", "n3"]


def test_failed_messages_of_a_link_are_repeated_together() -> None:
    world = World()
    world.link("link")
    world.park("link", "n0", Tries(5, 5, START_MS + 600_000, START_MS))
    world.run(1_000)
    world.park("link", "n1", Tries(1, 1, START_MS + 3_000, START_MS))
    world.park("link", "untried")
    world.run(1_900)
    assert together(world) == []
    world.run(300)
    assert together(world) == ["n0 n1", "untried"]
