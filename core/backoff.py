"""The pause after a failure: doubled after each further failure in a row, up to a longest one. Work on an event loop
that is repeated with such pauses; in a thread it is a `core.threads.Service`."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from arborcast.core.errors import ArborcastError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Backoff(NamedTuple):
    """The first and the longest pause, in seconds."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """The pause after this number of consecutive failures, from 1."""
        # 2.0 ** 1024 overflows; the longest pause is reached long before.
        return min(self.first_s * 2.0 ** min(failures - 1, 64), self.longest_s)

    def jittered(self, failures: int) -> float:
        """As `after`, up to a quarter less or more: clients that failed together do not return together."""
        return self.after(failures) * random.uniform(0.75, 1.25)  # noqa: S311  # no secret


async def retried(what: str, work: Callable[[], Awaitable[T]], backoff: Backoff, *errors: type[Exception]) -> T:
    """The result of `work`, which is called again after each of these errors, at the earliest after its `retry_after`.
    The log has one entry for each message of an error, which begins with `what`."""
    import asyncio  # here, since commands without an event loop load this module, too

    failures, logged = 0, ""
    while True:
        try:
            return await work()
        except errors as error:
            failures += 1
            if str(error) != logged:
                logged = str(error)
                defect = None if isinstance(error, ArborcastError) else error
                logger.warning("%s: %s; trying again", what, error, exc_info=defect)
            await asyncio.sleep(max(backoff.jittered(failures), getattr(error, "retry_after", None) or 0.0))


async def repeated(
    what: str, work: Callable[[], Awaitable[object]], pause_s: float, backoff: Backoff, *errors: type[Exception]
) -> None:
    """Repeat `work` until cancelled, each time as `retried`, with a pause after each success."""
    import asyncio

    while True:
        await retried(what, work, backoff, *errors)
        await asyncio.sleep(pause_s)
