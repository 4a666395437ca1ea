from __future__ import annotations

from arborcast.dispatch.hot.hold_buffer import HoldBuffer
from arborcast.dispatch.hot.waiting import Received
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath

ONE, OTHER = (Subscription(name, EndpointReference(f"http://{name}/")) for name in ("one", "other"))


def received(offset: int) -> Received:
    return Received(Notification(f"n{offset}", TopicPath("a"), b"<x/>", 5), 0, offset, 7)


def test_what_is_kept_goes_when_its_lane_is_free_or_after_a_moment() -> None:
    kept = HoldBuffer(10)
    assert kept.add(ONE, received(1), 0.0)
    assert kept.add(OTHER, received(2), 0.1)
    assert kept.add(ONE, received(3), 0.2)
    assert (kept.size, kept.oldest()) == (3, 1)

    assert list(kept.release({"one", "other"}, 0.24)) == []
    assert list(kept.release({"one"}, 0.24)) == [(OTHER, [received(2)])]
    assert list(kept.release({"one"}, 0.25)) == [(ONE, [received(1), received(3)])]
    assert (kept.size, kept.oldest()) == (0, None)


def test_the_moment_is_longer_each_time_until_the_lane_was_free() -> None:
    kept, now, moments = HoldBuffer(10), 0, []  # in eighths of a second, which are exact
    for _ in range(6):
        began = now
        kept.add(ONE, received(1), now / 8)
        while not list(kept.release({"one"}, now / 8)):
            now += 1
        moments.append((now - began) / 8)
    assert moments == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]

    assert list(kept.release((), now / 8)) == []
    kept.add(ONE, received(1), now / 8)
    assert list(kept.release({"one"}, now / 8 + 0.25)), "as at first"


def test_there_is_room_for_so_many() -> None:
    kept = HoldBuffer(2)
    assert [kept.add(ONE, received(number), 0.0) for number in range(3)] == [True, True, False]
    assert kept.drain("one") == [received(0), received(1)]
    assert kept.drain("other") == []
    assert kept.add(ONE, received(3), 1.0)


def test_a_look_does_not_go_over_all_lanes_that_are_held() -> None:
    class Held:
        asked = 0

        def __contains__(self, lane: object) -> bool:
            self.asked += 1
            return True

    kept, held = HoldBuffer(10), Held()
    for number in range(5_000):
        target = Subscription(f"s{number}", EndpointReference("http://s/"))
        kept.add(target, received(number), 0.0)
        kept.drain(target.id)
    kept.add(ONE, received(1), 0.0)
    assert list(kept.release(held, 0.1)) == []
    assert held.asked < 50
