"""Questions to `admin`, answered by threads of the console."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar, TypeVarTuple

from arborcast.core import liveness
from arborcast.core.errors import ArborcastError, InfrastructureError
from arborcast.core.reasons import reason_of
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import pool
from arborcast.dispatch.operations.views import DeliveryViews
from arborcast.ingest.http.inflight import malloc_trim

logger = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Each takes the interpreter from the event loop for some of the time.
_AT_A_TIME = 2

# For the wait in the queue and the answer together.
_LIMIT_S = 120.0

# Questions in progress or in the queue. Further ones are refused.
_MOST_AT_WORK = 32

# Answers in memory; the oldest are dropped first.
_REMEMBERED = 100

# Share of a core for a page that updates itself.
_SHARE = 0.1


class QuestionRefused(ArborcastError):
    """There is no answer, because of other questions or of the time limit."""


class Answer(NamedTuple, Generic[T]):
    """The value that an admin function returned, or the text of its error; the time of the answer (seconds of the
    epoch), and the time it took."""

    value: T | None
    wrong: str
    at: float
    took_s: float

    @property
    def rest_s(self) -> float:
        """Seconds until the next update of an open page."""
        return self.took_s / _SHARE


async def answer_within(question: Awaitable[Answer[T]], within_s: float) -> Answer[T] | None:
    """The answer; None if it takes longer. The question continues, and a later one shares its answer."""
    asked = asyncio.ensure_future(question)
    await asyncio.wait({asked}, timeout=within_s)
    return asked.result() if asked.done() else None


class Questions:
    """Calls admin functions in a pool of threads. Their arguments are hashable; `kafka` connects to the engine's Kafka,
    or raises InfrastructureError.

    A thread cannot be ended from outside: at its time limit a function ends at its next read from a log or write to
    one (`core.liveness`), and occupies its thread until then.
    """

    def __init__(self, kafka: Callable[[], KafkaSettings]) -> None:
        self.views = DeliveryViews()
        """For questions about waiting deliveries and dead letters."""
        self._kafka = kafka
        self._threads = pool("question", _AT_A_TIME)
        self._recent: dict[object, asyncio.Task[Answer[Any]]] = {}
        self._at_work = 0
        self._trim = malloc_trim()

    async def ask(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """The value of `function(*args)`. Raises its exceptions, and QuestionRefused."""
        return await self._value(function, args)

    async def ask_log(self, function: Callable[[KafkaSettings, *Ts], T], *args: *Ts) -> T:
        """The value of `function(kafka, *args)`; see `ask`."""
        return await self._value(function, args, log=True)

    async def recent(self, function: Callable[[*Ts], T], *args: *Ts, age_s: float) -> Answer[T]:
        """The result of `function(*args)`, at most `age_s` seconds old. Pages with equal calls share one, which
        continues when they are closed."""
        return await self._shared(function, args, age_s)

    async def recent_log(self, function: Callable[[KafkaSettings, *Ts], T], *args: *Ts, age_s: float) -> Answer[T]:
        """The answer of `function(kafka, *args)`; see `recent`."""
        return await self._shared(function, args, age_s, log=True)

    def forget(self) -> None:
        """Drop all answers, after a change. Later questions do not share a call that began before."""
        self._recent.clear()

    async def _shared(
        self, function: Callable[..., T], args: tuple[Any, ...], age_s: float, *, log: bool = False
    ) -> Answer[T]:
        key = (function, args)
        known: asyncio.Task[Answer[T]] | None = self._recent.get(key)
        if known is None or known.cancelled() or (known.done() and not 0 <= time.time() - known.result().at <= age_s):
            known = asyncio.ensure_future(self._answer(function, args, log=log))
            self._recent.pop(key, None)
            self._recent[key] = known
            for old in [each for each, task in self._recent.items() if task.done()][:-_REMEMBERED]:
                del self._recent[old]
        return await asyncio.shield(known)

    async def _answer(self, function: Callable[..., T], args: tuple[Any, ...], *, log: bool) -> Answer[T]:
        begun = time.monotonic()
        value: T | None = None
        wrong = ""
        try:
            value = await self._value(function, args, log=log)
        except ArborcastError as error:
            wrong = str(error)
        except Exception:
            logger.exception("%s failed", function.__qualname__)
            wrong = "Unexpected error. See the console's log."
        return Answer(value, wrong, time.time(), time.monotonic() - begun)

    async def _value(self, function: Callable[..., T], args: tuple[Any, ...], *, log: bool = False) -> T:
        if self._at_work >= _MOST_AT_WORK:
            raise QuestionRefused(f"{_MOST_AT_WORK} other questions wait for an answer: try again in a moment")
        until = time.monotonic() + _LIMIT_S
        self._at_work += 1
        try:
            async with asyncio.timeout(_LIMIT_S):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, self._run, until, function, args, log)
        except TimeoutError:
            raise _too_slow() from None
        finally:
            self._at_work -= 1

    def _run(self, until: float, function: Callable[..., T], args: tuple[Any, ...], log: bool) -> T:
        def check_time() -> None:
            if time.monotonic() >= until:
                raise _too_slow()

        liveness.listen(check_time)
        try:
            return function(self._kafka(), *args) if log else function(*args)
        except OSError as error:
            # Any file may be another user's, or the disk full.
            where = error.filename2 or error.filename or "a file"
            raise InfrastructureError(f"{where} cannot be read or written: {reason_of(error)}") from error
        finally:
            liveness.listen(liveness.ignore_beat)
            # Kafka clients are reference cycles with megabytes, and the C library keeps freed memory.
            gc.collect()
            if self._trim is not None:
                self._trim()


def _too_slow() -> QuestionRefused:
    return QuestionRefused(f"no answer within {_LIMIT_S:g} s: ask for less, or use the command line")
