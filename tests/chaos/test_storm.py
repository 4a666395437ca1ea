"""A short storm: each part of an engine is killed once under load, while its receivers misbehave."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.storms.judge import Logged, judge
from benchmarks.storms.storm import BATCH_WAIT_S, Storm
from benchmarks.storms.victim import PARTS

SEED = 7


@pytest.mark.long
@pytest.mark.chaos
@pytest.mark.stack
@pytest.mark.timeout(1_800)
def test_nothing_is_lost_whatever_is_killed(tmp_path: Path) -> None:
    outcome = Storm(tmp_path, SEED, rate=40, quick=True).run(kills=len(PARTS))

    assert outcome.well, outcome.findings.describe() + f"\n{outcome.audit}\n{outcome.problems}"
    assert {part for kill in outcome.record.kills for part in kill.parts} == set(PARTS)
    assert len(outcome.record.accepted) > 100

    # The check detects a missing delivery: without one of them the same record has a fault.
    victim = outcome.record.accepted[len(outcome.record.accepted) // 2].mark
    without = [
        dataclasses.replace(each, marks=tuple(mark for mark in each.marks if mark != victim))
        for each in outcome.record.arrivals
    ]
    tampered = dataclasses.replace(outcome.record, arrivals=without)
    assert judge(tampered, Logged({}, {}), BATCH_WAIT_S).lost
