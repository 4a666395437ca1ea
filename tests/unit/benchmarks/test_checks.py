"""The check of each measurement notices losses, repetitions and disorder; prepared messages are whole."""

from __future__ import annotations

import pytest
from lxml import etree

from benchmarks.load import Edge, Traffic, requests_of
from benchmarks.rig import Arrival, check


def sent(*marks: str) -> dict[str, float]:
    return {mark: 100.0 + number for number, mark in enumerate(marks)}


def arrived(*each: tuple[float, str]) -> list[Arrival]:
    return [Arrival(at, "/a", f"000-0000000{mark}" if len(mark) == 1 else mark) for at, mark in each]


A, B = "000-00000000", "000-00000001"


def test_all_is_well() -> None:
    outcome = check(sent(A, B), arrived((102.0, "0"), (102.0, "1")), ["/a"])
    assert (outcome.delivered, outcome.lost, outcome.twice, outcome.disorder) == (2, 0, 0, 0)
    assert outcome.delays == [2000.0, 1000.0]
    assert outcome.per_second == 1.0


@pytest.mark.parametrize(
    ("arrivals", "receivers", "delivered", "lost", "twice"),
    [
        ([(101.0, "0")], ["/a", "/b"], 1, 1, 0),
        ([(101.0, "0"), (103.0, "0")], ["/a"], 1, 0, 1),
        ([(101.0, "0"), (101.0, "9")], ["/a"], 1, 0, 0),
    ],
    ids=["lost at one of two", "twice", "a message of another run"],
)
def test_one_message(
    arrivals: list[tuple[float, str]], receivers: list[str], delivered: int, lost: int, twice: int
) -> None:
    outcome = check(sent(A), arrived(*arrivals), receivers)
    assert (outcome.delivered, outcome.lost, outcome.twice, outcome.disorder) == (delivered, lost, twice, 0)


def test_disorder_is_within_a_publisher() -> None:
    outcome = check(sent(A, B, "001-00000000"), arrived((101.0, "1"), (102.0, "001-00000000"), (103.0, "0")), ["/a"])
    assert outcome.disorder == 1


@pytest.mark.parametrize("edge", ["soap", "old"])
@pytest.mark.parametrize("size", [800, 30_000])
def test_a_prepared_request_has_the_size_and_the_length_that_it_names(edge: Edge, size: int) -> None:
    for request in requests_of(Traffic(1, edge=edge, size=size), 3):
        head, _, body = request.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert etree.fromstring(body) is not None
        assert body.count(b'mark="@@@-@@@@@@@@"') == 1
        assert size <= len(body) < size + 1_000


def test_a_message_in_parts_is_as_many_requests_and_one_message() -> None:
    requests = requests_of(Traffic(1, edge="old", size=3_000, parts=10, alone=True), 0)
    assert [f"1-{number < 9:d}-1-{number}".encode() in each for number, each in enumerate(requests)] == [True] * 10
