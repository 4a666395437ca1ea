"""The programs: each starts and prints its help, and a storm kills every part."""

from __future__ import annotations

import argparse
import importlib
import random
import re
import sys

import pytest

from benchmarks.report import run
from benchmarks.storms.storm import plan
from benchmarks.storms.victim import PARTS
from tests.support.gateway_process import ROOT

PROGRAMS = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "benchmarks").rglob("*.py")
    if re.search(r"^ +run\(measure", file.read_text(encoding="utf-8"), re.MULTILINE)
)
assert {"benchmarks.throughput", "benchmarks.peers.peers", "benchmarks.storms.soak"} <= set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_describes_itself_and_takes_json(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(name)
    parsers: list[argparse.ArgumentParser] = []

    def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
        parsers.append(parser)
        sys.exit(0)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.setitem(sys.modules, "__main__", module)
    with pytest.raises(SystemExit):
        run(module.measure, getattr(module, "options", None))
    text = parsers[0].format_help()
    assert f"python -m {name}" in (module.__doc__ or "")
    assert {"--json", "--quick"} <= set(re.findall(r"--[a-z-]+", text))
    # Each option in the description exists.
    assert set(re.findall(r"(?<=[\[ `])--[a-z-]+", module.__doc__ or "")) <= set(re.findall(r"--[a-z-]+", text))


@pytest.mark.parametrize("seed", range(5))
def test_a_storm_kills_every_part_and_several_at_once(seed: int) -> None:
    strikes = list(plan(30, random.Random(seed)))
    assert len(strikes) == 30
    assert {strike[0] for strike in strikes[:6]} == set(PARTS)
    assert {part for strike in strikes[6:] for part in strike} == set(PARTS)
    assert any(len(strike) > 1 for strike in strikes)
