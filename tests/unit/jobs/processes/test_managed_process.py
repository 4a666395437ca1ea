"""Waits before restarts, as a table."""

from __future__ import annotations

import pytest

from jobs.processes.processes import ManagedProcess, RestartWaits

WAITS = RestartWaits(first_s=0.5, longest_s=30.0, forget_s=60.0)


@pytest.mark.parametrize(
    ("failures", "wait"), [(1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (8, 30.0), (10**9, 30.0)]
)
def test_doubles_up_to_the_longest(failures: int, wait: float) -> None:
    managed = ManagedProcess(WAITS)
    managed.failures = failures - 1
    assert managed.died(100.0, healthy_s=1.0) == wait
    assert not managed.is_due(99.9 + wait)
    assert managed.is_due(100.0 + wait)


@pytest.mark.parametrize(("failures", "ran", "after"), [(0, 1.0, 1), (4, 59.9, 5), (4, 60.0, 1), (4, 1e9, 1)])
def test_a_long_healthy_run_forgives(failures: int, ran: float, after: int) -> None:
    managed = ManagedProcess(WAITS)
    managed.failures = failures
    managed.died(0.0, ran)
    assert managed.failures == after


def test_what_was_never_started_is_due_and_has_not_ended() -> None:
    managed = ManagedProcess(WAITS)
    assert managed.is_due(0.0)
    assert managed.exit_code() is None
