"""Work on an event loop that is called again after failures."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from arborcast.core.backoff import Backoff, repeated, retried
from arborcast.core.errors import InfrastructureError

NONE = Backoff(0.0, 0.0)


def failing(*errors: Exception | None) -> Callable[[], Awaitable[int]]:
    calls = itertools.count()

    async def work() -> int:
        number = next(calls)
        if (error := errors[number]) is not None:
            raise error
        return number

    return work


def test_each_message_of_an_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    away, full = InfrastructureError("away"), InfrastructureError("full")
    work = failing(away, away, full, away, ValueError("defect"), None)
    assert asyncio.run(retried("storing", work, NONE, InfrastructureError, ValueError)) == 5
    assert [each.getMessage() for each in caplog.records] == [
        f"storing: {text}; trying again" for text in ("away", "full", "away", "defect")
    ]
    assert [bool(each.exc_info) for each in caplog.records] == [False, False, False, True]


def test_the_pause_is_at_least_what_the_error_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(retried("storing", failing(InfrastructureError("full", 7.0), None), NONE, InfrastructureError))
    assert pauses == [7.0]


def test_other_errors_end_the_repetition() -> None:
    work = failing(None, InfrastructureError("away"), None, KeyError("x"))
    with pytest.raises(KeyError):
        asyncio.run(repeated("storing", work, 0.0, NONE, InfrastructureError))
