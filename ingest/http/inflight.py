"""One budget for what requests that are not answered yet hold in memory: bodies as they come, and what reading them
takes.

A body that does not come in one packet and may get large has its room granted before it is read further, so that what
was begun can end. Where there is none it waits, with reading paused; after a few seconds, or when too many wait, its
client is told to come again. As long as somebody waits, a body that does not come on is let go: who holds connections
open without sending holds no memory. Requests that come in one packet wait for nobody, and the last part of the budget
is theirs.

All of it happens on the event loop's thread. The clock and the loop's timer are passed in.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable
from typing import Final, Protocol

from core.errors import InfrastructureError

# Large requests often come together: once, when they are through, and not again at once.
_PAUSE_S = 1.0

_BETWEEN_S = 10.0


def trimming() -> Callable[[], object] | None:
    """What gives free memory back; None where the C library is not glibc. It takes milliseconds, without the GIL."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return None
    return lambda: trim(0)


class FreedMemory:
    """Gives it back a moment after it was asked to, in a thread."""

    def __init__(self) -> None:
        self._trim = trimming()
        self._asked = False
        self._next = 0.0

    def give_back_soon(self) -> None:
        """On the event loop. Cheap when it was asked a moment ago."""
        if self._trim is None or self._asked:
            return
        self._asked = True
        loop = asyncio.get_running_loop()
        loop.call_later(max(_PAUSE_S, self._next - loop.time()), self._give_back, self._trim)

    def _give_back(self, trim: Callable[[], object]) -> None:
        self._asked = False
        loop = asyncio.get_running_loop()
        self._next = loop.time() + _BETWEEN_S
        loop.run_in_executor(None, trim)


SMALL: Final = 64 * 1024

"""A body up to this is read without being granted room first, and parsed where it is.

A request that carries no notifications may have no more: what a Subscribe says is kept in the memory of every process,
and what any of them says is walked through element by element.
"""

HELD: Final = "arborcast.held"

"""Where a request's Held is, in its ASGI scope."""

# Bodies that come in pieces may have so much of the budget, and what those that wait have sent already so much more.
_BODIES, _WAITING = 5 / 8, 3 / 4

# How long somebody waits for room. Not long: what waits holds a connection, and its client may find another gateway.
_WAIT_S = 5.0

# A body comes on when there are so many bytes more, or the rest, within so long.
_STEP = 16 * 1024

_STALLED_S = 1.0

# How often those that wait are looked through.
_LOOK_S = 0.25

# When so much less is held than at the top, the memory is worth giving back to the system.
_FELL = 4 * 1024 * 1024

RETRY_AFTER_S = 1.0


class Body(Protocol):
    """Who reads a body from the network."""

    def go_on(self) -> None:
        """There is room: read further."""

    def let_go(self, reason: str) -> None:
        """Answer that the client may come again, and read no further."""


class Held:
    """What one request holds, until `release`."""

    __slots__ = ("_budget", "body", "came", "counted", "over", "since", "step")

    def __init__(self, budget: Inflight, body: Body | None = None) -> None:
        self._budget = budget
        self.body = body
        self.came = 0
        self.counted = 0  # of the budget
        self.over = False
        # How much had come when it last came on, and when that was: of one that comes in parts.
        self.step: int
        self.since: float

    def add(self, size: int) -> None:
        """So many bytes of the body have come."""
        self.came += size
        if self.came > self.counted:
            self._budget.count(self, self.came - self.counted)

    def release(self) -> None:
        """The request is answered, or gone."""
        self._budget.release(self)


class Inflight:
    """The budget. `fell` is called when far less is held than before."""

    def __init__(
        self,
        limit: int,
        fell: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._fell = fell
        self._clock = clock
        self._top = 0
        self._coming: dict[Held, None] = {}  # bodies that come in pieces, those first that came on longest ago
        self._waiting: dict[Held, tuple[int, float]] = {}  # bodies: what they need, and since when they wait
        self._readers: dict[Held, tuple[int, float, asyncio.Future[None]]] = {}  # the same of whole ones
        self._look: asyncio.TimerHandle | None = None
        self.taken = 0
        """Bytes that are held now."""
        self.refused = 0
        """Requests that were sent away for want of room."""

    def count(self, held: Held, size: int) -> None:
        """`held` has so many bytes more, whatever the budget is."""
        if held.over:
            return
        held.counted += size
        self.taken += size
        if self.taken > self._top:
            self._top = self.taken

    def release(self, held: Held) -> None:
        """`held` has nothing any more, and gets nothing."""
        if held.over:
            return
        held.over = True
        self.taken -= held.counted
        held.counted = 0
        if self._coming or self._waiting:
            self.whole(held)
        if self._waiting or self._readers:
            self._look_at(0)
        if self._top - self.taken >= _FELL:
            self._top = self.taken
            self._fell()

    def partly(self, held: Held, expected: int) -> bool:
        """A body came in part, and may have `expected` bytes. Whether to read on; else `go_on` or `let_go` follows, the
        latter perhaps at once."""
        if held.over:
            return True  # nobody keeps what comes
        now = self._clock()
        if held not in self._coming:
            self._come_on(held, now)
        elif held.came - held.step >= _STEP:
            del self._coming[held]
            self._come_on(held, now)
        needed = expected - held.counted
        if expected <= SMALL or needed <= 0:
            if self.taken > self._limit and not self._make_room(0, self._limit):
                self._send_away(held)
            return not held.over
        if not self._waiting and self._make_room(needed, self._limit * _BODIES):
            self.count(held, needed)
            return True
        if self.taken > self._limit * _WAITING:
            self._send_away(held)
            return False
        del self._coming[held]  # it does not come on because we do not read
        self._waiting[held] = (needed, now)
        self._look_at(_LOOK_S)
        return False

    def whole(self, held: Held) -> None:
        """A body is there as a whole, or will not be."""
        self._coming.pop(held, None)
        if self._waiting.pop(held, None) is not None and held.body is not None:
            held.body.go_on()  # so that what is sent yet can be thrown away

    def take(self, held: Held, size: int) -> bool:
        """Whether `held` has so many bytes more, for what is made of its body."""
        if self.taken + size > self._limit and not self._make_room(size, self._limit):
            return False
        self.count(held, size)
        return True

    async def wait(self, held: Held, size: int) -> None:
        """Return when `held` has so many bytes more, behind those that wait already. Raises InfrastructureError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers[held] = (size, self._clock(), future)
        self._look_at(_LOOK_S)
        try:
            await future
        finally:
            self._readers.pop(held, None)

    def no_room(self) -> InfrastructureError:
        """For a request that is sent away."""
        self.refused += 1
        return _no_room()

    def _make_room(self, size: int, limit: float) -> bool:
        """Whether so much more is within a limit; if need be, without the bodies that do not come on."""
        while self.taken + size > limit and self.taken:
            stalled = next(iter(self._coming), None)
            if stalled is None or self._clock() - stalled.since < _STALLED_S:
                return False
            self._send_away(stalled, "the body did not come on while others waited")
        return True

    def _come_on(self, held: Held, now: float) -> None:
        held.step, held.since = held.came, now
        self._coming[held] = None

    def _send_away(self, held: Held, reason: str = "") -> None:
        self.refused += 1
        body = held.body
        self.release(held)
        if body is not None:
            body.let_go(reason or str(_no_room()))

    def _look_at(self, delay_s: float) -> None:
        if self._look is not None:
            if delay_s:
                return
            self._look.cancel()
        self._look = asyncio.get_running_loop().call_later(delay_s, self.look)

    def look(self) -> None:
        """Give those that wait what has become free, in their order; send away who has waited for too long."""
        self._look = None
        now = self._clock()
        for held, (size, since, future) in list(self._readers.items()):
            if not self._make_room(size, self._limit):
                if now - since < _WAIT_S:
                    break
                if not future.done():
                    future.set_exception(self.no_room())
            elif not future.done():
                self.count(held, size)
                future.set_result(None)
            self._readers.pop(held, None)
        for held, (needed, since) in list(self._waiting.items()):
            if held.over:
                continue
            if self._make_room(needed, self._limit * _BODIES):
                del self._waiting[held]
                self.count(held, needed)
                self._come_on(held, now)
                if held.body is not None:
                    held.body.go_on()
            elif now - since >= _WAIT_S:
                self._send_away(held)
            else:
                break
        if (self._waiting or self._readers) and self._look is None:
            self._look_at(_LOOK_S)


def _no_room() -> InfrastructureError:
    return InfrastructureError("requests that are under way hold all the memory that they may", RETRY_AFTER_S)
