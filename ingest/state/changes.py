"""Changing the control log from the event loop: append, then wait until this gateway's own view has it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.fence import clock
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import pool
from arborcast.ingest.state.log_view import ControlLogView
from arborcast.topic_model.records.control import ControlRecord


class LogEnd:
    """The end of a log: everything that another gateway has acknowledged lies before it.

    A gateway follows the log some milliseconds behind. A request that must not miss acknowledged changes asks for the
    end and waits until the own view has reached it. Requests during a question share the next one: under load one round
    trip, about a millisecond, serves all.
    """

    def __init__(self, kafka: KafkaSettings, name: str) -> None:
        self._name = name
        self._log = LogConsumer(kafka, name)
        # One thread, so that the connection has one user, and a question waits for the one before.
        self._thread = pool(f"{name}-end", 1)
        self._lock = threading.Lock()
        self._waiting: asyncio.Future[int] | None = None
        self._serving: asyncio.Task[None] | None = None

    async def end_offset(self) -> int:
        """The offset after the last record that was acknowledged before this call. Raises InfrastructureError."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
            if self._serving is None:
                self._serving = asyncio.create_task(self._serve(), name=f"{self._name}-end")
        # A client that hangs up must not cancel it for the others.
        return await asyncio.shield(self._waiting)

    async def _serve(self) -> None:
        while self._waiting is not None:
            # A record may be acknowledged during the question without being counted: later requests use the next one.
            waiting, self._waiting = self._waiting, None
            try:
                waiting.set_result(await asyncio.get_running_loop().run_in_executor(self._thread, self._question))
            except Exception as error:
                waiting.set_exception(error)
                waiting.exception()  # retrieved here, or asyncio logs it when no request waits any more
        self._serving = None

    def close(self) -> None:
        """Close the connection."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._log.close()

    def _question(self) -> int:
        with self._lock:
            try:
                return self._log.ends()[0]
            except BaseException:
                self._log.close()
                raise


class GatewayPositions:
    """Positions of the control log views of one gateway's workers, and until when it is the only gateway.

    A worker answers for nothing behind its position. `memory` is shared by the workers, words of eight bytes; each word
    has one writer, and is written at once.
    """

    def __init__(self, memory: memoryview | None = None, worker: int = 0) -> None:
        self._words = (memoryview(bytearray(self.size(1))) if memory is None else memory).cast("q")
        self._own = worker + 2

    @staticmethod
    def size(workers: int) -> int:
        """Bytes of memory for this number of workers."""
        return 8 * (2 + workers)

    def moved(self, position: int) -> None:
        """The view of this worker is at this position."""
        self._words[self._own] = position

    def is_sole_until(self, until_s: float) -> None:
        """Until this time of `core.fence.clock` no other gateway answers without the knowledge of this one; 0 where
        another may."""
        self._words[0] = int(until_s * 1e9)

    @property
    def shown(self) -> bool:
        """Whether every other gateway takes this one into account."""
        return bool(self._words[1])

    @shown.setter
    def shown(self, shown: bool) -> None:
        self._words[1] = shown

    def newest(self) -> int | None:
        """A position behind all that this gateway has answered for; None when another gateway may have answered for
        more."""
        return max(self._words[2:]) if clock() * 1e9 < self._words[0] else None


# Appends wait in threads. This number shares the broker's answers, enough for thousands per second.
_WRITERS = 16


class AppendsRecords(Protocol):
    """The part of a ControlLog that is needed."""

    def append(self, batch: Sequence[ControlRecord]) -> int: ...


class CommitsChanges(Protocol):
    """How operations change the shared state."""

    async def commit(self, records: Sequence[ControlRecord]) -> int:
        """Return when the records are in the log and applied to our view: the offset of the first of them. Raises
        InfrastructureError."""

    async def catch_up(self) -> None:
        """Return when our view has everything that any gateway has answered for until now. Raises
        InfrastructureError."""

    async def keep_up(self) -> None:
        """The same before each notification is accepted: Kafka is asked only while other gateways exist. Calls return
        in order. Raises InfrastructureError."""


class ControlChanges:
    """Changes by way of the control log."""

    def __init__(
        self,
        kafka: KafkaSettings,
        log: AppendsRecords,
        view: ControlLogView,
        end: LogEnd,
        positions: GatewayPositions | None = None,
    ) -> None:
        self._log = log
        self._view = view
        self._end = end
        self._positions = positions or GatewayPositions()
        self._behind: list[asyncio.Future[None]] = []
        self._reading: asyncio.Task[None] | None = None
        self._timeout_s = kafka.request_timeout_s
        self._writers = pool("control-log", _WRITERS)

    async def commit(self, records: Sequence[ControlRecord]) -> int:
        last = await asyncio.get_running_loop().run_in_executor(self._writers, self._log.append, records)
        await self._view.wait_applied(last, self._timeout_s)
        return last - len(records) + 1

    async def catch_up(self) -> None:
        await self._read_to(await self._end.end_offset())

    async def keep_up(self) -> None:
        if self._reading is None:
            newest = self._positions.newest()
            if newest is not None and newest <= self._view.applied:
                return
        mine = asyncio.get_running_loop().create_future()
        self._behind.append(mine)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="keep-up")
        await mine

    async def _read(self) -> None:
        """For all requests that wait; those that come meanwhile wait for the next round."""
        while self._behind:
            waiting, self._behind = self._behind, []
            failure: Exception | None = None
            try:
                newest = self._positions.newest()
                await self._read_to(await self._end.end_offset() if newest is None else newest)
            except Exception as error:
                failure = error
            for each in waiting:
                if each.done():
                    continue  # its client has disconnected
                if failure is None:
                    each.set_result(None)
                else:
                    each.set_exception(failure)
            await asyncio.sleep(0)  # these continue before a later request
        self._reading = None

    async def _read_to(self, position: int) -> None:
        late = "this gateway could not read the newest changes of subscriptions and topics in time; nothing was done"
        await self._view.wait_applied(position - 1, self._timeout_s, late)

    def close(self) -> None:
        """Do not begin any further append."""
        self._writers.shutdown(wait=False, cancel_futures=True)


# Parallel shared commits. With one, a request just after its beginning would wait for two.
_SHARED = 2


class SharedCommits:
    """Commits of independent changes: those that arrive while others are in progress share the next one, so a thousand
    new topics cost a few appends and waits for the log. All of a commit share its result. On the event loop's thread
    only."""

    def __init__(self, commit: Callable[[Sequence[ControlRecord]], Awaitable[object]]) -> None:
        self._commit = commit
        self._waiting: list[ControlRecord] = []
        self._next: asyncio.Future[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    def commit(self, records: Sequence[ControlRecord]) -> asyncio.Future[None]:
        """Done when the records are in force, or could not be put into the log. Others may share the future: shield it
        from being cancelled."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        self._waiting += records
        shared = self._next
        if len(self._under_way) < _SHARED:
            self._begin()
        return shared

    def _begin(self) -> None:
        shared, records = self._next, self._waiting
        if shared is None:
            return
        self._next, self._waiting = None, []
        task = asyncio.create_task(self._run(records, shared), name="shared-commit")
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    async def _run(self, records: Sequence[ControlRecord], shared: asyncio.Future[None]) -> None:
        try:
            await self._commit(records)
        except BaseException as error:
            shared.set_exception(error if isinstance(error, Exception) else InfrastructureError("the gateway stops"))
            shared.exception()  # retrieved here, or asyncio logs it when no request waits any more
            if not isinstance(error, Exception):
                raise
        else:
            shared.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._begin()


class KeyedLocks:
    """One lock for each key that is locked or waited for; the others are removed."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        lock, users = self._locks.get(key, (None, 0))
        lock = lock or asyncio.Lock()
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._locks

    def __len__(self) -> int:
        return len(self._locks)
