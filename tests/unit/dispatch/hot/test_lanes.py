from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from dispatch.hot.lanes import LaneLimits, Lanes, Received
from topic_model.records.notifications import Notification
from topic_model.subscriptions import EndpointReference, Subscription
from topic_model.topics import TopicPath

LIMITS = LaneLimits(max_messages=3, max_bytes=100)


def subscription(name: str, form: str = "notify") -> Subscription:
    return Subscription(name, EndpointReference(f"http://{name}/"), form=form)  # type: ignore[arg-type]


def notification(name: str, size: int = 1) -> Received:
    return Received(Notification(name, TopicPath("a"), b"x" * size, 0), 0, 0)


def names(taken: tuple[Subscription, list[Received]] | None) -> tuple[str, list[str]]:
    assert taken is not None
    return taken[0].id, [each.notification.id for each in taken[1]]


def test_waiting_messages_travel_together_up_to_the_count() -> None:
    lanes = Lanes(LIMITS)
    for number in range(4):
        lanes.add(notification(str(number)), subscription("s"))

    assert names(lanes.take()) == ("s", ["0", "1", "2"])
    lanes.settle("s")
    assert names(lanes.take()) == ("s", ["3"])


def test_waiting_messages_travel_together_up_to_the_size() -> None:
    lanes = Lanes(LIMITS)
    for number, size in enumerate((60, 40, 1)):
        lanes.add(notification(str(number), size), subscription("s"))

    assert names(lanes.take()) == ("s", ["0", "1"])


def test_message_beyond_the_size_travels_alone() -> None:
    lanes = Lanes(LIMITS)
    lanes.add(notification("large", 1000), subscription("s"))
    lanes.add(notification("small"), subscription("s"))

    assert names(lanes.take()) == ("s", ["large"])


def test_raw_and_legacy_pushes_carry_one_message() -> None:
    for form in ("raw", "legacy"):
        lanes = Lanes(LIMITS)
        for number in range(2):
            lanes.add(notification(str(number)), subscription("s", form))

        assert names(lanes.take()) == ("s", ["0"])


def test_lane_under_way_is_not_handed_out_again() -> None:
    lanes = Lanes(LIMITS)
    lanes.add(notification("1"), subscription("s"))
    lanes.take()
    lanes.add(notification("2"), subscription("s"))

    assert lanes.take() is None
    assert not lanes.empty
    lanes.settle("s")
    assert names(lanes.take()) == ("s", ["2"])
    lanes.settle("s")
    assert lanes.empty


def test_long_lane_goes_to_the_back_after_each_push() -> None:
    lanes = Lanes(LIMITS)
    for number in range(9):
        lanes.add(notification(str(number)), subscription("long"))
    lanes.add(notification("only"), subscription("short"))

    served = []
    while (taken := lanes.take()) is not None:
        served.append(taken[0].id)
        lanes.settle(taken[0].id)

    assert served == ["long", "short", "long", "long"]


def test_drained_messages_are_gone_and_the_lane_ends() -> None:
    lanes = Lanes(LaneLimits(1, 100))
    for number in range(3):
        lanes.add(notification(str(number)), subscription("s"))
    lanes.take()

    assert [each.notification.id for each in lanes.drain("s")] == ["1", "2"]
    lanes.settle("s")
    assert lanes.empty
    assert lanes.take() is None


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 80)), max_size=60),
    st.randoms(use_true_random=False),
    st.integers(1, 5),
)
def test_each_message_once_in_order_and_one_push_per_lane(
    messages: list[tuple[int, int]], random: object, max_messages: int
) -> None:
    """However additions, pushes and outcomes are interleaved."""
    lanes = Lanes(LaneLimits(max_messages, 100))
    expected: defaultdict[str, list[str]] = defaultdict(list)
    pushed: defaultdict[str, list[str]] = defaultdict(list)
    under_way: list[str] = []
    waiting = [(str(number), f"s{lane}", size) for number, (lane, size) in enumerate(messages)]

    while waiting or not lanes.empty:
        step = random.randrange(3)  # type: ignore[attr-defined]
        if step == 0 and waiting:
            name, lane, size = waiting.pop(0)
            lanes.add(notification(name, size), subscription(lane))
            expected[lane].append(name)
        elif step == 1 and (taken := lanes.take()) is not None:
            lane, taken_names = names(taken)
            assert lane not in under_way
            assert 1 <= len(taken_names) <= max_messages
            assert len(taken_names) == 1 or sum(len(each.notification.payload) for each in taken[1]) <= 100
            under_way.append(lane)
            pushed[lane] += taken_names
        elif step == 2 and under_way:
            lanes.settle(under_way.pop(random.randrange(len(under_way))))  # type: ignore[attr-defined]

    assert pushed == expected


def with_payload(name: str, payload: bytes, producer: bytes = b"") -> Received:
    return Received(Notification(name, TopicPath("a"), payload, 0, producer), 0, 0)


def test_two_with_the_same_xml_id_do_not_travel_together() -> None:
    lanes = Lanes(LaneLimits(max_messages=10, max_bytes=1_000))
    messages = [b'<p xml:id="one"/>', b"<p/>", b'<p xml:id="two"/>', b"<p xml:id='one'/>", b"<p/>"]
    for number, payload in enumerate(messages):
        lanes.add(with_payload(str(number), payload), subscription("s"))

    assert names(lanes.take()) == ("s", ["0", "1", "2"])
    lanes.settle("s")
    assert names(lanes.take()) == ("s", ["3", "4"])


def test_the_xml_ids_of_producers_count_too() -> None:
    lanes = Lanes(LaneLimits(max_messages=10, max_bytes=1_000))
    lanes.add(with_payload("0", b"<p/>", b'<r xml:id="one"/>'), subscription("s"))
    lanes.add(with_payload("1", b'<p xml:id="one"/>'), subscription("s"))

    assert names(lanes.take()) == ("s", ["0"])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=40))
def test_the_oldest_is_what_waits_or_is_under_way(steps: list[tuple[str, bool]]) -> None:
    lanes = Lanes(LIMITS)
    open_offsets: dict[str, list[int]] = {"a": [], "b": []}
    busy: dict[str, list[int]] = {}
    offset = 0
    for name, adds in steps:
        if adds:
            message = Notification(str(offset), TopicPath("a"), b"x", 0)
            lanes.add(Received(message, 0, offset), subscription(name))
            open_offsets[name].append(offset)
            offset += 1
        elif busy:
            done = busy.popitem()
            open_offsets[done[0]] = [each for each in open_offsets[done[0]] if each not in done[1]]
            lanes.settle(done[0])
        elif (taken := lanes.take()) is not None:
            busy[taken[0].id] = [each.offset for each in taken[1]]
        everything = [each for offsets in open_offsets.values() for each in offsets]
        assert lanes.oldest() == min(everything, default=None)
        assert lanes.size == len(everything) - sum(map(len, busy.values()))
        assert lanes.busy == len(busy)
