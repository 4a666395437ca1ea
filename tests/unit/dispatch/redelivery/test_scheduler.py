from __future__ import annotations

import itertools

import msgspec
import pytest

from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.redelivery.lanes import Choice, RetryLane
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.subscriptions import Peer
from tests.support.redelivery_world import BROKEN, DAY_MS, HOUR_MS, OK, START_MS, World, one


@pytest.mark.parametrize(
    ("push", "payloads", "together"),
    [
        (PushSettings(max_notify_messages=3, max_notify_bytes=8), ["<x/>"] * 5, ["n0 n1", "n2 n3", "n4"]),
        (PushSettings(), [f'<x xml:id="{each}"/>' for each in "abca"], ["n0 n1 n2", "n3"]),  # the same id twice
    ],
)
def test_waiting_messages_travel_together_as_far_as_they_may(
    push: PushSettings, payloads: list[str], together: list[str]
) -> None:
    world = World(push=push)
    world.subscribe("s", form="notify")
    for number, payload in enumerate(payloads):
        world.park("s", f"n{number}", payload=payload.encode())
    world.run(1_000)
    assert [" ".join(arrival.notifications) for arrival in world.arrivals] == together


def test_a_message_that_fails_is_tried_again_by_itself_and_the_others_do_not_wait() -> None:
    world = one()
    world.endpoint("s").answer = lambda ids: BROKEN if "bad" in ids else OK
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


def test_what_was_tried_is_tried_again_beside_a_first_attempt_that_takes_long() -> None:
    world = one()
    world.endpoint("s").takes_ms = 10_000
    world.park("s", "new")
    world.park("s", "tried", Tries(1, 1, START_MS + 1_000, START_MS))

    world.run(2_000)

    assert world.arrived("s") == ["new", "tried"]


def test_no_endpoint_takes_all_room_and_none_waits_for_ever() -> None:
    world = World(push=PushSettings(max_in_flight=10, max_in_flight_per_host=8, max_in_flight_per_endpoint=4))
    for number in range(30):
        world.subscribe(f"slow{number}", endpoint="slow")
        world.park(f"slow{number}", f"n{number}")
    world.subscribe("quick")
    world.endpoint("slow0").takes_ms = 10_000
    world.run(1)
    world.park("quick", "q")

    world.run(100)
    assert world.states() == {("quick", "q"): "delivered"}
    assert (world.redelivery.in_flight, world.redelivery.statistics().due) == (4, 26)

    world.run(10_000 * 8)
    assert set(world.states().values()) == {"delivered"}


LIMITED = RetrySettings(jitter=0.0, parked_messages=3)


def test_of_more_than_may_wait_the_oldest_that_were_never_tried_are_dropped() -> None:
    world = World(retry=LIMITED)
    policies = {"s": {}, "strict": {"reliability": "strict"}, "order": {"order": "strict"}}
    for name, policy in policies.items():
        world.subscriptions[name] = msgspec.structs.replace(world.subscribe(name, **policy), paused=True)
        if name == "s":
            world.park(name, "tried", Tries(1, 1, START_MS + HOUR_MS))
        for number in range(5):
            world.park(name, f"n{number}")
    world.hear()

    world.run(1_000)

    assert {key for key, state in world.states().items() if state == "dropped"} == {
        *(("s", f"n{number}") for number in (0, 1, 2)),
        *(("order", f"n{number}") for number in (0, 1)),
    }
    row = next(row for row in world.attempts if row.subscription == "s")
    assert (row.error, row.number, row.push) == ("resources", 0, "")
    assert row.detail == "6 messages waited for its subscription, retry.parked_messages is 3"
    assert world.buried == []
    world.restart()
    world.run(1_000)
    assert len(world.attempts) == 5, "nothing is dropped twice"
    for name in policies:
        world.subscriptions[name] = msgspec.structs.replace(world.subscriptions[name], paused=False)
    world.hear()
    world.run(2 * HOUR_MS)
    assert world.arrived("s") == ["n3", "n4", "tried"]
    assert world.arrived("strict") == [f"n{number}" for number in range(5)]
    assert world.arrived("order") == ["n2", "n3", "n4"]
    assert world.log == {}


def test_or_of_more_bytes() -> None:
    world = one(retry=RetrySettings(jitter=0.0, parked_bytes=3_000))
    world.fall("s")
    for number in range(9):
        world.park("s", f"n{number}", payload=b"<x>%s</x>" % (b"." * 900))
        world.run(1)

    assert [row.notification for row in world.attempts] == [f"n{number}" for number in range(6)]
    assert "retry.parked_bytes is 3000" in world.attempts[0].detail


def test_what_travelled_together_over_a_link_does_so_again_when_the_first_of_it_is_due() -> None:
    """Each has a time of its own to be tried again; the order is that of the lane, which wakes at the earliest."""
    world = World()
    link = msgspec.structs.replace(world.subscribe("link", reliability="strict"), peer=Peer("north/a", "north/b"))
    world.subscriptions.pop("link")
    for number, after_ms in enumerate((800, 700, 600)):
        world.park("link", f"n{number}", Tries(1, 1, START_MS + after_ms, START_MS))
    world.park("link", "later")
    choice, lane = Choice(world.store, world.push), RetryLane("link")
    assert world.store.next_due_ms("link") == START_MS + 600
    assert choice.of(lane, link, START_MS + 599, probing=False) == []
    for probing, expected in ((False, ["n0", "n1", "n2"]), (True, ["n0"])):
        taken = choice.of(lane, link, START_MS + 600, probing=probing)
        assert [each.notification.id for each in taken] == expected


def test_what_was_refused_together_over_a_link_is_tried_one_by_one() -> None:
    """Whoever is to blame is given up; the others arrive, in order, and not again and again with it."""
    world = World()
    world.link("link")
    world.endpoint("link").answer = lambda ids: PushResult(400) if "n1" in ids else OK
    for number in range(4):
        world.park("link", f"n{number}")

    world.run(60_000)

    states = {notification: state for (_, notification), state in world.states().items()}
    assert states == {"n0": "delivered", "n1": "dead", "n2": "delivered", "n3": "delivered"}
    assert [" ".join(each.notifications) for each in world.arrivals] == ["n0 n1 n2 n3", "n0", "n1", "n2", "n3"]


def test_a_link_wakes_for_what_a_batch_has_tried_though_others_are_to_wait_longer() -> None:
    world = World()
    world.link("link")
    world.park("link", "n0", Tries(5, 5, START_MS + 600_000, START_MS))
    world.run(1_000)
    world.park("link", "n1", Tries(1, 1, START_MS + 3_000, START_MS))

    world.run(3_000)

    assert world.arrived("link") == ["n0", "n1"], "they travel together"
