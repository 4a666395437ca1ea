from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from arborcast.dispatch.delivery.capacity import InFlightLimiter, Limits, scopes_of

A, B, C = (scopes_of(each) for each in ("http://host/a", "http://host/b", "http://other/c"))


@pytest.fixture
def room() -> InFlightLimiter:
    """With one push under way to A, and place for no more."""
    made = InFlightLimiter(Limits(per_endpoint=1, per_host=10))
    assert not made.wait("first", A)
    made.enter(A)
    return made


@pytest.mark.parametrize("scheme", ["http", "https", "HTTP", "udp"])
@pytest.mark.parametrize(
    "place", ["host", "Host.Example", "10.0.0.1:80", "[::1]:80", "u:p@host", "a_b", "é.example", "host:"]
)
def test_the_host_of_an_address(scheme: str, place: str) -> None:
    for rest in ("", "/", "/a:b@c", "?x", "#y", "\n", "\\x"):
        address = f"{scheme}://{place}{rest}"
        assert scopes_of(address) == (("endpoint", address), ("host", urlsplit(address).hostname))


def test_lanes_wait_for_a_full_endpoint_in_order_and_for_no_other(room: InFlightLimiter) -> None:
    for lane in ("second", "third", "fourth", "second"):  # who waits twice keeps its place, and has only one
        assert room.wait(lane, A)
    assert not room.wait("elsewhere", B)
    assert room.leave(A) == ["second"]
    room.enter(A)
    assert room.leave(A) == ["third"]
    assert room.pass_on(A) == ["fourth"]
    assert (room.pass_on(A), room.waiting) == ([], 0)


def test_a_host_that_is_full_holds_all_its_endpoints_and_no_other_host() -> None:
    room = InFlightLimiter(Limits(per_endpoint=5, per_host=2))
    room.enter(A)
    room.enter(B)
    assert [room.wait("third", A), room.wait("fourth", B), room.wait("elsewhere", C)] == [True, True, False]
    assert room.leave(B) == ["third"]


def test_a_lane_that_is_over_waits_no_more(room: InFlightLimiter) -> None:
    assert room.wait("second", A)
    room.forget("second")
    room.forget("second")
    assert (room.leave(A), room.waiting) == ([], 0)


def test_the_higher_goes_on_first_and_every_eighth_time_the_lowest(room: InFlightLimiter) -> None:
    for lane, priority in [("low", -5), ("lower", -100), *((f"high{number}", 5) for number in range(9)), ("low", -5)]:
        assert room.wait(lane, A, priority)
    room.forget("high3")
    released = []
    while room.waiting:
        released += room.leave(A)
        room.enter(A)
    assert released == [*(f"high{number}" for number in (0, 1, 2, 4, 5, 6, 7)), "lower", "high8", "low"]
    assert (room.leave(A), room.is_awaited(A)) == ([], False)


class Counted(str):
    """A name that counts how often it is compared with another one."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_lanes_that_end_together_are_not_searched_for_one_by_one(room: InFlightLimiter) -> None:
    lanes = [Counted(f"lane{number}") for number in range(10_000)]
    for lane in lanes:
        assert room.wait(lane, A)
    Counted.compared = 0
    for lane in reversed(lanes[1:]):
        room.forget(lane)
    assert Counted.compared < 2 * len(lanes)
    assert (room.waiting, room.leave(A)) == (1, ["lane0"])
