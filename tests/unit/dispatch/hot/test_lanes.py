from __future__ import annotations

from collections import defaultdict
from itertools import chain
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.dispatch.delivery.capacity import Limits
from arborcast.dispatch.hot.batch_outcomes import waits
from arborcast.dispatch.hot.lanes import LaneLimits, Lanes
from arborcast.dispatch.hot.waiting import Received
from arborcast.topic_model.subscriptions import DEFAULT_POLICY, DeliveryForm, DeliveryPolicy, Peer, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.hot import received
from tests.support.make import subscription

TOPIC = TopicPath("a")
LIMITS = LaneLimits(max_messages=3, max_bytes=100)


def message(offset: int, size: int = 1, topic: str = "a", priority: int = 0) -> Received:
    return received(str(offset), offset, topic, payload=b"x" * size, priority=priority)


def names(taken: tuple[Subscription, list[Received]] | None) -> tuple[str, list[str]]:
    assert taken is not None
    return taken[0].id, [each.notification.id for each in taken[1]]


@pytest.mark.parametrize(
    ("form", "peer", "sizes", "together"),
    [
        ("notify", None, (1, 1, 1, 1), 3),
        ("notify", None, (60, 40, 1), 2),
        ("notify", None, (1_000, 1), 1),
        ("raw", None, (1, 1), 1),
        ("legacy", None, (1, 1), 1),
        ("cloudevents-binary", None, (1, 1), 1),
        ("cloudevents-structured", None, (1, 1), 1),
        ("cloudevents-batched", None, (1, 1, 1, 1), 3),
        ("peer", Peer("G/a", "G/b"), (1, 1, 1, 1), 4),
        ("peer", Peer("G/a", "G/b", "only"), (1, 1), 1),
    ],
)
def test_as_many_messages_share_a_push_as_may(
    form: DeliveryForm, peer: Peer | None, sizes: tuple[int, ...], together: int
) -> None:
    lanes = Lanes(LIMITS)
    for number, size in enumerate(sizes):
        lanes.add(message(number, size), subscription("s", form=form, peer=peer))
    assert names(lanes.take()) == ("s", [str(number) for number in range(together)])


def test_a_priority_that_does_not_count_in_its_lane_puts_it_before_no_other() -> None:
    lanes = Lanes(LIMITS)
    lanes.add(message(0), subscription("plain"))
    lanes.add(message(1, priority=5), subscription("timely", policy=DeliveryPolicy(reliability="timely")))
    assert [names(lanes.take())[0] for _ in range(2)] == ["plain", "timely"]


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
    in_flight: dict[str, list[int]] = {}
    coming = list(enumerate(messages))

    while coming or not lanes.empty:
        step = random.randrange(7)
        if step < 3 and coming:
            number, (lane, size, priority) = coming.pop(0)
            asked = DeliveryPolicy(priority=of_lanes[lane])
            lanes.add(message(number, size, priority=priority), subscription(f"s{lane}", policy=asked))
            waiting[f"s{lane}"].append((-priority, number))
        elif step < 5 and (taken := lanes.take()) is not None:
            name, taken_names = names(taken)
            assert name not in in_flight
            assert 1 <= len(taken_names) <= max_messages
            assert len(taken_names) == 1 or sum(len(each.notification.payload) for each in taken[1]) <= 100
            in_flight[name] = [each.offset for each in taken[1]]
            leaving = sorted(waiting[name])[: len(taken_names)]
            assert [str(number) for _, number in leaving] == taken_names
            waiting[name] = [each for each in waiting[name] if each not in leaving]
        elif step == 5 and in_flight:
            name = random.choice(sorted(in_flight))
            del in_flight[name]
            lanes.settle(name, TOPIC)
        elif step == 6 and waiting and random.random() < 0.2:
            name = random.choice(sorted(waiting))
            assert [each.offset for each in lanes.drain(name)] == [number for _, number in waiting.pop(name)]
        assert (lanes.size, lanes.busy) == (sum(map(len, waiting.values())), len(in_flight))
        left = [number for each in waiting.values() for _, number in each]
        assert lanes.oldest() == min([*left, *chain.from_iterable(in_flight.values())], default=None)

    assert not any(waiting.values())


def test_two_with_the_same_xml_id_do_not_travel_together() -> None:
    lanes = Lanes(LaneLimits(max_messages=10, max_bytes=1_000))
    messages = [b'<p xml:id="one"/>', b"<p/>", b'<p xml:id="two"/>', b"<p xml:id='one'/>", b"<p/>"]
    for number, payload in enumerate(messages):
        lanes.add(received(str(number), payload=payload), subscription("s"))

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
            lanes.add(message(offset, priority=priority), subscription(name))
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
    first, gone, last = (subscription(name, url="http://one/", form="raw") for name in ("first", "gone", "last"))
    lanes.add(message(0), first)
    lanes.add(message(1), gone)
    assert lanes.take() is not None
    assert lanes.take() is None, "the endpoint is full"
    lanes.drain("gone")
    lanes.add(message(2), gone)
    lanes.drain("gone")
    lanes.add(message(3), last)
    assert lanes.take() is None
    lanes.settle("first", TOPIC)
    assert names(lanes.take()) == ("last", ["3"])


def lane_of(
    topics: str, form: DeliveryForm = "raw", policy: DeliveryPolicy = DEFAULT_POLICY, limits: LaneLimits = LIMITS
) -> Lanes:
    lanes = Lanes(limits)
    for offset, topic in enumerate(topics):
        lanes.add(message(offset, topic=topic), subscription("s", form=form, policy=policy))
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
    lanes = lane_of("abcdefghi")
    for topic in "abc":
        all_that_go(lanes)
        ends(lanes, topic)
    assert all_that_go(lanes) == ["5", "6"]
    assert lanes.in_flight("s") == 4
    ends(lanes, "d", duration_s=1.0)
    assert all_that_go(lanes) == []
    ends(lanes, "e")
    assert all_that_go(lanes) == ["7", "8"]
    lanes.add(message(9, topic="j"), subscription("s", form="raw"))
    ends(lanes, "f", took=False)
    for topic in "ghi":
        assert all_that_go(lanes) == []
        lanes.settle("s", TopicPath(topic))
    assert all_that_go(lanes) == ["9"]


@pytest.mark.parametrize(
    ("form", "policy"),
    [
        ("raw", DeliveryPolicy(reliability="strict")),
        ("raw", DeliveryPolicy(reliability="timely")),
        ("notify", DEFAULT_POLICY),
    ],
)
def test_of_what_is_strict_or_timely_or_travels_together_one_push_is_under_way(
    form: DeliveryForm, policy: DeliveryPolicy
) -> None:
    lanes = lane_of("abc", form, policy, LaneLimits(1, 100))
    for expected in ("0", "1", "2"):
        assert all_that_go(lanes) == [expected]
        ends(lanes, "a")


def test_what_is_put_off_waits_for_all_pushes_of_its_lane() -> None:
    lanes = lane_of("aabbcc")
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
            lanes.add(message(number, topic=topic, priority=priority), subscription(f"s{lane}", form="raw"))
            waiting[f"s{lane}", topic].append((-priority, number))
        elif step < 5 and (taken := lanes.take()) is not None:
            (only,) = taken[1]
            key = taken[0].id, only.notification.topic
            assert key not in in_flight
            assert (-only.notification.priority, only.offset) == min(waiting[key])
            waiting[key].remove(min(waiting[key]))
            in_flight[key] = only.offset
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
