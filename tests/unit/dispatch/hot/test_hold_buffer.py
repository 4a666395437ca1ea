from __future__ import annotations

from arborcast.dispatch.hot.hold_buffer import HoldBuffer
from tests.support.hot import received
from tests.support.make import subscription

ONE, OTHER = subscription("one"), subscription("other")
FIRST, SECOND, THIRD = (received(offset=each) for each in (1, 2, 3))


def test_what_is_kept_goes_when_its_lane_is_free_or_after_a_moment() -> None:
    kept = HoldBuffer(10)
    assert kept.add(ONE, FIRST, 0.0)
    assert kept.add(OTHER, SECOND, 0.1)
    assert kept.add(ONE, THIRD, 0.2)
    assert (kept.size, kept.oldest(), kept.examined) == (3, 1, 2)

    assert list(kept.release({"one", "other"}, 0.24)) == []
    assert list(kept.release({"one"}, 0.24)) == [(OTHER, [SECOND])]
    assert list(kept.release({"one"}, 0.25)) == [(ONE, [FIRST, THIRD])]
    assert (kept.size, kept.oldest(), kept.examined) == (0, None, 1)


def test_the_moment_is_longer_each_time_until_the_lane_was_free() -> None:
    kept, now, moments = HoldBuffer(10), 0, []  # in eighths of a second, which are exact
    for _ in range(6):
        began = now
        kept.add(ONE, FIRST, now / 8)
        while not list(kept.release({"one"}, now / 8)):
            now += 1
        moments.append((now - began) / 8)
    assert moments == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]

    assert list(kept.release((), now / 8)) == []
    kept.add(ONE, FIRST, now / 8)
    assert list(kept.release({"one"}, now / 8 + 0.25)), "as at first"


def test_there_is_room_for_so_many() -> None:
    kept = HoldBuffer(2)
    assert [kept.add(ONE, each, 0.0) for each in (FIRST, SECOND, THIRD)] == [True, True, False]
    assert (kept.drain("one"), kept.drain("other")) == ([FIRST, SECOND], [])
    assert kept.add(ONE, THIRD, 1.0)


def test_a_look_does_not_go_over_all_lanes_that_are_held() -> None:
    kept = HoldBuffer(10)
    for number in range(5_000):
        kept.add(subscription(f"s{number}"), FIRST, 0.0)
        kept.drain(f"s{number}")
    kept.add(ONE, FIRST, 0.0)
    looks: list[object] = []

    class Held:
        def __contains__(self, lane: object) -> bool:
            looks.append(lane)
            return True

    assert list(kept.release(Held(), 0.1)) == []
    assert len(looks) < 50


def test_each_look_goes_on_where_the_last_one_ended() -> None:
    kept, names = HoldBuffer(10), [f"s{number}" for number in range(20)]
    for name in names:
        kept.add(subscription(name), FIRST, 0.0)
        kept.drain(name)
    for _ in range(2):
        assert list(kept.release(names[1:], 0.0)) == []
    assert kept.examined == 19, "the free one is among the second sixteen"
