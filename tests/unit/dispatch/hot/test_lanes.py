from __future__ import annotations

from collections import defaultdict
from itertools import chain
from random import Random
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.dispatch.hot.batch_outcomes import waits
from arborcast.dispatch.hot.lanes import Lanes
from arborcast.dispatch.hot.waiting import Received
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.subscriptions import (
    DEFAULT_POLICY,
    DeliveryForm,
    DeliveryPolicy,
    Peer,
    Protection,
    Subscription,
)
from arborcast.topic_model.topics import TopicPath
from tests.support.hot import limits, received
from tests.support.make import subscription

TOPIC = TopicPath("a")
LIMITS = limits(3, 100)


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
def test_messages_that_share_a_push(
    form: DeliveryForm, peer: Peer | None, sizes: tuple[int, ...], together: int
) -> None:
    lanes = Lanes(LIMITS)
    for number, size in enumerate(sizes):
        lanes.add(message(number, size), subscription("s", form=form, peer=peer))
    assert names(lanes.take()) == ("s", [str(number) for number in range(together)])


def test_a_priority_does_not_count_in_a_timely_lane() -> None:
    lanes = Lanes(LIMITS)
    lanes.add(message(0), subscription("plain"))
    lanes.add(message(1, priority=5), subscription("timely", policy=DeliveryPolicy(reliability="timely")))
    assert [names(lanes.take())[0] for _ in range(2)] == ["plain", "timely"]


@pytest.mark.parametrize("form", ["notify", "raw"])
def test_a_lane_that_is_never_empty_follows_changes_of_its_subscription(form: DeliveryForm) -> None:
    before = subscription("s", form=form)
    changed = msgspec.structs.replace(before, protection=Protection(authorization="sealed"))
    lanes = Lanes(limits(1, 100))
    for number, current in enumerate((before, before, changed)):
        lanes.add(message(number), current)
    for expected in (changed, changed, changed):
        taken = lanes.take()
        assert taken is not None
        assert taken[0] is expected
        lanes.settle("s", TOPIC)
    assert lanes.empty


def test_a_message_for_many_that_joins_late_does_not_put_a_lane_back() -> None:
    before = subscription("s", form="raw")
    changed = msgspec.structs.replace(before, protection=Protection(authorization="sealed"))
    lanes = Lanes(limits(1, 100))
    lanes.add(message(2), changed)
    lanes.add(message(1, topic="wide"), before)
    for _ in range(2):
        taken = lanes.take()
        assert taken is not None
        assert taken[0] is changed
        lanes.settle("s", taken[1][0].notification.topic)


def test_equal_xml_ids_do_not_share_a_push() -> None:
    lanes = Lanes(limits(10, 1_000))
    messages = [b'<p xml:id="one"/>', b"<p/>", b'<p xml:id="two"/>', b"<p xml:id='one'/>", b"<p/>"]
    for number, payload in enumerate(messages):
        lanes.add(received(str(number), payload=payload), subscription("s"))

    assert names(lanes.take()) == ("s", ["0", "1", "2"])
    lanes.settle("s", TOPIC)
    assert names(lanes.take()) == ("s", ["3", "4"])


def test_a_lane_drained_twice_takes_no_slot() -> None:
    """Otherwise the lanes behind it would never have a turn."""
    lanes = Lanes(limits(per_endpoint=1, per_host=1))
    first, drained, last = (subscription(name, url="http://one/", form="raw") for name in ("first", "drained", "last"))
    lanes.add(message(0), first)
    lanes.add(message(1), drained)
    assert lanes.take() is not None
    assert lanes.take() is None, "the endpoint is full"
    lanes.drain("drained")
    lanes.add(message(2), drained)
    lanes.drain("drained")
    lanes.add(message(3), last)
    assert lanes.take() is None
    lanes.settle("first", TOPIC)
    assert names(lanes.take()) == ("last", ["3"])


def lane_of(
    topics: str, form: DeliveryForm = "raw", policy: DeliveryPolicy = DEFAULT_POLICY, push: PushSettings = LIMITS
) -> Lanes:
    lanes = Lanes(push)
    for offset, topic in enumerate(topics):
        lanes.add(message(offset, topic=topic), subscription("s", form=form, policy=policy))
    return lanes


def ends(lanes: Lanes, topic: str, took: bool = True, duration_s: float = 0.0) -> None:
    lanes.answered("s", took, duration_s)
    lanes.settle("s", TopicPath(topic))


def take_all(lanes: Lanes) -> list[str]:
    taken_ids = []
    while (taken := lanes.take()) is not None:
        taken_ids += names(taken)[1]
    return taken_ids


def test_fewer_pushes_to_a_slow_receiver_and_one_after_a_failure() -> None:
    lanes = lane_of("abcdefghi")
    for topic in "abc":
        take_all(lanes)
        ends(lanes, topic)
    assert take_all(lanes) == ["5", "6"]
    assert lanes.in_flight("s") == 4
    ends(lanes, "d", duration_s=1.0)
    assert take_all(lanes) == []
    ends(lanes, "e")
    assert take_all(lanes) == ["7", "8"]
    lanes.add(message(9, topic="j"), subscription("s", form="raw"))
    ends(lanes, "f", took=False)
    for topic in "ghi":
        assert take_all(lanes) == []
        lanes.settle("s", TopicPath(topic))
    assert take_all(lanes) == ["9"]


@pytest.mark.parametrize(
    ("form", "policy"),
    [
        ("raw", DeliveryPolicy(reliability="strict")),
        ("raw", DeliveryPolicy(reliability="timely")),
        ("notify", DEFAULT_POLICY),
    ],
)
def test_one_push_at_a_time(form: DeliveryForm, policy: DeliveryPolicy) -> None:
    lanes = lane_of("abc", form, policy, limits(1, 100))
    for expected in ("0", "1", "2"):
        assert take_all(lanes) == [expected]
        ends(lanes, "a")


def test_a_deferral_waits_for_all_pushes_of_its_lane() -> None:
    lanes = lane_of("aabbcc")
    take_all(lanes)
    ends(lanes, "a")
    assert take_all(lanes) == ["1", "2"]

    assert lanes.defer("s", waits("why")) == []
    assert take_all(lanes) == []
    assert lanes.take_deferral("s") is None, "another push is in flight"
    ends(lanes, "b")
    assert take_all(lanes) == []
    assert lanes.take_deferral("s") == waits("why")
    assert [each.offset for each in lanes.drain("s")] == [3, 4, 5]
    assert not lanes.settle("s", TopicPath("a"))
    assert take_all(lanes) == []
    assert lanes.empty


CLASSES = st.sampled_from((-100, 0, 0, 0, 5, 100))


class Arrival(NamedTuple):
    lane: int
    topic: str
    size: int
    priority: int


@pytest.mark.parametrize("form", ["notify", "raw"])
@given(
    st.lists(st.builds(Arrival, st.integers(0, 2), st.sampled_from("abcd"), st.integers(1, 80), CLASSES), max_size=60),
    st.tuples(*[CLASSES] * 3),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_each_message_once_by_priority_and_in_order(
    form: DeliveryForm, messages: list[Arrival], of_lanes: tuple[int, ...], most: int, random: Random
) -> None:
    """For any order of additions, pushes, outcomes and drained lanes, and any answers: one push is in flight for each
    lane, in the form `raw` one for each of its topics. A notification with many recipients joins a lane behind later
    ones, so offsets are in any order."""
    lanes = Lanes(limits(most, 100, most, 6))
    waiting: defaultdict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)  # the smallest is next
    in_flight: dict[tuple[str, str], list[str]] = {}
    offsets = random.sample(range(100), len(messages))
    coming = list(enumerate(messages))

    while coming or not lanes.empty:
        step = random.randrange(7)
        if step < 3 and coming:
            number, (lane, topic, size, priority) = coming.pop(0)
            to = subscription(f"s{lane}", form=form, policy=DeliveryPolicy(priority=of_lanes[lane]))
            lanes.add(message(offsets[number], size, topic, priority), to)
            waiting[to.id, topic if form == "raw" else ""].append((-priority, number, str(offsets[number])))
        elif step < 5 and (taken := lanes.take()) is not None:
            name, together = names(taken)
            key = name, taken[1][0].notification.topic if form == "raw" else ""
            assert key not in in_flight
            assert len(together) <= (1 if form == "raw" else most)
            assert len(together) == 1 or sum(len(each.notification.payload) for each in taken[1]) <= 100
            leaving = sorted(waiting[key])[: len(together)]
            assert [offset for _, _, offset in leaving] == together
            waiting[key] = [each for each in waiting[key] if each not in leaving]
            in_flight[key] = together
            assert sum(lane == name for lane, _ in in_flight) == lanes.in_flight(name) <= most
        elif step == 5 and in_flight:
            name, topic = random.choice(sorted(in_flight))
            del in_flight[name, topic]
            lanes.answered(name, random.random() < 0.8, random.choice((0.0, 0.0, 1.0)))
            lanes.settle(name, TopicPath(topic or "a"))
        elif step == 6 and random.random() < 0.1:
            name = f"s{random.randrange(3)}"
            drained = [each for key in list(waiting) if key[0] == name for each in waiting.pop(key)]
            expected = sorted((offset for _, _, offset in drained), key=int)
            assert [each.notification.id for each in lanes.drain(name)] == expected
        left = [int(offset) for each in waiting.values() for _, _, offset in each]
        assert (lanes.size, lanes.busy) == (len(left), len({name for name, _ in in_flight}))
        assert lanes.oldest() == min([*left, *map(int, chain.from_iterable(in_flight.values()))], default=None)

    assert not any(waiting.values())
    assert not in_flight
