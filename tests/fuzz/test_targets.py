"""A bounded run over every target, and the findings of longer runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from tests.fuzz._checks_http import SEVERAL_REQUESTS, check_every_cut
from tests.fuzz._generate import inputs
from tests.fuzz.run import FOUND, TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_are_accepted(name: str) -> None:
    for seed in TARGETS[name].seeds:
        TARGETS[name].check(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs(name: str) -> None:
    target = TARGETS[name]

    @given(inputs(target.seeds, target.snippets))
    def run(data: bytes) -> None:
        target.check(data)

    run()


def test_requests_cut_at_every_position() -> None:
    for seed in SEVERAL_REQUESTS:
        check_every_cut(seed)


@pytest.mark.parametrize("file", sorted(FOUND.glob("*/*")), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_earlier_findings(file: Path) -> None:
    TARGETS[file.parent.name].check(file.read_bytes())
