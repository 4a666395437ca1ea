"""One memory budget for all unanswered requests: for their bodies, and for parsing them.

A body that does not arrive in one packet and may get large needs a reservation of its whole size before it is read
further, so that each started request can complete. Without free memory it waits, with reading paused; after a few
seconds, or with too many waiting, the answer is 503. While requests wait, a body without progress is refused: a client
that keeps connections open without sending reserves no memory. Requests that arrive in one packet never wait, and the
last part of the budget is for them.

All of it happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable
from typing import Final, Protocol

from arborcast.core.errors import InfrastructureError
from arborcast.wire import limits

# Large requests often arrive together: memory is returned once, after the last one.
_PAUSE_S = 1.0

_BETWEEN_S = 10.0


def malloc_trim() -> Callable[[], object] | None:
    """The function that returns free memory to the system; None where the C library is not glibc. It takes
    milliseconds, without the GIL."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return None
    return lambda: trim(0)


class MemoryTrimmer:
    """Returns free memory to the system after a peak, in a thread, a moment after the request.

    The C library keeps freed memory: after a few large parallel requests the process would stay as large.
    """

    def __init__(self) -> None:
        self._trim = malloc_trim()
        self._requested = False
        self._next = 0.0

    def trim_soon(self) -> None:
        """On the event loop. Cheap when called repeatedly."""
        if self._trim is None or self._requested:
            return
        self._requested = True
        loop = asyncio.get_running_loop()
        loop.call_later(max(_PAUSE_S, self._next - loop.time()), self._run_trim, self._trim)

    def _run_trim(self, trim: Callable[[], object]) -> None:
        self._requested = False
        loop = asyncio.get_running_loop()
        self._next = loop.time() + _BETWEEN_S
        loop.run_in_executor(None, trim)


SMALL: Final = limits.SMALL_REQUEST
"""A body up to this is read without a reservation, and parsed on the event loop.

A request without notifications may have no more: the contents of a Subscribe are in the memory of every process, and
those of any such request are read element by element.
"""

RESERVATION: Final = "arborcast.reservation"
"""Where a request's Reservation is, in its ASGI scope."""

# The share of the budget for bodies that arrive in pieces, and the share at which no further one may wait.
_BODIES, _WAITING = 5 / 8, 3 / 4

# Copies of an answer, as a message or text and as bytes for the connection, and the share of the budget for answers:
# clients that do not read leave the rest to those that publish.
_COPIES, _ANSWERS = 2, 1 / 2

# Maximum wait of a request for memory. Short, since it occupies a connection, and its client may use another gateway.
_WAIT_S = 5.0

# A body makes progress if this number of bytes, or the rest, arrives within this time.
_STEP = 16 * 1024

_STALLED_S = 1.0

# Interval of checks of the waiting requests.
_INTERVAL_S = 0.25

# Free memory is returned to the system when the reserved memory is this far below its peak.
_FELL = 4 * 1024 * 1024

RETRY_AFTER_S = 1.0

_NO_MEMORY = "the current requests use all the memory for requests"


class Body(Protocol):
    """The connection that reads a body from the network."""

    def resume_body(self) -> None:
        """There is memory: read further."""

    def reject_body(self, reason: str) -> None:
        """Answer 503 and read no further."""


class Reservation:
    """The memory that one request has reserved, until `release`."""

    __slots__ = ("_budget", "body", "came", "counted", "over", "since", "step")

    def __init__(self, budget: Inflight, body: Body | None = None) -> None:
        self._budget = budget
        self.body = body
        self.came = 0
        self.counted = 0  # of the budget
        self.over = False
        # Of a body that arrives in parts: its size at the last progress, and the time of that.
        self.step: int
        self.since: float

    def add(self, size: int) -> None:
        """Count arrived bytes of the body."""
        self.came += size
        if self.came > self.counted:
            self._budget.count(self, self.came - self.counted)

    def release(self) -> None:
        """The request is answered, or its client has disconnected."""
        self._budget.release(self)


class Inflight:
    """The budget. `fell` is called when far less is reserved than at the last peak."""

    def __init__(
        self, limit: int, fell: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._fell = fell
        self._clock = clock
        self._top = 0
        self._arriving: dict[Reservation, None] = {}  # bodies in pieces; the one without progress for longest is first
        self._waiting: dict[Reservation, tuple[int, float]] = {}  # bodies: what they need, and since when they wait
        self._readers: dict[Reservation, tuple[int, float, asyncio.Future[None]]] = {}  # whole bodies, to be parsed
        self._timer: asyncio.TimerHandle | None = None
        self.taken = 0
        """Bytes that are reserved now."""
        self.refused = 0
        """Requests that were refused because the budget was used up."""

    def count(self, reservation: Reservation, size: int) -> None:
        """Add bytes to a reservation, even beyond the budget."""
        if reservation.over:
            return
        reservation.counted += size
        self.taken += size
        if self.taken > self._top:
            self._top = self.taken

    def release(self, reservation: Reservation) -> None:
        """End a reservation, which cannot be extended later."""
        if reservation.over:
            return
        reservation.over = True
        if self._arriving or self._waiting:
            self.whole(reservation)
        self.shrink(reservation, reservation.counted)

    def shrink(self, reservation: Reservation, size: int) -> None:
        """Remove bytes from a reservation."""
        size = min(size, reservation.counted)
        self.taken -= size
        reservation.counted -= size
        if self._waiting or self._readers:
            self._assign_in(0)
        if self._top - self.taken >= _FELL:
            self._top = self.taken
            self._fell()

    def partly(self, reservation: Reservation, expected: int) -> bool:
        """A part of a body arrived; all of it may have `expected` bytes. Returns whether to read on. If not,
        `resume_body` or `reject_body` follows, the latter perhaps at once."""
        if reservation.over:
            return True  # received data are discarded
        now = self._clock()
        if reservation not in self._arriving:
            self._progressed(reservation, now)
        elif reservation.came - reservation.step >= _STEP:
            del self._arriving[reservation]
            self._progressed(reservation, now)
        needed = expected - reservation.counted
        if expected <= SMALL or needed <= 0:
            if self.taken > self._limit and not self._make_free(0, self._limit):
                self._refuse(reservation)
            return not reservation.over
        if not self._waiting and self._make_free(needed, self._limit * _BODIES):
            self.count(reservation, needed)
            return True
        if self.taken > self._limit * _WAITING:
            self._refuse(reservation)
            return False
        del self._arriving[reservation]  # it makes no progress because we do not read
        self._waiting[reservation] = (needed, now)
        self._assign_in(_INTERVAL_S)
        return False

    def whole(self, reservation: Reservation) -> None:
        """A body is complete, or will never be."""
        self._arriving.pop(reservation, None)
        if self._waiting.pop(reservation, None) is not None and reservation.body is not None:
            reservation.body.resume_body()  # so that received data can be discarded

    def take(self, reservation: Reservation, size: int, share: float = 1.0) -> bool:
        """Reserve more bytes, for parsing; returns whether they are free in this share of the budget."""
        if self.taken + size > self._limit * share and not self._make_free(size, self._limit * share):
            return False
        self.count(reservation, size)
        return True

    def take_answer(self, reservation: Reservation, size: int) -> bool:
        """Reserve memory for an answer of this size; returns whether it is free."""
        return self.take(reservation, _COPIES * size, _ANSWERS)

    def shrink_answer(self, reservation: Reservation, size: int) -> None:
        """The client has read an answer of this size."""
        self.shrink(reservation, _COPIES * size)

    async def wait(self, reservation: Reservation, size: int) -> None:
        """Reserve more bytes as soon as they are free, in turn. Raises InfrastructureError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers[reservation] = (size, self._clock(), future)
        self._assign_in(_INTERVAL_S)
        try:
            await future
        finally:
            self._readers.pop(reservation, None)

    def no_memory(self) -> InfrastructureError:
        """The error for a request that is refused."""
        self.refused += 1
        return InfrastructureError(_NO_MEMORY, RETRY_AFTER_S)

    def _make_free(self, size: int, limit: float) -> bool:
        """Whether this many more bytes are within a limit; if necessary, bodies without progress are refused."""
        while self.taken + size > limit and self.taken:
            stalled = next(iter(self._arriving), None)
            if stalled is None or self._clock() - stalled.since < _STALLED_S:
                return False
            self._refuse(stalled, "the body stalled while other requests waited")
        return True

    def _progressed(self, reservation: Reservation, now: float) -> None:
        reservation.step, reservation.since = reservation.came, now
        self._arriving[reservation] = None

    def _refuse(self, reservation: Reservation, reason: str = _NO_MEMORY) -> None:
        self.refused += 1
        body = reservation.body
        self.release(reservation)
        if body is not None:
            body.reject_body(reason)

    def _assign_in(self, delay_s: float) -> None:
        if self._timer is not None:
            if delay_s:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.assign)

    def assign(self) -> None:
        """Assign free memory to the waiting requests in order; refuse those at the time limit."""
        self._timer = None
        now = self._clock()
        for reservation, (size, since, future) in list(self._readers.items()):
            if not self._make_free(size, self._limit):
                if now - since < _WAIT_S:
                    break
                if not future.done():
                    future.set_exception(self.no_memory())
            elif not future.done():
                self.count(reservation, size)
                future.set_result(None)
            self._readers.pop(reservation, None)
        for reservation, (needed, since) in list(self._waiting.items()):
            if reservation.over:
                continue
            if self._make_free(needed, self._limit * _BODIES):
                del self._waiting[reservation]
                self.count(reservation, needed)
                self._progressed(reservation, now)
                if reservation.body is not None:
                    reservation.body.resume_body()
            elif now - since >= _WAIT_S:
                self._refuse(reservation)
            else:
                break
        if (self._waiting or self._readers) and self._timer is None:
            self._assign_in(_INTERVAL_S)
