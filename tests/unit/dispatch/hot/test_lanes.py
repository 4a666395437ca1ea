from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.dispatch.delivery.capacity import Limits
from arborcast.dispatch.hot.batch_outcomes import waits
from arborcast.dispatch.hot.lanes import DEFAULT_LIMITS, LaneLimits, Lanes
from arborcast.dispatch.hot.waiting import Received
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import (
    DEFAULT_POLICY,
    DeliveryForm,
    DeliveryPolicy,
    EndpointReference,
    Subscription,
)
from arborcast.topic_model.topics import TopicPath

TOPIC = TopicPath("a")
LIMITS = LaneLimits(max_messages=3, max_bytes=100)


def subscription(name: str, form: DeliveryForm = "notify", policy: DeliveryPolicy = DEFAULT_POLICY) -> Subscription:
    return Subscription(name, EndpointReference(f"http://{name}/"), form=form, policy=policy)


def notification(name: str, size: int = 1, priority: int = 0) -> Received:
    offset = int(name) if name.isdecimal() else 0
    return Received(Notification(name, TOPIC, b"x" * size, 0, priority=priority), 0, offset)


def names(taken: tuple[Subscription, list[Received]] | None) -> tuple[str, list[str]]:
    assert taken is not None
    return taken[0].id, [each.notification.id for each in taken[1]]


@pytest.mark.parametrize(
    ("form", "sizes", "together"),
    [
        ("notify", (1, 1, 1, 1), ["0", "1", "2"]),
        ("notify", (60, 40, 1), ["0", "1"]),
        ("notify", (1_000, 1), ["0"]),
        ("raw", (1, 1), ["0"]),
        ("legacy", (1, 1), ["0"]),
        ("cloudevents-binary", (1, 1), ["0"]),
        ("cloudevents-structured", (1, 1), ["0"]),
        ("cloudevents-batched", (1, 1, 1, 1), ["0", "1", "2"]),
    ],
    ids=["count", "size", "one beyond the size", "raw", "legacy", "binary", "structured", "batched"],
)
def test_as_many_messages_share_a_push_as_may(form: DeliveryForm, sizes: tuple[int, ...], together: list[str]) -> None:
    lanes = Lanes(LIMITS)
    for number, size in enumerate(sizes):
        lanes.add(notification(str(number), size), subscription("s", form))
    assert names(lanes.take()) == ("s", together)


CLASSES = st.sampled_from((-100, 0, 0, 0, 5, 100))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 80), CLASSES), max_size=60),
    st.tuples(*[CLASSES] * 5),
    st.randoms(use_true_random=False),
    st.integers(1, 5),
)
def test_each_message_once_the_highest_first_equals_in_order_and_one_push_per_lane(
    messages: list[tuple[int, int, int]], of_lanes: tuple[int, ...], random: Random, max_messages: int
) -> None:
    """However additions, pushes, outcomes and what is parked are interleaved."""
    lanes = Lanes(LaneLimits(max_messages, 100))
    waiting: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # by lane: what leaves first is the least
    in_flight: list[str] = []
    coming = list(enumerate(messages))

    while coming or not lanes.empty:
        step = random.randrange(7)
        if step < 3 and coming:
            number, (lane, size, priority) = coming.pop(0)
            asked = DeliveryPolicy(priority=of_lanes[lane])
            lanes.add(notification(str(number), size, priority), subscription(f"s{lane}", policy=asked))
            waiting[f"s{lane}"].append((-priority, number))
        elif step < 5 and (taken := lanes.take()) is not None:
            name, taken_names = names(taken)
            assert name not in in_flight
            assert 1 <= len(taken_names) <= max_messages
            assert len(taken_names) == 1 or sum(len(each.notification.payload) for each in taken[1]) <= 100
            in_flight.append(name)
            leaving = sorted(waiting[name])[: len(taken_names)]
            assert [str(number) for _, number in leaving] == taken_names
            waiting[name] = [each for each in waiting[name] if each not in leaving]
        elif step == 5 and in_flight:
            lanes.settle(in_flight.pop(random.randrange(len(in_flight))), TOPIC)
        elif step == 6 and waiting and random.random() < 0.2:
            name = random.choice(sorted(waiting))
            assert [each.offset for each in lanes.drain(name)] == [number for _, number in waiting.pop(name)]
        assert lanes.size == sum(map(len, waiting.values()))

    assert not any(waiting.values())


def with_payload(name: str, payload: bytes, producer: bytes = b"") -> Received:
    return Received(Notification(name, TOPIC, payload, 0, producer), 0, 0)


def test_two_with_the_same_xml_id_do_not_travel_together() -> None:
    lanes = Lanes(LaneLimits(max_messages=10, max_bytes=1_000))
    messages = [b'<p xml:id="one"/>', b"<p/>", b'<p xml:id="two"/>', b"<p xml:id='one'/>", b"<p/>"]
    for number, payload in enumerate(messages):
        lanes.add(with_payload(str(number), payload), subscription("s"))

    assert names(lanes.take()) == ("s", ["0", "1", "2"])
    lanes.settle("s", TOPIC)
    assert names(lanes.take()) == ("s", ["3", "4"])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), CLASSES), max_size=40), st.permutations(range(40)))
def test_the_oldest_is_what_waits_or_is_under_way(steps: list[tuple[str, bool, int]], offsets: list[int]) -> None:
    """In any order: a notification with many recipients joins a lane behind later ones of other topics."""
    lanes = Lanes(LIMITS)
    open_offsets: dict[str, list[int]] = {"a": [], "b": []}
    busy: dict[str, list[int]] = {}
    for (name, adds, priority), offset in zip(steps, offsets, strict=False):
        if adds:
            lanes.add(notification(str(offset), priority=priority), subscription(name))
            open_offsets[name].append(offset)
        elif busy:
            done = busy.popitem()
            open_offsets[done[0]] = [each for each in open_offsets[done[0]] if each not in done[1]]
            lanes.settle(done[0], TOPIC)
        elif (taken := lanes.take()) is not None:
            busy[taken[0].id] = [each.offset for each in taken[1]]
        everything = [each for offsets in open_offsets.values() for each in offsets]
        assert lanes.oldest() == min(everything, default=None)
        assert lanes.size == len(everything) - sum(map(len, busy.values()))
        assert lanes.busy == len(busy)


def test_a_lane_that_was_drained_twice_while_it_waited_for_its_endpoint_does_not_take_the_place_of_others() -> None:
    """Else nobody at that endpoint would be called any more."""
    lanes = Lanes(LIMITS, Limits(per_endpoint=1, per_host=1))
    first, gone, last = (
        Subscription(name, EndpointReference("http://one/"), form="raw") for name in ("first", "gone", "last")
    )
    lanes.add(notification("0"), first)
    lanes.add(notification("1"), gone)
    assert lanes.take() is not None
    assert lanes.take() is None, "the endpoint is full"
    lanes.drain("gone")
    lanes.add(notification("2"), gone)
    lanes.drain("gone")
    lanes.add(notification("3"), last)
    assert lanes.take() is None
    lanes.settle("first", TOPIC)
    taken = lanes.take()
    assert taken is not None
    assert taken[0].id == "last"


def of_topic(topic: str, offset: int, priority: int = 0) -> Received:
    return Received(Notification(str(offset), TopicPath(topic), b"x", 0, priority=priority), 0, offset)


def raw_lane(*topics: str, policy: DeliveryPolicy = DEFAULT_POLICY, bounds: Limits = DEFAULT_LIMITS) -> Lanes:
    lanes = Lanes(LIMITS, bounds)
    for offset, topic in enumerate(topics):
        lanes.add(of_topic(topic, offset), subscription("s", "raw", policy))
    return lanes


def ends(lanes: Lanes, topic: str, took: bool = True, duration_s: float = 0.0) -> None:
    lanes.answered("s", took, duration_s)
    lanes.settle("s", TopicPath(topic))


def all_that_go(lanes: Lanes) -> list[str]:
    went = []
    while (taken := lanes.take()) is not None:
        went += names(taken)[1]
    return went


def test_who_takes_long_has_fewer_under_way_and_who_takes_nothing_one() -> None:
    lanes = raw_lane(*"abcdefghi")
    for topic in "abc":
        all_that_go(lanes)
        ends(lanes, topic)
    assert all_that_go(lanes) == ["5", "6"]
    assert lanes.in_flight("s") == 4
    ends(lanes, "d", duration_s=1.0)
    assert all_that_go(lanes) == []
    ends(lanes, "e")
    assert all_that_go(lanes) == ["7", "8"]
    lanes.add(of_topic("j", 9), subscription("s", "raw"))
    ends(lanes, "f", took=False)
    for topic in "ghi":
        assert all_that_go(lanes) == []
        lanes.settle("s", TopicPath(topic))
    assert all_that_go(lanes) == ["9"]


def test_of_what_is_strict_or_timely_or_travels_together_one_push_is_under_way() -> None:
    cases: tuple[tuple[DeliveryForm, DeliveryPolicy], ...] = (
        ("raw", DeliveryPolicy(reliability="strict")),
        ("raw", DeliveryPolicy(reliability="timely")),
        ("notify", DEFAULT_POLICY),
    )
    for form, policy in cases:
        lanes = Lanes(LaneLimits(1, 100))
        for offset, topic in enumerate("abc"):
            lanes.add(of_topic(topic, offset), subscription("s", form, policy))
        for expected in ("0", "1", "2"):
            assert all_that_go(lanes) == [expected]
            lanes.answered("s", took=True, duration_s=0.0)
            lanes.settle("s", TopicPath("a"))


def test_what_is_put_off_waits_for_all_pushes_of_its_lane() -> None:
    lanes = raw_lane(*"aabbcc")
    all_that_go(lanes)
    ends(lanes, "a")
    assert all_that_go(lanes) == ["1", "2"]

    assert lanes.defer("s", waits("why")) == []
    assert all_that_go(lanes) == []
    assert lanes.take_deferral("s") is None, "another one is under way"
    ends(lanes, "b")
    assert all_that_go(lanes) == []
    assert lanes.take_deferral("s") == waits("why")
    assert [each.offset for each in lanes.drain("s")] == [3, 4, 5]
    assert not lanes.settle("s", TopicPath("a"))
    assert all_that_go(lanes) == []
    assert lanes.empty


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcd"), CLASSES), max_size=60),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
)
def test_of_each_topic_one_push_in_order_however_many_are_under_way(
    messages: list[tuple[int, str, int]], random: Random, per_endpoint: int
) -> None:
    """However additions, pushes, outcomes and what is parked are interleaved, and however receivers answer."""
    lanes = Lanes(LIMITS, Limits(per_endpoint, 6))
    waiting: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)  # what leaves first is the least
    in_flight: dict[tuple[str, str], int] = {}
    coming = list(enumerate(messages))

    while coming or not lanes.empty:
        step = random.randrange(7)
        if step < 3 and coming:
            number, (lane, topic, priority) = coming.pop(0)
            lanes.add(of_topic(topic, number, priority), subscription(f"s{lane}", "raw"))
            waiting[f"s{lane}", topic].append((-priority, number))
        elif step < 5 and (taken := lanes.take()) is not None:
            (message,) = taken[1]
            key = taken[0].id, message.notification.topic
            assert key not in in_flight
            assert (-message.notification.priority, message.offset) == min(waiting[key])
            waiting[key].remove(min(waiting[key]))
            in_flight[key] = message.offset
            assert sum(name == key[0] for name, _ in in_flight) == lanes.in_flight(key[0]) <= per_endpoint
        elif step == 5 and in_flight:
            name, of = random.choice(sorted(in_flight))
            del in_flight[name, of]
            lanes.answered(name, random.random() < 0.8, random.choice((0.0, 0.0, 1.0)))
            lanes.settle(name, TopicPath(of))
        elif step == 6 and random.random() < 0.1:
            name = f"s{random.randrange(3)}"
            gone = sorted(number for key in waiting if key[0] == name for _, number in waiting[key])
            assert [each.offset for each in lanes.drain(name)] == gone
            for each in "abcd":
                waiting.pop((name, each), None)
        everything = [number for left in waiting.values() for _, number in left]
        assert lanes.size == len(everything)
        assert lanes.oldest() == min([*everything, *in_flight.values()], default=None)
        assert lanes.busy == len({name for name, _ in in_flight})

    assert not any(waiting.values())
    assert not in_flight
