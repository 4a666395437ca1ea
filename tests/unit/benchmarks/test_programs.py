"""The programs themselves: each is found by its name, and a storm strikes everything that it may strike."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from benchmarks.page.results import ROOT
from benchmarks.storms.storm import plan
from benchmarks.storms.victim import PARTS


def test_a_name_is_that_of_one_module() -> None:
    """`make bench ARGS=NAME` says no folder."""
    names = Counter(file.stem for file in (ROOT / "benchmarks").glob("*/*.py") if file.stem != "__init__")
    assert names
    assert {name for name, count in names.items() if count > 1} == set()


@pytest.mark.parametrize("seed", range(5))
def test_plan_of_a_storm_strikes_every_part_and_some_at_once(seed: int) -> None:
    strikes = list(plan(30, random.Random(seed)))

    assert len(strikes) == 30
    assert {strike[0] for strike in strikes[:6]} == set(PARTS)
    assert {part for strike in strikes[6:] for part in strike} == set(PARTS)
    assert any(len(strike) > 1 for strike in strikes)
