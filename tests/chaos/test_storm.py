"""A short storm: every part of a whole engine killed once under load, while its receivers misbehave."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from tests.chaos._engine import PARTS
from tests.chaos._judge import judge
from tests.chaos.storm import HOT_BUDGET_S, Storm, plan

SEED = 7


@pytest.mark.parametrize("seed", range(5))
def test_plan_strikes_every_part_and_some_at_once(seed: int) -> None:
    strikes = list(plan(30, random.Random(seed)))  # noqa: S311  # to be repeated

    assert len(strikes) == 30
    assert {strike[0] for strike in strikes[:6]} == set(PARTS)
    assert {part for strike in strikes[6:] for part in strike} == set(PARTS)
    assert any(len(strike) > 1 for strike in strikes)


@pytest.mark.chaos
@pytest.mark.stack
@pytest.mark.timeout(1_800)
def test_nothing_is_lost_whatever_is_killed(tmp_path: Path) -> None:
    outcome = Storm(tmp_path, SEED, rate=40, quick=True).run(kills=len(PARTS))

    assert outcome.well, outcome.findings.describe() + f"\n{outcome.audit}\n{outcome.problems}"
    assert {part for kill in outcome.record.kills for part in kill.parts} == set(PARTS)
    assert len(outcome.record.accepted) > 100

    # And it would have been noticed: without one of the deliveries the same record does not stand.
    victim = outcome.record.accepted[len(outcome.record.accepted) // 2].mark
    without = [
        dataclasses.replace(each, marks=tuple(mark for mark in each.marks if mark != victim))
        for each in outcome.record.arrivals
    ]
    tampered = dataclasses.replace(outcome.record, arrivals=without)
    assert judge(tampered, {}, HOT_BUDGET_S).lost
