"""Waits in tests: poll, and fail with a message that names the condition."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

T = TypeVar("T")

# Long enough for a machine five times slower; the wait ends when the condition holds.
TIMEOUT_S = 240.0

# A condition that reads a table or a log takes most of a processor if it is checked without a pause, and what it waits
# for becomes slower. So a pause is so many times as long as the check before it, up to half a second.
_PAUSE = 4.0
_LONGEST_S = 0.5


def wait_until(
    condition: Callable[[], T | Literal[False] | None],
    what: object = "",
    timeout_s: float = TIMEOUT_S,
    every_s: float = 0.05,
) -> T:
    """The first true value of the condition, which is checked every `every_s` seconds or, if it takes long, less often.
    AssertionError with `what`, which may be a function, or with the source of the condition."""
    began = time.monotonic()
    deadline = began + timeout_s
    while not (value := condition()):
        now = time.monotonic()
        assert now < deadline, _message(condition, what, timeout_s)
        time.sleep(max(every_s, min(_PAUSE * (now - began), _LONGEST_S)))
        began = time.monotonic()
    return value


async def wait_until_async(condition: Callable[[], T | Literal[False] | None], what: object = "") -> T:
    """The same beside other tasks of the event loop."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, _message(condition, what, TIMEOUT_S)
        await asyncio.sleep(0.005)
    return value


def _message(condition: Callable[[], object], what: object, timeout_s: float) -> str:
    text = what() if callable(what) else what
    return f"after {timeout_s:g} s still not: {text or inspect.getsource(condition).strip()}"


def change_mode(file: Path, mode: int) -> None:
    """Change permissions, at a later time than the last change: the times of a file system have steps of
    milliseconds."""
    before = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == before:
        file.chmod(mode)
