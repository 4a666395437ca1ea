"""The judge of storms finds each kind of fault."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from arborcast.topic_model.subscriptions import Reliability
from benchmarks.storms.judge import Findings, Logged, judge
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


def logged(record: Record, **states: str) -> dict[tuple[str, str], str]:
    """The states in the log: all delivered, except for these."""
    return {("one", each.mark): states.get(each.mark, "delivered") for each in record.accepted}


def found(record: Record, **states: str) -> Findings:
    return judge(record, Logged(logged(record, **states), {}), BUDGET_S)


def change(record: Record, number: int, **facts: Any) -> None:
    record.arrivals[number] = dataclasses.replace(record.arrivals[number], **facts)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("pulled", [False, True])
def test_a_good_record_has_no_faults_and_a_removal_is_found(strict: bool, pulled: bool) -> None:
    findings = found(well(strict, pulled))
    assert findings.faults == {}
    assert (findings.expected, findings.delivered, findings.duplicates.total()) == (5, 5, 0)
    for number in range(5):
        record = well(strict, pulled)
        del record.arrivals[number]
        findings = found(record)
        assert findings.faults
        assert (findings.lost or findings.claimed)[0].startswith(f"m{number} for one"), "delivered only in the log"
        known = logged(record)
        del known["one", f"m{number}"]
        assert judge(record, Logged(known, {}), BUDGET_S).lost == [f"m{number} for one (nothing)"]


@pytest.mark.parametrize(("state", "lost"), [("dead", 0), ("expired", 0), ("cancelled", 0), ("parked", 1)])
def test_waiting_messages_are_lost_and_given_up_ones_are_not(state: str, lost: int) -> None:
    record = well()
    change(record, 2, settled=None)
    findings = found(record, m2=state)
    assert (len(findings.lost), findings.given_up) == (lost, 1 - lost)


def test_disorder_overtaking_and_strays() -> None:
    record = well()
    change(record, 1, marks=("m2",))
    change(record, 2, marks=("m1",))
    assert len(found(record).disordered) == 1
    record = well(strict=True)
    change(record, 1, settled=None)
    record.arrivals.append(Arrival("one", 110, ("m1",), 2, "", 110))
    assert found(record).overtaken, "a strict subscription has one open delivery at most"
    assert found(dataclasses.replace(record, wanted=well().wanted)).faults == {}
    record = well()
    record.wanted = [Wanted("one", frozenset({"storm/b"}))]
    assert len(judge(record, Logged({}, {}), BUDGET_S).strays) == 5


def test_a_repetition_needs_a_reason() -> None:
    record = well()
    record.arrivals.append(Arrival("one", 130, ("m2",), 1, "", 130))
    assert len(found(record).unexplained) == 1
    record.kills = [Kill(103.0, ("jvm",), 129.0)]
    findings = found(record)
    assert findings.faults == {}
    assert findings.duplicates == {"in flight at a kill": 1}
    assert findings.by_kill.total() == 1
    # Answered two seconds before the kill: its row was written.
    record.kills = [Kill(record.arrivals[2].at + 2.0, ("jvm",), 129.0)]
    assert len(found(record).unexplained) == 1
    (named,) = judge(record, Logged(logged(record), {("one", "m2"): [(129.9, 130.1)]}), BUDGET_S).unexplained
    assert named.endswith("rows [(129.9, 130.1)], kills jvm +2.0 s")
    record.kills = []
    change(record, 2, settled=record.arrivals[2].at + 3)
    assert found(record).duplicates == {"answered late": 1}


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
def test_messages_that_may_be_omitted(reliability: Reliability, state: str, reliable: bool, may: bool) -> None:
    record = well()
    record.wanted = [Wanted("one", frozenset({TOPIC}), reliability=reliability)]
    record.accepted[2] = dataclasses.replace(record.accepted[2], reliable=reliable)
    del record.arrivals[2]
    findings = found(record, m2=state)
    assert findings.left_out == ([] if may else [f"m2 for one ({state})"])
    assert findings.dropped == (state != "dead")
    # A message that a strict receiver has refused may be given up.
    record.arrivals.insert(2, Arrival("one", 102.2, ("m2",), 1, "", 102.2, refused=True))
    if state == "dead":
        assert (found(record, m2="dead").faults, found(record, m2="dead").given_up) == ({}, 1)
