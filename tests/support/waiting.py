"""Waits in tests: poll, and fail with a message that names the condition."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

# Long enough for a machine five times slower; the wait ends when the condition holds.
TIMEOUT_S = 240.0


def wait_until(
    condition: Callable[[], T | Literal[False] | None],
    what: object = "",
    timeout_s: float = TIMEOUT_S,
    every_s: float = 0.02,
) -> T:
    """The first true value of the condition. AssertionError with `what`, which may be a function, or with the source of
    the condition."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, _message(condition, what, timeout_s)
        time.sleep(every_s)
    return value


async def wait_until_async(condition: Callable[[], T], what: object = "") -> T:
    """The same beside other tasks of the event loop."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, _message(condition, what, TIMEOUT_S)
        await asyncio.sleep(0.005)
    return value


def _message(condition: Callable[[], object], what: object, timeout_s: float) -> str:
    text = what() if callable(what) else what
    return f"after {timeout_s:g} s still not: {text or inspect.getsource(condition).strip()}"
