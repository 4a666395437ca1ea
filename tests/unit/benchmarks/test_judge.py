"""The judge of storms has to notice what it is there for."""

from __future__ import annotations

import dataclasses

import pytest

from arborcast.topic_model.subscriptions import Reliability
from benchmarks.storms.judge import judge
from benchmarks.storms.record import Accepted, Arrival, Kill, Record, Wanted

TOPIC = "storm/a"
BUDGET_S = 1.0


def well(strict: bool = False, pulled: bool = False) -> Record:
    """Five messages that arrived one by one, each answered at once."""
    return Record(
        [Wanted("one", frozenset({TOPIC}), strict, pulled)],
        [Accepted(f"m{n}", TOPIC, 100.0 + n, 100.1 + n) for n in range(5)],
        [Arrival("one", 100.2 + n, (f"m{n}",), 1, "", 100.2 + n) for n in range(5)],
    )


def books(record: Record) -> dict[tuple[str, str], str]:
    return {("one", each.mark): "delivered" for each in record.accepted}


def arrival(at: float, mark: str, *, attempt: int = 1, settled: bool = True, refused: bool = False) -> Arrival:
    return Arrival("one", at, (mark,), attempt, "", at if settled else None, refused)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("pulled", [False, True])
def test_what_is_well_is_found_well(strict: bool, pulled: bool) -> None:
    record = well(strict, pulled)

    findings = judge(record, books(record), BUDGET_S)

    assert findings.faults == {}
    assert (findings.expected, findings.delivered, findings.duplicates.total()) == (5, 5, 0)


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("pulled", [False, True])
def test_removed_delivery_is_noticed_though_the_books_claim_it(number: int, pulled: bool) -> None:
    record = well(pulled=pulled)
    del record.arrivals[number]

    findings = judge(record, books(record), BUDGET_S)

    assert findings.faults
    assert (findings.lost or findings.claimed)[0].startswith(f"m{number} for one")


def test_delivery_without_a_row_is_lost() -> None:
    record = well()
    del record.arrivals[2]
    known = books(record)
    del known["one", "m2"]

    assert judge(record, known, BUDGET_S).lost == ["m2 for one (nothing)"]


@pytest.mark.parametrize(("state", "lost"), [("dead", 0), ("expired", 0), ("cancelled", 0), ("parked", 1)])
def test_what_was_given_up_is_not_lost_and_what_still_waits_is(state: str, lost: int) -> None:
    record = well()
    record.arrivals[2] = dataclasses.replace(record.arrivals[2], settled=None)

    findings = judge(record, {**books(record), ("one", "m2"): state}, BUDGET_S)

    assert len(findings.lost) == lost
    assert findings.given_up == 1 - lost


def test_first_attempts_in_another_order_are_noticed() -> None:
    record = well()
    record.arrivals[1] = dataclasses.replace(record.arrivals[1], marks=("m2",))
    record.arrivals[2] = dataclasses.replace(record.arrivals[2], marks=("m1",))

    assert len(judge(record, books(record), BUDGET_S).disordered) == 1


def test_strict_subscription_is_pushed_nothing_while_something_is_open() -> None:
    record = well(strict=True)
    record.arrivals[1] = dataclasses.replace(record.arrivals[1], settled=None)
    record.arrivals.append(arrival(110, "m1", attempt=2))

    assert judge(record, books(record), BUDGET_S).overtaken
    assert judge(dataclasses.replace(record, wanted=well().wanted), books(record), BUDGET_S).faults == {}


def test_repeat_needs_a_reason() -> None:
    record = well()
    record.arrivals.append(arrival(130, "m2"))
    assert len(judge(record, books(record), BUDGET_S).unexplained) == 1

    record.kills = [Kill(103.0, ("jvm",), 120.0, 129.0)]
    findings = judge(record, books(record), BUDGET_S)
    assert findings.faults == {}
    assert findings.duplicates == {"under way at a kill": 1}
    assert findings.by_kill.total() == 1

    # Its answer was there two seconds before the kill: its row was written.
    record.kills = [Kill(record.arrivals[2].at + 2.0, ("jvm",), 120.0, 129.0)]
    assert len(judge(record, books(record), BUDGET_S).unexplained) == 1

    record.kills = []
    record.arrivals[2] = dataclasses.replace(record.arrivals[2], settled=record.arrivals[2].at + 3)
    assert judge(record, books(record), BUDGET_S).duplicates == {"answered late": 1}


def test_message_of_another_topic_is_noticed() -> None:
    record = well()
    record.wanted = [Wanted("one", frozenset({"storm/b"}))]

    assert len(judge(record, {}, BUDGET_S).strays) == 5


@pytest.mark.parametrize(
    ("reliability", "state", "reliable", "may"),
    [
        ("timely", "timely", False, True),
        ("timely", "timely", True, False),
        ("timely", "resources", True, True),
        ("timely", "resources", False, False),
        ("adaptive", "resources", False, True),
        ("adaptive", "timely", False, False),
        ("strict", "resources", False, False),
        ("strict", "timely", False, False),
        ("strict", "dead", False, False),
        ("adaptive", "dead", False, True),
    ],
)
def test_what_is_left_out_has_to_be_what_may_be(
    reliability: Reliability, state: str, reliable: bool, may: bool
) -> None:
    record = well()
    record.wanted = [Wanted("one", frozenset({TOPIC}), reliability=reliability)]
    record.accepted[2] = dataclasses.replace(record.accepted[2], reliable=reliable)
    del record.arrivals[2]

    findings = judge(record, books(record) | {("one", "m2"): state}, BUDGET_S)

    assert findings.left_out == ([] if may else [f"m2 for one ({state})"])
    assert findings.dropped == (state != "dead")


def test_what_a_strict_receiver_has_refused_may_be_given_up() -> None:
    record = well()
    record.wanted = [Wanted("one", frozenset({TOPIC}), reliability="strict")]
    record.arrivals[2] = arrival(102.2, "m2", refused=True)

    findings = judge(record, books(record) | {("one", "m2"): "dead"}, BUDGET_S)

    assert (findings.faults, findings.given_up) == ({}, 1)
