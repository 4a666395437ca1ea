from __future__ import annotations

import dataclasses
import itertools
from typing import NoReturn

import msgspec
import pytest

from dispatch.envelope import Envelope
from dispatch.redelivery.events import SYSTEM
from dispatch.redelivery.parked import Tries
from dispatch.settings import PushSettings, RetrySettings
from dispatch.transport.contract import PushResult
from tests.support.redelivery_world import BROKEN, OK, REFUSED, START_MS, FakeEndpoint, World
from topic_model.errors import SecretError

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def retry(**settings: object) -> RetrySettings:
    return dataclasses.replace(RetrySettings(jitter=0.0), **settings)  # type: ignore[arg-type]


def test_what_was_never_tried_leaves_in_order_one_push_at_a_time() -> None:
    world = World()
    world.subscribe("s")
    for number in range(20):
        world.park("s", f"n{number}")

    world.run(1_000)

    assert world.arrived("s") == [f"n{number}" for number in range(20)]
    assert world.most_in_flight == 1
    assert set(world.states().values()) == {"delivered"}
    assert (world.log, world.store.count, world.redelivery.lanes) == ({}, 0, 0)
    assert world.redelivery.next_turn_ms() is None


def test_waiting_messages_travel_together_as_far_as_a_push_may_be_long() -> None:
    world = World(push=PushSettings(max_notify_messages=3, max_notify_bytes=9))
    world.subscribe("s", form="notify")
    for number in range(5):
        world.park("s", f"n{number}")

    world.run(1_000)

    assert [arrival.notifications for arrival in world.arrivals] == [("n0", "n1"), ("n2", "n3"), ("n4",)]


def test_a_message_that_fails_is_tried_again_by_itself_and_the_others_do_not_wait() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: BROKEN if "bad" in ids else OK
    for name in ("a", "bad", "b", "c"):
        world.park("s", name)

    world.run(DAY_MS)

    assert world.arrived("s")[:4] == ["a", "bad", "b", "c"]
    times = [arrival.at_ms for arrival in world.arrivals if "bad" in arrival.notifications]
    waits = [round((later - earlier) / 1000) for earlier, later in itertools.pairwise(times)]
    assert waits == [2, 6, 18, 54, 162]  # five retransmissions after the first attempt
    numbers = [arrival.attempt for arrival in world.arrivals if "bad" in arrival.notifications]
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert world.states()["s", "bad"] == "dead"
    assert [(letter.notification.id, letter.number) for letter in world.buried] == [("bad", 6)]
    assert [event.kind for event in world.told] == ["dead-letters-growing"]


def test_a_lane_with_only_tried_messages_in_it_is_not_held() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: BROKEN
    world.park("s", "n")
    assert world.lanes.for_batch() == {"s"}

    world.run(100)

    assert world.lanes.for_batch() == frozenset()
    assert world.redelivery.lanes == 1


def test_a_lane_is_held_while_its_first_attempt_is_under_way() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").takes_ms = 500
    world.park("s", "n")

    world.run(400)
    assert world.lanes.for_batch() == {"s"}
    world.run(200)
    assert world.lanes.for_batch() == frozenset()


def test_a_refused_message_is_dead_at_once_and_its_companions_are_not() -> None:
    world = World()
    world.subscribe("s", form="notify")
    world.endpoint("s").answer = lambda ids: PushResult(400) if "bad" in ids else OK
    for name in ("a", "bad", "b"):
        world.park("s", name)

    world.run(1_000)

    assert world.arrivals[0].notifications == ("a", "bad", "b")
    assert sorted(arrival.notifications for arrival in world.arrivals[1:]) == [("a",), ("b",), ("bad",)]
    assert world.states() == {("s", "a"): "delivered", ("s", "bad"): "dead", ("s", "b"): "delivered"}


def test_an_endpoint_that_is_away_is_only_probed_and_that_does_not_count() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: REFUSED
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


def test_the_rest_is_drained_at_full_speed_when_the_endpoint_is_back() -> None:
    world = World()
    for number in range(100):
        world.subscribe(f"s{number}", endpoint="shared")
        world.park(f"s{number}", f"n{number}")
    world.endpoint("s0").answer = lambda ids: REFUSED
    world.run(10 * 60_000)
    world.endpoint("s0").answer = lambda ids: OK
    world.endpoint("s0").takes_ms = 100
    seen = len(world.arrivals)

    world.run(61_000 + 2 * 100 * (100 // 16 + 2))

    assert set(world.states().values()) == {"delivered"}
    assert len(world.arrivals) - seen == 100
    assert world.most_in_flight == PushSettings().max_in_flight_per_endpoint


def test_messages_that_an_endpoint_always_fails_at_do_not_stop_the_others() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: BROKEN if ids[0].startswith("bad") else OK
    for number in range(3):
        world.park("s", f"bad{number}")
    world.park("s", "good")

    world.run(30_000)
    assert world.states()["s", "good"] == "delivered"
    assert world.states()["s", "bad0"] == "parked"
    world.park("s", "late")
    world.run(61_000)
    assert world.states()["s", "late"] == "delivered"

    world.run(HOUR_MS)
    assert [world.arrived("s").count(f"bad{number}") for number in range(3)] == [6, 6, 6]
    assert world.states()["s", "bad2"] == "dead"


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
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: PushResult(503, retry_after_s=600.0)
    world.park("s", "a")
    world.park("s", "b")

    world.run(599_000)
    assert world.arrived("s") == ["a"]

    world.endpoint("s").answer = lambda ids: OK
    world.run(10_000)
    assert sorted(world.arrived("s")) == ["a", "a", "b"]


def test_lifespan_ends_what_waits_whether_tried_or_not() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: REFUSED
    for number in range(1_200):
        world.park("s", f"n{number}")

    world.run(DAY_MS + 60_000)

    assert set(world.states().values()) == {"expired"}
    assert {row.error for row in world.buried} <= {"lifespan", "connect"}
    assert len(world.buried) == 1_200
    assert (world.log, world.redelivery.lanes) == ({}, 0)
    assert world.lanes.for_batch() == frozenset()


def test_a_subscription_may_ask_for_its_own_lifespan_and_number_of_tries() -> None:
    world = World()
    world.subscribe("short", lifespan_ms=60_000)
    world.subscribe("once", maximum_attempts=1)
    world.endpoint("short").answer = lambda ids: REFUSED
    world.endpoint("once").answer = lambda ids: BROKEN
    world.park("short", "n")
    world.park("once", "n")

    world.run(61_000)

    assert world.states() == {("short", "n"): "expired", ("once", "n"): "dead"}
    assert len(world.arrived("once")) == 1


def test_a_strict_lane_settles_each_message_before_the_next() -> None:
    world = World()
    world.subscribe("s", order="strict", form="notify")
    failures = iter([BROKEN, BROKEN])
    world.endpoint("s").answer = lambda ids: next(failures, OK) if "a" in ids else OK
    for name in ("a", "b", "c"):
        world.park("s", name)

    world.run(60_000)

    assert [arrival.notifications for arrival in world.arrivals] == [("a",), ("a",), ("a",), ("b",), ("c",)]
    assert [round((arrival.at_ms - START_MS) / 1000) for arrival in world.arrivals] == [0, 2, 8, 8, 8]


def test_a_strict_lane_goes_on_behind_a_message_that_is_given_up() -> None:
    world = World()
    world.subscribe("s", reliability="strict", maximum_attempts=2)
    world.endpoint("s").answer = lambda ids: BROKEN if "a" in ids else OK
    world.park("s", "a")
    world.park("s", "b")

    world.run(60_000)

    assert world.arrived("s") == ["a", "a", "b"]
    assert world.states() == {("s", "a"): "dead", ("s", "b"): "delivered"}


def test_gone_ends_the_subscription_and_cancels_what_waits() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: PushResult(410)
    for number in range(1_100):
        world.park("s", f"n{number}")

    world.run(1_000)

    assert len(world.arrivals) == 1
    assert world.gone_said == ["s"]
    assert set(world.states().values()) == {"cancelled"}
    assert (len(world.states()), world.log, world.buried, world.redelivery.lanes) == (1_100, {}, [], 0)


def test_the_end_of_a_subscription_cancels_what_waits_for_a_dead_endpoint_too() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: REFUSED
    world.park("s", "a")
    world.park("s", "b")
    world.run(60_000)

    del world.subscriptions["s"]
    world.redelivery.look_at_subscriptions()
    world.run(1)

    assert set(world.states().values()) == {"cancelled"}
    assert world.redelivery.next_turn_ms() is None


def test_a_paused_lane_waits_and_resumes_at_once_in_order() -> None:
    world = World()
    running = world.subscribe("s")
    world.subscriptions["s"] = msgspec.structs.replace(running, paused=True)
    world.park("s", "a")
    world.park("s", "b")
    world.run(HOUR_MS)
    assert not world.arrivals
    assert world.lanes.for_batch() == {"s"}

    world.subscriptions["s"] = running
    world.redelivery.look_at_subscriptions()
    world.run(100)

    assert world.arrived("s") == ["a", "b"]


def test_a_paused_lane_expires() -> None:
    world = World()
    world.subscriptions["s"] = msgspec.structs.replace(world.subscribe("s"), paused=True)
    world.park("s", "a")

    world.run(DAY_MS)

    assert (world.states(), world.arrivals) == ({("s", "a"): "expired"}, [])


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
    world.redelivery.suspensions_are_known()
    world.run(12 * HOUR_MS)
    assert len(world.arrivals) == seen

    # Resumed while still away: it has the whole time again. Then it is back.
    world.suspended_now = {"b"}
    world.redelivery.look_at_subscriptions()
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
    world.redelivery.suspensions_are_known()
    world.subscribe("c", endpoint="shared")
    world.park("c", "c1")
    world.run(200_000)
    probes = len(world.arrived("c"))
    while len(world.arrived("c")) == probes:
        world.run(1_000)

    world.endpoint("a").answer = lambda ids: OK
    world.suspended_now.clear()
    world.redelivery.look_at_subscriptions()
    world.run(1_000)

    assert world.states()["a", "a1"] == "delivered"


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
    assert world.redelivery.in_flight == 4

    world.run(10_000 * 8)
    assert set(world.states().values()) == {"delivered"}


def test_tried_messages_of_a_lane_are_retried_beside_each_other() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").takes_ms = 1_000
    for number in range(32):
        world.park("s", f"n{number}", Tries(1, 1, START_MS + 5_000))

    world.run(4_999)
    assert world.arrivals == []
    world.run(2_100)

    assert len(world.arrived("s")) == 32
    assert world.most_in_flight == 16


def test_a_restart_goes_on_with_what_the_log_says() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: BROKEN if "bad" in ids else OK
    world.park("s", "bad")
    world.run(60_000)
    world.park("s", "good")

    world.restart()
    assert world.lanes.for_batch() == {"s"}
    world.run(DAY_MS)

    numbers = [arrival.attempt for arrival in world.arrivals if "bad" in arrival.notifications]
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert world.states() == {("s", "bad"): "dead", ("s", "good"): "delivered"}


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
    world = World()
    world.subscribe("s")
    world.park("s", "n")
    with monkeypatch.context() as without_key:

        def locked(*_: object) -> NoReturn:
            raise SecretError("the key is not there")

        without_key.setattr(Envelope, "request", locked)
        world.run(1_000)
        assert (world.states(), world.attempts[-1].error) == ({("s", "n"): "parked"}, "internal")

    world.run(10_000)
    assert world.states() == {("s", "n"): "delivered"}


def test_room_that_a_lane_cannot_use_because_its_subscription_is_over_goes_to_the_next() -> None:
    world = World(push=PushSettings(max_in_flight_per_endpoint=1))
    for name in ("a", "b", "c"):
        world.subscribe(name, endpoint="shared")
        world.park(name, name)
    world.endpoint("a").takes_ms = 1_000
    world.run(500)
    del world.subscriptions["b"]

    world.run(5_000)

    assert world.states() == {("a", "a"): "delivered", ("b", "b"): "cancelled", ("c", "c"): "delivered"}


def test_a_subscription_that_was_resumed_while_the_job_was_down_has_the_whole_time_again() -> None:
    world = World(retry=retry(suspend_after_s=7_200.0, lifespan_s=7 * 86_400.0))
    world.subscribe("s")
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


def test_a_slow_endpoint_is_served_at_its_own_pace() -> None:
    world = World()
    world.subscribe("s")
    world.endpoints["http://s/"] = FakeEndpoint(lambda ids: PushResult(202, duration_s=9.0), 9_000)
    world.park("s", "a")
    world.park("s", "b")

    world.run(20_000)

    assert world.states() == {("s", "a"): "delivered", ("s", "b"): "delivered"}
    assert world.health.get("http://s/").sick


def test_nothing_happens_while_nothing_is_due() -> None:
    world = World()
    world.subscribe("s")
    for number in range(1_000):
        world.park("s", f"n{number}", Tries(1, 1, START_MS + HOUR_MS))

    world.run(0)

    assert world.redelivery.next_turn_ms() == START_MS + HOUR_MS


def test_a_clock_that_is_put_back_delays_nobody_for_longer_than_was_promised() -> None:
    world = World()
    for name in ("failing", "away", "strict"):
        world.subscribe(name, order="strict" if name == "strict" else "acceptance")
        world.endpoint(name).answer = lambda ids: BROKEN
        world.park(name, f"{name}1")
    world.endpoint("away").answer = lambda ids: REFUSED
    world.run(30_000)
    probed = len(world.arrived("away"))
    for name in ("failing", "strict"):
        world.endpoint(name).answer = lambda ids: OK

    world.set_clock(-HOUR_MS)
    world.run(1_000)

    assert [world.states()[name, f"{name}1"] for name in ("failing", "strict")] == ["delivered", "delivered"]
    assert len(world.arrived("away")) == probed + 1
    world.endpoint("away").answer = lambda ids: OK
    world.run(61_000)
    assert set(world.states().values()) == {"delivered"}


def test_a_clock_that_was_put_back_while_nobody_looked_delays_nobody_either() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: BROKEN
    world.park("s", "a")
    world.run(1_000)
    world.park("s", "by another machine", Tries(1, 1, world.now_ms + HOUR_MS + 2_000, world.now_ms + HOUR_MS))

    world.set_clock(-HOUR_MS)
    world.restart()
    world.endpoint("s").answer = lambda ids: OK
    world.run(1_000)

    assert set(world.states().values()) == {"delivered"}


def test_a_clock_that_is_put_back_a_little_changes_nothing() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: BROKEN
    world.park("s", "a")
    world.run(1_000)

    world.set_clock(-1_000)
    world.run(1_900)
    assert len(world.arrived("s")) == 1
    world.run(200)
    assert len(world.arrived("s")) == 2


def test_dead_letters_are_told_of_after_the_clock_was_put_back() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: PushResult(400)
    world.park("s", "a")
    world.run(1_000)
    world.set_clock(-HOUR_MS)
    world.park("s", "b")
    world.run(1_000)

    assert [event.kind for event in world.told] == ["dead-letters-growing", "dead-letters-growing"]


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


def test_a_breaker_that_a_batch_has_opened_is_probed_in_time() -> None:
    world = World()
    world.subscribe("s")
    world.fall("s")
    world.park("s", "n")

    world.run(1_999)
    assert world.arrivals == []
    world.run(1_000)
    assert world.states() == {("s", "n"): "delivered"}


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
    world.redelivery.look_at_subscriptions()

    world.run(1_000)
    assert world.states() == {("first", "a"): "cancelled"}
    world.endpoint("other").answer = lambda ids: OK
    world.run(5_000)
    assert world.states()["other", "b"] == "delivered"


def test_failures_of_pushes_that_began_before_the_breaker_opened_say_nothing_new() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: REFUSED
    world.endpoint("s").takes_ms = 1_000
    for number in range(16):
        world.park("s", f"n{number}", Tries(1, 1, START_MS, START_MS - 2_000))

    world.run(1_500)

    assert len(world.arrivals) == 16
    assert world.health.get("http://s/").probes == 1


def test_a_receiver_that_refuses_messages_is_well() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: PushResult(404)
    for number in range(20):
        world.park("s", f"n{number}")

    world.run(1_000)

    assert set(world.states().values()) == {"dead"}
    assert world.health.get("http://s/").breaker == "closed"


def test_one_message_that_always_fails_suspends_nobody() -> None:
    world = World(retry=retry(suspend_after_s=600.0, retransmissions=30, longest_wait_s=60.0))
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: BROKEN
    world.park("s", "n")

    world.run(HOUR_MS)

    assert (world.states(), world.suspended_said) == ({("s", "n"): "dead"}, {})


def test_a_try_without_an_answer_counts_as_long_as_the_breaker_is_closed() -> None:
    world = World(retry=retry(retransmissions=1, breaker_failures=100))
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: REFUSED
    world.park("s", "n")

    world.run(60_000)

    assert (world.states(), len(world.arrivals)) == ({("s", "n"): "dead"}, 2)


def test_what_was_tried_is_tried_again_beside_a_first_attempt_that_takes_long() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").takes_ms = 10_000
    world.park("s", "new")
    world.park("s", "tried", Tries(1, 1, START_MS + 1_000, START_MS))

    world.run(2_000)

    assert world.arrived("s") == ["new", "tried"]


def test_what_the_log_says_is_finished_is_not_parked_again_by_a_push_that_was_one_too_many() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: BROKEN
    world.endpoint("s").takes_ms = 1_000
    delivery = world.park("s", "n")
    world.run(500)
    del world.log[delivery.key()]
    world.store.apply(delivery.key(), None)

    world.run(1_000)

    assert (world.attempts, world.log, world.redelivery.lanes) == ([], {}, 0)


def test_what_is_under_way_when_the_subscription_ends_has_one_end() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").takes_ms = 1_000
    world.park("s", "a")
    world.park("s", "b")
    world.run(500)
    del world.subscriptions["s"]
    world.redelivery.look_at_subscriptions()

    world.run(1_000)

    assert [(row.notification, row.state) for row in world.attempts] == [("b", "cancelled"), ("a", "delivered")]
    assert (world.log, world.redelivery.lanes) == ({}, 0)


def test_a_message_that_is_older_than_those_found_before_expires_in_time() -> None:
    world = World()
    world.subscriptions["s"] = msgspec.structs.replace(world.subscribe("s"), paused=True)
    world.park("s", "young")
    world.run(1_000)
    world.park("s", "old", accepted_ms=START_MS - DAY_MS + 10_000)

    world.run(10_000)

    assert world.states() == {("s", "old"): "expired"}


def test_no_event_tells_of_dead_events() -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: PushResult(400)
    world.park("s", "n", topic=f"{SYSTEM}/dead-letters")

    world.run(1_000)

    assert (world.states(), world.told) == ({("s", "n"): "dead"}, [])


def test_answers_are_kept_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Envelope, "redact", lambda _, answer: answer.replace(b"hemligt", b"..."))
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: PushResult(400, response=b"not hemligt")
    world.park("s", "n")

    world.run(1_000)

    assert [row.response for row in world.attempts] == [b"not ..."]
    assert world.buried[0].response == b"not ..."


def test_no_more_is_under_way_than_allowed_wherever_it_goes() -> None:
    world = World(push=PushSettings(max_in_flight=2))
    for number in range(5):
        world.subscribe(f"s{number}")
        world.endpoint(f"s{number}").takes_ms = 1_000
        world.park(f"s{number}", f"n{number}")

    world.run(3_500)

    assert world.most_in_flight == 2
    assert set(world.states().values()) == {"delivered"}
