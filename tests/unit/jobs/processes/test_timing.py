"""Waits before restarts, as a table."""

from __future__ import annotations

import pytest

from jobs.processes.timing import failures_after, wait_before_start


@pytest.mark.parametrize(
    ("failures", "wait"), [(0, 0.0), (1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (8, 30.0), (10**9, 30.0)]
)
def test_doubles_up_to_the_longest(failures: int, wait: float) -> None:
    assert wait_before_start(failures, first=0.5, longest=30.0) == wait


@pytest.mark.parametrize(("failures", "ran", "after"), [(0, 1.0, 1), (4, 59.9, 5), (4, 60.0, 1), (4, 1e9, 1)])
def test_a_long_healthy_run_forgives(failures: int, ran: float, after: int) -> None:
    assert failures_after(failures, ran, forget=60.0) == after
