from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from arborcast.dispatch.delivery.capacity import InFlightLimiter, scopes_of
from tests.support.hot import limits

A, B = (scopes_of(each) for each in ("http://host/a", "http://host/b"))


@pytest.fixture
def limiter() -> InFlightLimiter:
    """One push in flight to A, whose limit is one."""
    made = InFlightLimiter(limits(per_endpoint=1, per_host=10))
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


def test_lanes_wait_for_a_full_endpoint_in_order(limiter: InFlightLimiter) -> None:
    for lane in ("second", "third", "fourth", "second"):  # a second wait keeps the first place
        assert limiter.wait(lane, A)
    assert not limiter.wait("elsewhere", B)
    assert limiter.leave(A) == ["second"]
    limiter.enter(A)
    assert limiter.leave(A) == ["third"]
    assert limiter.pass_on(A) == ["fourth"]
    assert (limiter.pass_on(A), limiter.waiting) == ([], 0)


def test_a_forgotten_lane_does_not_wait(limiter: InFlightLimiter) -> None:
    assert limiter.wait("second", A)
    limiter.forget("second")
    limiter.forget("second")
    assert (limiter.leave(A), limiter.waiting) == ([], 0)


def test_highest_priority_first_and_every_eighth_the_lowest(limiter: InFlightLimiter) -> None:
    for lane, priority in [("low", -5), ("lower", -100), *((f"high{number}", 5) for number in range(9)), ("low", -5)]:
        assert limiter.wait(lane, A, priority)
    limiter.forget("high3")
    released = []
    while limiter.waiting:
        released += limiter.leave(A)
        limiter.enter(A)
    assert released == [*(f"high{number}" for number in (0, 1, 2, 4, 5, 6, 7)), "lower", "high8", "low"]
    assert (limiter.leave(A), limiter.is_awaited(A)) == ([], False)


class Counted(str):
    """A name that counts its comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_forget_does_not_search_the_waiting_lanes(limiter: InFlightLimiter) -> None:
    lanes = [Counted(f"lane{number}") for number in range(10_000)]
    for lane in lanes:
        assert limiter.wait(lane, A)
    Counted.compared = 0
    for lane in reversed(lanes[1:]):
        limiter.forget(lane)
    assert Counted.compared < 2 * len(lanes)
    assert (limiter.waiting, limiter.leave(A)) == (1, ["lane0"])
