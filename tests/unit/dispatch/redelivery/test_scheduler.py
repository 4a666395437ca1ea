"""Order, waits and limits of waiting messages; breakers and probes of endpoints; links to other engines; requested
attempts."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from arborcast.dispatch.delivery import capacity, pushes
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.redelivery import scheduler
from arborcast.dispatch.settings import PushSettings, RetrySettings
from tests.support.redelivery_setup import BROKEN, DAY_MS, HOUR_MS, OK, REFUSED, START_MS, Setup, one, retry


def together(setup: Setup) -> list[str]:
    """The notifications of each push."""
    return [" ".join(arrival.notifications) for arrival in setup.arrivals]


@pytest.mark.parametrize(
    ("push", "payloads", "expected"),
    [
        (PushSettings(max_notify_messages=3, max_notify_bytes=8), ["<x/>"] * 5, ["n0 n1", "n2 n3", "n4"]),
        (PushSettings(), [f'<x xml:id="{each}"/>' for each in "abca"], ["n0 n1 n2", "n3"]),  # equal xml:ids
    ],
)
def test_waiting_messages_in_one_push(push: PushSettings, payloads: list[str], expected: list[str]) -> None:
    setup = Setup(push=push)
    setup.subscribe("s", form="notify")
    for number, payload in enumerate(payloads):
        setup.park("s", f"n{number}", payload=payload.encode())
    setup.run(1_000)
    assert together(setup) == expected


def test_a_failed_message_does_not_delay_the_others() -> None:
    setup = one()
    setup.answers("s", lambda ids: BROKEN if "bad" in ids else OK)
    for name in ("a", "bad", "b", "c"):
        setup.park("s", name)
    setup.run(DAY_MS)
    assert setup.arrived("s")[:4] == ["a", "bad", "b", "c"]
    bad = [arrival for arrival in setup.arrivals if "bad" in arrival.notifications]
    waits = [round((later.at_ms - earlier.at_ms) / 1000) for earlier, later in itertools.pairwise(bad)]
    assert waits == [2, 6, 18, 54, 162]  # five retransmissions after the first attempt
    assert [arrival.attempt for arrival in bad] == [1, 2, 3, 4, 5, 6]
    assert setup.states()["s", "bad"] == "dead"
    assert [(letter.notification.id, letter.number) for letter in setup.buried] == [("bad", 6)]
    assert [event.kind for event in setup.events] == ["dead-letters-growing"]


def test_a_slow_first_attempt_does_not_delay_retries() -> None:
    setup = one()
    setup.answers("s", OK, takes_ms=10_000)
    setup.park("s", "new")
    setup.park("s", "tried", Tries(1, 1, START_MS + 1_000, START_MS))
    setup.run(2_000)
    assert setup.arrived("s") == ["new", "tried"]


def test_the_limit_of_an_endpoint_leaves_room_for_others() -> None:
    setup = Setup(push=PushSettings(max_in_flight=10, max_in_flight_per_host=8, max_in_flight_per_endpoint=4))
    for number in range(30):
        setup.subscribe(f"slow{number}", endpoint="slow")
        setup.park(f"slow{number}", "n")
    setup.subscribe("quick")
    setup.answers("slow0", OK, takes_ms=10_000)
    setup.run(1)
    setup.park("quick", "q")
    setup.run(100)
    assert setup.states() == {("quick", "q"): "delivered"}
    assert (setup.redelivery.in_flight, setup.redelivery.statistics().due) == (4, 26)
    setup.run(10_000 * 8)
    assert set(setup.states().values()) == {"delivered"}


def test_large_messages_of_slow_receivers_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes minutes if it is sent in parts."""
    monkeypatch.setattr(capacity, "_LARGE_BYTES", 1_000)
    monkeypatch.setattr(pushes, "MOST_BYTES", 16_000)
    monkeypatch.setattr(scheduler, "MOST_BYTES", 16_000)
    setup = Setup()
    for number in range(40):
        setup.subscribe(f"slow{number}")
        setup.answers(f"slow{number}", OK, takes_ms=10_000)
        setup.park(f"slow{number}", "large", payload=b"x" * 1_001)
    setup.run(1)
    setup.subscribe("quick")
    setup.park("quick", "q")
    setup.run(100)
    assert setup.states() == {("quick", "q"): "delivered"}
    setup.run(10_000 * 5)
    assert set(setup.states().values()) == {"delivered"}
    assert setup.store.count == 0


def test_the_oldest_untried_messages_above_the_limit_are_dropped() -> None:
    setup = Setup(retry=RetrySettings(jitter=0.0, parked_messages=3))
    policies = {"s": {}, "strict": {"reliability": "strict"}, "order": {"order": "strict"}}
    for name, policy in policies.items():
        setup.subscribe(name, **policy)
        setup.change(name, paused=True)
        if name == "s":
            setup.park(name, "tried", Tries(1, 1, START_MS + HOUR_MS))
        setup.park_some(name, 5)
    setup.run(1_000)
    dropped = {("s", "n0"), ("s", "n1"), ("s", "n2"), ("order", "n0"), ("order", "n1")}
    assert {key for key, state in setup.states().items() if state == "dropped"} == dropped
    row = next(row for row in setup.attempts if row.subscription == "s")
    assert (row.error, row.number, row.push) == ("resources", 0, "")
    assert row.detail == "6 messages waited for its subscription, retry.parked_messages is 3"
    assert setup.buried == []
    setup.restart()
    setup.run(1_000)
    assert len(setup.attempts) == 5, "nothing is dropped twice"
    for name in policies:
        setup.change(name, paused=False)
    setup.run(2 * HOUR_MS)
    assert setup.arrived("s") == ["n3", "n4", "tried"]
    assert setup.arrived("strict") == ["n0", "n1", "n2", "n3", "n4"]
    assert (setup.arrived("order"), setup.log) == (["n2", "n3", "n4"], {})


def test_waiting_messages_are_bounded_in_bytes() -> None:
    setup = one(retry=RetrySettings(jitter=0.0, parked_bytes=3_000))
    setup.open_breaker("s")
    for number in range(9):
        setup.park("s", f"n{number}", payload=b"<x>%s</x>" % (b"." * 900))
        setup.run(1)
    assert [row.notification for row in setup.attempts] == [f"n{number}" for number in range(6)]
    assert "retry.parked_bytes is 3000" in setup.attempts[0].detail


def test_refused_messages_of_a_link_are_tried_one_by_one() -> None:
    """The refused one becomes a dead letter; the others arrive once and in order."""
    setup = Setup()
    setup.link("link")
    setup.answers("link", lambda ids: PushResult(400) if "n1" in ids else OK)
    setup.park_some("link", 4)
    setup.run(60_000)
    states = {notification: state for (_, notification), state in setup.states().items()}
    assert states == {"n0": "delivered", "n1": "dead", "n2": "delivered", "n3": "delivered"}
    assert together(setup) == ["n0 n1 n2 n3", "n0", "n1", "n2", "n3"]


def test_failed_messages_of_a_link_are_repeated_together() -> None:
    setup = Setup()
    setup.link("link")
    setup.park("link", "n0", Tries(5, 5, START_MS + 600_000, START_MS))
    setup.run(1_000)
    setup.park("link", "n1", Tries(1, 1, START_MS + 3_000, START_MS))
    setup.park("link", "untried")
    setup.run(1_900)
    assert together(setup) == []
    setup.run(300)
    assert together(setup) == ["n0 n1", "untried"]


def test_probes_of_an_unreachable_endpoint_do_not_count() -> None:
    setup = one(REFUSED)
    setup.park_some("s", 50)
    setup.run(HOUR_MS)
    tried_by_then = len(setup.arrivals)
    assert tried_by_then < 75  # three to open the breaker, then a probe a minute
    assert setup.most_in_flight == 1
    assert set(setup.states().values()) == {"parked"}
    assert [event.kind for event in setup.events] == ["breaker-opened", "subscription-failing"]

    setup.answers("s", OK)
    setup.run(HOUR_MS)
    assert set(setup.states().values()) == {"delivered"}
    assert len(setup.arrivals) == tried_by_then + 50
    assert setup.health.get("http://s/").breaker == "closed"
    assert [event.kind for event in setup.events[2:]] == ["breaker-closed", "subscription-recovered"]


@pytest.mark.parametrize(("answer", "kinds"), [(REFUSED, []), (OK, ["breaker-closed", "subscription-recovered"])])
def test_a_start_publishes_no_failure_again(answer: PushResult, kinds: list[str]) -> None:
    setup = one(REFUSED)
    setup.open_breaker("s")
    setup.park("s", "n")
    setup.run(10_000)
    assert [event.kind for event in setup.events] == ["subscription-failing"]

    setup.restart()
    setup.open_breaker("s")
    setup.redelivery.continue_failing()
    setup.answers("s", answer)
    setup.run(10_000)
    assert [event.kind for event in setup.events[1:]] == kinds


def test_lanes_of_an_endpoint_probe_it_in_turn() -> None:
    setup = Setup()
    for name in ("a", "b", "c"):
        setup.subscribe(name, endpoint="shared")
        setup.park_some(name, 3)
    setup.answers("a", REFUSED)
    setup.run(HOUR_MS)
    probes = Counter(arrival.subscription for arrival in setup.arrivals[6:])
    assert max(probes.values()) - min(probes[name] for name in "abc") <= 1
    # A lane that ends during its probe leaves the next probe to the others.
    setup.answers("a", REFUSED, takes_ms=500)
    while not setup.in_flight:
        setup.run(100)
    setup.end(setup.arrivals[-1].subscription)
    setup.run(1_000)
    left = sorted(setup.subscriptions)
    setup.answers(left[0], OK)
    setup.run(HOUR_MS)
    states = Counter(setup.states().values())
    assert states == {"delivered": 6, "cancelled": 3}


def test_retry_after_applies_to_the_endpoint() -> None:
    setup = one(PushResult(503, retry_after_s=600.0))
    setup.park_some("s", 2)
    setup.run(599_000)
    assert setup.arrived("s") == ["n0"]
    setup.answers("s", OK)
    setup.run(10_000)
    assert sorted(setup.arrived("s")) == ["n0", "n0", "n1"]


def test_probes_of_unreachable_endpoints_delay_no_other_lane() -> None:
    setup = Setup(push=PushSettings(max_in_flight=4), retry=retry(longest_probe_s=10.0))
    for number in range(30):
        setup.subscribe(f"away{number}")
        setup.answers(f"away{number}", REFUSED, takes_ms=5_000)
        setup.park(f"away{number}", f"a{number}")
    setup.run(300_000)
    assert all(setup.health.get(address).breaker != "closed" for address in setup.endpoints)
    probed = len(setup.arrivals)
    setup.subscribe("well")
    setup.park_some("well", 20)
    setup.run(1_000)
    assert setup.arrived("well") == [f"n{number}" for number in range(20)]
    setup.run(300_000)
    assert len({each.subscription for each in setup.arrivals[probed:]}) == 31, "all are probed"


def test_more_endpoints_than_probes_at_a_time_after_the_clock_is_set_back() -> None:
    setup = Setup(push=PushSettings(max_in_flight=4))
    for name in "abcdefg":
        setup.subscribe(name)
        setup.open_breaker(name)
        setup.park(name, "n")
    setup.run(1)
    setup.set_clock(-HOUR_MS)
    setup.run(10_000)
    assert setup.states() == {(name, "n"): "delivered" for name in "abcdefg"}


def test_answers_are_quick_within_half_of_batch_wait_s() -> None:
    setup = Setup(retry=retry(batch_wait_s=2.0))
    for name, duration_s in (("quick", 1.0), ("slow", 1.001)):
        setup.subscribe(name)
        setup.park(name, "n")
        setup.answers(name, PushResult(202, duration_s=duration_s))
    setup.run(1_000)
    assert setup.health.degraded() == {"http://slow/"}


def test_a_probe_is_the_one_message_with_the_fewest_tries() -> None:
    setup = Setup()
    setup.subscribe("tried")
    setup.park("tried", "often", Tries(5, 1, START_MS - 60_000, START_MS - 90_000))
    setup.park("tried", "once", Tries(1, 1, START_MS, START_MS - 2_000))
    setup.subscribe("untried", form="notify")
    setup.park_some("untried", 2)
    for name in ("tried", "untried"):
        setup.open_breaker(name)
        setup.answers(name, REFUSED)
    setup.run(2_500)
    assert (setup.arrived("tried"), setup.arrived("untried")) == (["once"], ["n0"])
    assert setup.too_much == []


def test_failures_of_earlier_pushes_are_no_probes() -> None:
    setup = one(REFUSED)
    setup.answers("s", REFUSED, takes_ms=1_000)
    for number in range(16):
        setup.park("s", f"n{number}", Tries(1, 1, START_MS, START_MS - 2_000))
    setup.run(1_500)
    assert len(setup.arrivals) == 16
    assert setup.health.get("http://s/").probes == 1


def test_a_requested_attempt_is_made_at_once_and_counts() -> None:
    setup = one(BROKEN, retry=retry(first_wait_s=3_600.0))
    delivery, other = setup.park("s", "n"), setup.park("s", "other")
    setup.run(1_000)
    setup.request_attempt(delivery)
    setup.run(1_000)
    assert setup.arrived("s") == ["n", "other", "n"], "an hour early"
    waiting = [setup.store.get(each) for each in (delivery, other)]
    assert [each and each.tries.number for each in waiting] == [2, 1]


@pytest.mark.parametrize("answers", [[REFUSED, OK], [OK]], ids=["tried", "untried"])
def test_a_requested_attempt_probes_behind_an_open_breaker(answers: list[PushResult]) -> None:
    setup = one(retry=retry(first_probe_s=3_600.0))
    setup.open_breaker("s")
    since_ms = setup.health.get("http://s/").failing_since_ms
    delivery = setup.park("s", "n")
    setup.run(1_000)
    assert not setup.arrived("s")
    for number, answer in enumerate(answers, 1):
        setup.answers("s", answer)
        setup.request_attempt(delivery)
        setup.run(1_000)
        assert setup.arrived("s") == ["n"] * number
        health = setup.health.get("http://s/")
        # A failed probe keeps the beginning of the failure.
        expected = ("open", since_ms) if answer is REFUSED else ("closed", 0)
        assert (health.breaker, health.failing_since_ms) == expected
    assert (setup.states(), setup.log) == ({("s", "n"): "delivered"}, {}), "the request is removed from the log"
