"""Faults of the network of an engine under load: no loss, no disorder, and recovery without help."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.storms import links
from tests.support.island import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.chaos,
    pytest.mark.stack,
    pytest.mark.skipif(not links.possible(), reason="no namespaces here: unshare, ip and nft are needed"),
]


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("places", "faults"),
    [
        (("gateway", "driver", "workers"), ("answers", "resets", "half-open", "cut")),
        (("publishers", "subscribers"), ("loss", "requests", "answers", "resets", "half-open", "cut")),
    ],
    ids=["Kafka", "HTTP"],
)
def test_an_engine_survives_faults_of_the_network(places: tuple[str, ...], faults: tuple[str, ...]) -> None:
    chosen = ["--places", *places, "--faults", *faults, "--seconds", "5"]
    program = [sys.executable, "-m", "benchmarks.storms.outage", "network", *chosen]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=1_700, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("next delivery after") == len(places) * len(faults)
