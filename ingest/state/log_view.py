"""The gateway's view of a log: current state, and waiting for its own records.

A thread follows the log. After the start, records are applied on the event loop's thread, which therefore reads the
state without locks and between records.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from arborcast.core.backoff import Backoff
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.follower import LogFollower
from arborcast.core.eventlog.scan import LogReader
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.single_flight import stops
from arborcast.core.threads import Service, pool, within
from arborcast.topic_model.control_log import ControlFollower
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import ControlRecord

logger = logging.getLogger(__name__)

Record = TypeVar("Record")

# Time limit of a fetch without records; also the delay until a stop is noticed.
POLL_S = 0.5
WAIT_MS = int(POLL_S * 1000)

# Interval of questions for the end of the log. A poll without records does not show whether the broker answers.
_CHECK_S = 2.0

# Between attempts when the broker is away.
_RETRY_S = 0.5

# Replaying a million records takes some ten seconds. The limit is for a log that grows faster than it is read.
_REPLAY_TIMEOUT_S = 600


class LogView(Generic[Record]):
    """State that follows a log of one partition. `make` makes its follower for a function that takes its records;
    `fold` applies a record to the state: in the event loop's thread, except for records from before the start.
    `on_failure` is called, in the event loop, if the log cannot be followed (a record of a newer version, a recreated
    log): a wrong state would be worse than a stop."""

    def __init__(
        self,
        make: Callable[[Callable[[Record, int], None]], LogFollower[Record]],
        fold: Callable[[Record, int], None],
        on_failure: Callable[[Exception], None],
        *,
        replayed: Callable[[], None] = lambda: None,
        moved: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`replayed` is called when the records from before the start are applied; `moved` with each new position of
        the view, before any answer from it."""
        self._fold = fold
        self._on_failure = on_failure
        self._replayed = replayed
        self._on_moved = moved
        self._gathered: list[tuple[Record, int]] = []
        self._follower = make(self._take)
        name = self._follower.name
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._service = Service(
            f"{name}-view",
            self._step,
            backoff=Backoff(_RETRY_S, _RETRY_S),
            close=self._follower.close,
            what=f"reading the {name} log",
        )
        self._replaying = True
        self._checked = 0.0  # the time of the last answered question for the end
        self._applied = 0
        self._caught_up = asyncio.Event()
        self.failures = 0
        """The number of questions that the log did not answer."""
        self.obstacle = ""
        """Why the log did not answer the last question; empty if it did."""

    @property
    def caught_up(self) -> bool:
        """Whether the state has been as new as the log."""
        return self._caught_up.is_set()

    @property
    def applied(self) -> int:
        """Offset of the next record to be applied."""
        return self._applied

    def start(self) -> None:
        """Begin to follow. Call on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._service.start()

    async def stop(self) -> None:
        """Stop following; waiters for a record get an error."""
        if not self._service.stop():
            await asyncio.to_thread(self._service.stop, 2 * POLL_S)
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(stops())
        self._waiting.clear()

    async def until_caught_up(self) -> None:
        """Return when the log was read to its end once, however long that takes."""
        await self._caught_up.wait()

    async def wait_applied(
        self,
        offset: int,
        timeout: float,
        late: str = "the change is stored, but this gateway could not read it back in time",
    ) -> None:
        """Return when the record at `offset` is applied. InfrastructureError, with the message `late`, after `timeout`
        seconds."""
        if offset < self._applied:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._waiting, (offset, next(self._numbers), future))
        try:
            await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise InfrastructureError(late, retry_after=1) from None

    def _step(self) -> float | None:
        try:
            failure = self._read()
            self._hand_over()
        except Exception as error:
            if not self._service.stopping:
                logger.critical("the %s log cannot be followed: %s", self._follower.name, error)
                self._loop.call_soon_threadsafe(self._on_failure, error)
            return None
        if failure is not None:
            raise failure
        return 0.0

    def _read(self) -> InfrastructureError | None:
        """Read on; the failure, if another attempt may succeed."""
        try:
            if self._replaying:
                self._replay()
            elif time.monotonic() < self._checked + _CHECK_S:
                self._follower.poll(POLL_S)
                return None
            else:
                self._follower.read_to_end(_CHECK_S)
        except InfrastructureError as error:
            if error.retry_after is None:
                raise
            self._checked = -1.0
            self.failures += 1
            self.obstacle = str(error)
            return error
        self._checked, self.obstacle = time.monotonic(), ""
        return None

    def _moved(self, position: int) -> None:
        self._applied = position
        self._on_moved(position)

    def _take(self, record: Record, offset: int) -> None:
        if self._replaying:
            self._fold(record, offset)
            return
        if offset > (position := self._follower.position):
            # After days without Kafka, or of a suspended machine: the ends of subscriptions may be among them.
            raise InfrastructureError(
                f"the records from {position} to {offset - 1} of the {self._follower.name} log were compacted away "
                "before they were read: restart this process to read the log from its beginning"
            )
        self._gathered.append((record, offset))

    def _replay(self) -> None:
        """Up to the log's end in this thread: the state is not read yet."""
        self._follower.read_to_end(_REPLAY_TIMEOUT_S)
        self._replayed()
        self._replaying = False
        self._moved(self._follower.position)
        self._loop.call_soon_threadsafe(self._announce)

    def _announce(self) -> None:
        if not self._service.stopping:
            self._caught_up.set()
            self._release()

    def _hand_over(self) -> None:
        """Apply polled records on the event loop and wait for it: they must not accumulate."""
        if not self._gathered:
            return
        batch, self._gathered = self._gathered, []
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._apply, batch, self._follower.position, done)
        while not done.wait(POLL_S):
            if self._service.stopping:
                return

    def _apply(self, batch: list[tuple[Record, int]], position: int, done: threading.Event) -> None:
        try:
            for record, offset in batch:
                self._fold(record, offset)
            self._moved(position)
            self._release()
        except Exception as error:
            logger.exception("a record of the %s log could not be applied", self._follower.name)
            self._on_failure(error)
        finally:
            done.set()

    def _release(self) -> None:
        while self._waiting and self._waiting[0][0] < self._applied:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)


# Threads that append, and the bytes after which one begins no further change in its turn: a broker answers all changes
# of a turn together.
_WRITERS = 2
_AT_ONCE_BYTES = 4 * 1024 * 1024

Written = TypeVar("Written", contravariant=True)


class Commits(Protocol[Written]):
    """How operations append to a log."""

    async def commit(self, records: Sequence[Written]) -> int:
        """Return when the records are in the log and applied to the own view: the offset of the first of them.

        Raises InfrastructureError: the log has not acknowledged them, and may have them, or has them, and the view has
        not applied them in time."""


class _Change(NamedTuple):
    """The keys and values of one `commit`. `last` is the offset of the last record, or the failure."""

    encoded: list[tuple[bytes, bytes | None]]
    last: concurrent.futures.Future[int]


class LoggedState(Generic[Record]):
    """A log as operations on the event loop use it: see `Commits`. Without a `view`, `commit` returns when the records
    are in the log."""

    def __init__(
        self,
        kafka: KafkaSettings,
        writer: LogWriter,
        encode: Callable[[Record], tuple[bytes, bytes | None]],
        view: LogView[Any] | None = None,
    ) -> None:
        self._timeout_s = kafka.request_timeout_s
        self.append_s = 2 * kafka.request_timeout_s  # to connect and to write
        self._encode = encode
        self._view = view
        self._writer = writer
        self._reader = LogReader(kafka, writer.name)
        self._changes: deque[_Change] = deque()  # that are not begun
        self._writers = pool(f"{writer.name}-log", _WRITERS)
        self._readers = pool(f"{writer.name}-log-reader", 1)

    async def commit(self, records: Sequence[Record]) -> int:
        change = _Change([self._encode(record) for record in records], concurrent.futures.Future())
        self._changes.append(change)
        if len(self._changes) == 1:  # otherwise a thread is on its way to the changes before, and to this one
            self._start_thread(change)
        try:
            # A change that waits longer must not be made later, after its client has given up.
            async with asyncio.timeout(self.append_s):
                last = await asyncio.wrap_future(change.last)
        except TimeoutError:
            late = f"Kafka has not taken a change of the {self._writer.name} log in time"
            raise InfrastructureError(late, 1.0) from None
        if self._view is not None:
            await self._view.wait_applied(last, self._timeout_s)
        return last - len(records) + 1

    async def values(self, offsets: Iterable[int]) -> dict[int, bytes]:
        """The values at these offsets, as far as the log still has them. Raises InfrastructureError."""
        late = f"the {self._writer.name} log could not be read in time"
        return await within(self._timeout_s, self._readers, partial(self._reader.read, list(offsets)), late)

    def close(self) -> None:
        """Start no further appends, and release the connection for writing."""
        for threads in (self._writers, self._readers):
            threads.shutdown(wait=False, cancel_futures=True)
        for change in tuple(self._changes):
            change.last.cancel()
        self._writer.close()

    def _start_thread(self, change: _Change) -> None:
        """Raises InfrastructureError if the system has no thread left; later changes would wait for one for ever."""
        try:
            asyncio.get_running_loop().run_in_executor(self._writers, self._append)
        except RuntimeError as error:
            with suppress(ValueError):  # a running thread has taken it
                self._changes.remove(change)
            what = f"a change of the {self._writer.name} log cannot be made now: {error}"
            raise InfrastructureError(what, 1.0) from error

    def _append(self) -> None:
        while self._changes:
            begun: list[tuple[_Change, Callable[[], int]]] = []
            size = 0
            while size < _AT_ONCE_BYTES and (change := self._next()) is not None:
                try:
                    begun.append((change, self._writer.begin(change.encoded)))
                except Exception as error:
                    change.last.set_exception(error)
                size += sum(len(value or b"") for _, value in change.encoded)
            for change, appended in begun:
                try:
                    change.last.set_result(appended())
                except Exception as error:
                    change.last.set_exception(error)

    def _next(self) -> _Change | None:
        """The next change whose client has not given up."""
        try:
            while not (change := self._changes.popleft()).last.set_running_or_notify_cancel():
                pass
        except IndexError:
            return None
        return change


class ControlLogView(LogView[ControlRecord]):
    """Keeps `control` up to date with the control log. `observe` is called with every record, in order, in the reading
    thread."""

    def __init__(
        self,
        kafka: KafkaSettings,
        control: ControlView,
        on_failure: Callable[[Exception], None],
        observe: Callable[[ControlRecord], None] = lambda _: None,
        moved: Callable[[int], None] = lambda _: None,
    ) -> None:
        def follower(take: Callable[[ControlRecord, int], None]) -> ControlFollower:
            def observed(record: ControlRecord, offset: int) -> None:
                observe(record)
                take(record, offset)

            return ControlFollower(kafka, observed, wait_ms=WAIT_MS)

        super().__init__(follower, control.apply, on_failure, replayed=control.table.forget_changes, moved=moved)
