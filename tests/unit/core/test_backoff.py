"""Work on an event loop that is repeated after failures."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.backoff import Backoff, repeated, retried
from arborcast.core.errors import InfrastructureError

NONE = Backoff(0.0, 0.0)


def failing(*errors: Exception | None) -> AsyncMock:
    """Work that fails with these errors, one after the other, or returns the number of the call."""
    return AsyncMock(side_effect=[number if error is None else error for number, error in enumerate(errors)])


async def test_each_message_of_an_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    away, full = InfrastructureError("away"), InfrastructureError("full")
    work = failing(away, away, full, away, ValueError("defect"), None)
    assert await retried("storing", work, NONE, InfrastructureError, ValueError) == 5
    assert [(each.getMessage(), bool(each.exc_info)) for each in caplog.records] == [
        (f"storing: {text}; trying again", text == "defect") for text in ("away", "full", "away", "defect")
    ]
    work = failing(None, InfrastructureError("away"), None, KeyError("x"))
    with pytest.raises(KeyError):
        await repeated("storing", work, 0.0, NONE, InfrastructureError)


async def test_the_pause_is_at_least_that_of_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = AsyncMock()
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await retried("storing", failing(InfrastructureError("full", 7.0), None), NONE, InfrastructureError)
    sleep.assert_awaited_once_with(7.0)


@given(first_s=st.floats(0.001, 10), times=st.floats(1, 1000), failures=st.integers(1, 100_000))
def test_a_pause_is_twice_the_one_before_and_at_most_the_longest(first_s: float, times: float, failures: int) -> None:
    backoff = Backoff(first_s, first_s * times)
    assert backoff.after(1) == first_s
    assert backoff.after(failures + 1) == min(2 * backoff.after(failures), backoff.longest_s)
