"""Histories of the simulated world (`tests.world`), each in a separate process: there the order of sets is fixed, and
the clocks of the test process are unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.world.known_faults import KNOWN
from tests.world.oracle import RULES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent


def world(*arguments: str) -> str:
    """The output; fails with it."""
    command = [sys.executable, "-m", "tests.world", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_some_histories_break_no_rule() -> None:
    assert "failed: []" in world("--seeds", "3", "--first", "3", "--days", "0.3")


def test_a_seed_determines_a_history() -> None:
    first, second = (world("--seeds", "1", "--first", "7", "--days", "0.05").splitlines() for _ in range(2))
    assert first[:-1] == second[:-1]


def test_the_oracle_finds_known_faults() -> None:
    assert {kind for fault in KNOWN for kind in fault.found.split()} == set(RULES)
    found = world("--known")
    assert "MISSED" not in found
    assert found.count("found: ") == len(KNOWN)


@pytest.mark.long
@pytest.mark.timeout(4 * 3_600)
def test_many_histories() -> None:
    assert "failed: []" in world("--seeds", "100", "--first", "1000", "--days", "3", "--jobs", "2")
