"""The check of each measurement finds losses, repetitions and disorder; prepared messages are complete."""

from __future__ import annotations

import pytest
from lxml import etree

from benchmarks.load import Edge, Traffic, requests_of
from benchmarks.rig import Arrival, check


def sent(*marks: str) -> dict[str, float]:
    return {mark: 100.0 + number for number, mark in enumerate(marks)}


def arrived(*each: tuple[float, str]) -> list[Arrival]:
    return [Arrival(at, "/a", f"000-0000000{mark}" if len(mark) == 1 else mark) for at, mark in each]


A, B, C = "000-00000000", "000-00000001", "001-00000000"


@pytest.mark.parametrize(
    ("marks", "arrivals", "receivers", "expected"),
    [
        ([A, B], [(102.0, "0"), (102.0, "1")], ["/a"], (2, 0, 0, 0)),
        ([A], [(101.0, "0")], ["/a", "/b"], (1, 1, 0, 0)),
        ([A], [(101.0, "0"), (103.0, "0")], ["/a"], (1, 0, 1, 0)),
        ([A], [(101.0, "0"), (101.0, "9")], ["/a"], (1, 0, 0, 0)),
        ([A, B, C], [(101.0, "1"), (102.0, C), (103.0, "0")], ["/a"], (3, 0, 0, 1)),
    ],
    ids=["well", "lost at one of two", "twice", "a message of another run", "disorder within a publisher"],
)
def test_outcomes(
    marks: list[str], arrivals: list[tuple[float, str]], receivers: list[str], expected: tuple[int, int, int, int]
) -> None:
    outcome = check(sent(*marks), arrived(*arrivals), receivers)
    assert (outcome.delivered, outcome.lost, outcome.twice, outcome.disorder) == expected
    if marks == [A, B]:
        assert (outcome.delays, outcome.per_second) == ([2000.0, 1000.0], 1.0)


@pytest.mark.parametrize("edge", ["soap", "old"])
@pytest.mark.parametrize("size", [800, 30_000])
def test_a_prepared_request_has_its_declared_size(edge: Edge, size: int) -> None:
    for request in requests_of(Traffic(1, edge=edge, size=size), 3):
        head, _, body = request.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert etree.fromstring(body) is not None
        assert body.count(b'mark="@@@-@@@@@@@@"') == 1
        assert size <= len(body) < size + 1_000


def test_a_message_in_parts_is_several_requests_and_one_message() -> None:
    requests = requests_of(Traffic(1, edge="old", size=3_000, parts=10, alone=True), 0)
    assert [f"1-{number < 9:d}-1-{number}".encode() in each for number, each in enumerate(requests)] == [True] * 10
