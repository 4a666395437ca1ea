"""What the measurements check of each run: nothing lost, nothing twice, nothing out of order goes unnoticed."""

from __future__ import annotations

from benchmarks.through_gateway import check


def sent(*marks: str) -> dict[str, float]:
    return {mark: 100.0 + number for number, mark in enumerate(marks)}


def test_all_is_well() -> None:
    outcome = check(sent("000-00000000", "000-00000001"), [(102.0, "/a", "000-00000000,000-00000001")], ["/a"])
    assert (outcome.delivered, outcome.lost, outcome.twice, outcome.disorder) == (2, 0, 0, 0)
    assert outcome.delays == [2000.0, 1000.0]
    assert outcome.per_second == 1.0


def test_lost_at_one_of_two() -> None:
    arrived = [(101.0, "/a", "000-00000000"), (101.0, "/b", "")]
    outcome = check(sent("000-00000000"), arrived[:1], ["/a", "/b"])
    assert (outcome.delivered, outcome.lost) == (1, 1)


def test_twice() -> None:
    arrived = [(101.0, "/a", "000-00000000"), (103.0, "/a", "000-00000000")]
    outcome = check(sent("000-00000000"), arrived, ["/a"])
    assert (outcome.delivered, outcome.twice, outcome.disorder) == (1, 1, 0)


def test_disorder_is_within_a_publisher() -> None:
    arrived = [(101.0, "/a", "000-00000001"), (102.0, "/a", "001-00000000"), (103.0, "/a", "000-00000000")]
    outcome = check(sent("000-00000000", "000-00000001", "001-00000000"), arrived, ["/a"])
    assert outcome.disorder == 1


def test_disorder_is_within_a_topic_where_a_publisher_has_several() -> None:
    marks = [f"000-{number:08d}" for number in range(4)]
    swapped = [(101.0, "/a", marks[1]), (101.1, "/a", marks[0]), (101.2, "/a", marks[2]), (101.3, "/a", marks[3])]
    assert check(sent(*marks), swapped, ["/a"], topics=2).disorder == 0
    assert check(sent(*marks), [*swapped[2:], *swapped[:2]], ["/a"], topics=2).disorder == 2
