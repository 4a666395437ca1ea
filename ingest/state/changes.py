"""Changing the control log from the event loop: append, then wait until this gateway's own view has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol
from weakref import WeakValueDictionary

from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.fence import clock
from arborcast.core.settings import KafkaSettings
from arborcast.core.single_flight import SharedRounds
from arborcast.core.threads import pool
from arborcast.ingest.state.log_view import Commits, ControlLogView, LoggedState
from arborcast.topic_model.records import control
from arborcast.topic_model.records.control import ControlRecord


class LogEnd:
    """The end of a log: everything that another gateway has acknowledged lies before it.

    A gateway's view is some milliseconds behind the log. A request that must not miss acknowledged changes reads the
    end of the log and waits until the view has reached it. Callers during a query share the next one: under load one
    round trip, about a millisecond, serves all.
    """

    def __init__(self, kafka: KafkaSettings, name: str) -> None:
        self._log = LogConsumer(kafka, name)
        # One thread, so that the connection has one user.
        self._thread = pool(f"{name}-end", 1)
        # A record may be acknowledged during a query without being counted: later callers share the next one.
        self._queries: SharedRounds[None, int] = SharedRounds(f"{name}-end", self._query)

    async def end_offset(self) -> int:
        """The offset after the last record that was acknowledged before this call. Raises InfrastructureError."""
        return await self._queries.join(None)

    async def _query(self, _: list[None]) -> int:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read_end)

    def close(self) -> None:
        """Close the connection, after the current query."""
        self._thread.submit(self._log.close)
        self._thread.shutdown(wait=False)

    def _read_end(self) -> int:
        try:
            return self._log.ends()[0]
        except BaseException:
            self._log.close()
            raise


class GatewayPositions:
    """Positions of the control log views of one gateway's workers, and the time until which it is the only gateway.

    The answers of a worker depend on records before its position only. `memory` is shared by the workers: words of
    eight bytes, each with one writer and written atomically.
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
        """Until this time of `core.fence.clock` no other gateway answers without reading the records of this one; 0 if
        another may."""
        self._words[0] = int(until_s * 1e9)

    @property
    def shown(self) -> bool:
        """Whether all other gateways have seen this one."""
        return bool(self._words[1])

    @shown.setter
    def shown(self, shown: bool) -> None:
        self._words[1] = shown

    def newest(self) -> int | None:
        """A position after all records in the answers of this gateway; None if answers of another gateway may include
        later ones."""
        return max(self._words[2:]) if clock() * 1e9 < self._words[0] else None


class CommitsChanges(Commits[ControlRecord], Protocol):
    """Changes of the shared state by operations. `append_s` is the time limit of the append of a commit."""

    append_s: float

    async def catch_up(self) -> None:
        """Return when the view has all records in the answers of any gateway until now. Raises InfrastructureError."""

    async def keep_up(self) -> None:
        """The same before each acceptance of a notification, with a query only while other gateways exist. Calls return
        in order. Raises InfrastructureError."""


class ControlChanges(LoggedState[ControlRecord]):
    """Changes by way of the control log."""

    def __init__(
        self, kafka: KafkaSettings, log: LogWriter, view: ControlLogView, positions: GatewayPositions | None = None
    ) -> None:
        super().__init__(kafka, log, control.encode, view)
        self._control = view
        self._end = LogEnd(kafka, log.name)
        self._positions = positions or GatewayPositions()
        self._readings: SharedRounds[None, None] = SharedRounds("keep-up", self._read)

    async def catch_up(self) -> None:
        await self._read_to(await self._end.end_offset())

    async def keep_up(self) -> None:
        if self._readings.idle:
            newest = self._positions.newest()
            if newest is not None and newest <= self._control.applied:
                return
        await self._readings.join(None)

    async def _read(self, _: list[None]) -> None:
        newest = self._positions.newest()
        await self._read_to(await self._end.end_offset() if newest is None else newest)

    async def _read_to(self, position: int) -> None:
        late = "this gateway could not read the newest changes of subscriptions and topics in time; nothing was done"
        await self._control.wait_applied(position - 1, self._timeout_s, late)

    def close(self) -> None:
        super().close()
        self._end.close()


class KeyedLocks:
    """One lock for each key that is locked or waited for; the others are removed."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    def hold(self, key: Hashable) -> asyncio.Lock:
        """The lock of a key, for `async with`."""
        return self._locks.setdefault(key, asyncio.Lock())

    @asynccontextmanager
    async def hold_all(self, keys: Iterable[Hashable]) -> AsyncIterator[None]:
        """A context with the locks of these keys, taken one after the other."""
        async with AsyncExitStack() as locks:
            for key in keys:
                await locks.enter_async_context(self.hold(key))
            yield

    def __contains__(self, key: Hashable) -> bool:
        return key in self._locks
