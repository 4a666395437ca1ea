"""Work on an event loop that several callers share: `SingleFlight` by key, `SharedRounds` in rounds; and that no caller
waits for: `spawn`.

Each caller gets the outcome of the work: its result, its exception, or InfrastructureError if it was cancelled. The
cancellation of one caller does not cancel the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from arborcast.core.errors import InfrastructureError

Key = TypeVar("Key")
Item = TypeVar("Item")
T = TypeVar("T")


def spawn(tasks: set[asyncio.Task[T]], work: Coroutine[Any, Any, T], name: str | None = None) -> None:
    """Begin this work in a task, and keep it in `tasks` until it ends: the event loop's own references are weak."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def stops() -> InfrastructureError:
    """The error for work that is cancelled because its process stops."""
    return InfrastructureError("this process stops", 1)


async def shared(work: asyncio.Future[T]) -> T:
    """Wait for the work and return its outcome."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if work.cancelled():
            raise stops() from None
        raise


class SingleFlight(Generic[Key, T]):
    """Work in progress by its key: at most one at a time for each key."""

    def __init__(self) -> None:
        self._under_way: dict[Key, asyncio.Future[T]] = {}

    def __contains__(self, key: Key) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return len(self._under_way)

    def get(self, key: Key) -> asyncio.Future[T] | None:
        """The current work, for `shared`."""
        work = self._under_way.get(key)
        return None if work is None or work.done() else work

    async def run(self, key: Key, begin: Callable[[], Awaitable[T]]) -> T:
        """The outcome of the current work, otherwise of the work that `begin` returns."""
        return await shared(self.get(key) or self.begin((key,), begin()))

    def begin(self, keys: Sequence[Key], work: Awaitable[T]) -> asyncio.Future[T]:
        """Share this work under these keys until it ends."""
        future = asyncio.ensure_future(work)
        self._under_way.update(dict.fromkeys(keys, future))
        future.add_done_callback(partial(self._end, keys))
        return future

    @contextmanager
    def lead(self: SingleFlight[Key, None], keys: Iterable[Key]) -> Iterator[None]:
        """Share the outcome of the block under these keys. Unlike `begin`, the block needs no task, and is cancelled
        with its caller."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.update(dict.fromkeys(keys, future))
        try:
            yield
        except BaseException as error:
            future.set_exception(error if isinstance(error, Exception) else stops())
            raise
        else:
            future.set_result(None)
        finally:
            self._end(keys, future)

    def _end(self, keys: Iterable[Key], ended: asyncio.Future[T]) -> None:
        for key in keys:
            if self._under_way.get(key) is ended:
                del self._under_way[key]
        _retrieve(ended)


class SharedRounds(Generic[Item, T]):
    """Work in rounds: `work` gets the items of all waiting callers. A call during a round joins the next one, so the
    work for an item always begins after its call."""

    def __init__(self, name: str, work: Callable[[list[Item]], Awaitable[T]], at_once: int = 1) -> None:
        """`at_once` is the number of rounds at a time."""
        self._name = name
        self._work = work
        self._at_once = at_once
        self._waiting: list[tuple[Item, asyncio.Future[T]]] = []
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        """Whether no round is in progress, and all callers of earlier ones have continued."""
        return not self._running

    def join(self, item: Item) -> asyncio.Future[T]:
        """A future of the outcome of the next round, which includes the item even if the future is cancelled."""
        mine: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, mine))
        if self._running < self._at_once:
            self._running += 1
            spawn(self._tasks, self._run(), self._name)
        return mine

    async def _run(self) -> None:
        try:
            await self._rounds()
        finally:
            # Not in a callback of the task: items that are added before the callback would get no round.
            self._running -= 1

    async def _rounds(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                result = await self._work([item for item, _ in waiting])
            except BaseException as error:
                failure = error if isinstance(error, Exception) else stops()
                for each in _undone(waiting):
                    each.set_exception(failure)
                    _retrieve(each)
                if not isinstance(error, Exception):
                    raise
            else:
                for each in _undone(waiting):
                    each.set_result(result)
            await asyncio.sleep(0)  # lets these callers continue before later ones


def _undone(waiting: Iterable[tuple[Item, asyncio.Future[T]]]) -> Iterator[asyncio.Future[T]]:
    return (each for _, each in waiting if not each.done())


def _retrieve(future: asyncio.Future[T]) -> None:
    """Keeps asyncio from logging an exception that no caller waits for."""
    if not future.cancelled():
        future.exception()
