"""The log `fragments` as a gateway sees it: which messages lack parts, and their contents when they are needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from arborcast.core.eventlog.follower import LogFollower
from arborcast.core.eventlog.scan import LogReader
from arborcast.core.eventlog.topics import FRAGMENT_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import pool
from arborcast.ingest.state.log_view import POLL_S, LogView
from arborcast.topic_model.projections.open_messages import OpenMessage, OpenMessages
from arborcast.topic_model.records.fragments import FragmentRecord, StoredPart, decode, encode

# Messages are mostly put together within the second, so their parts are mostly in memory: up to this.
_RESIDENT_BYTES = 16 * 1024 * 1024

# Each of these reads has the time of a request.
_READ_AT_ONCE = 5_000

# Appends wait in threads; see ingest.state.changes.
_WRITERS = 16


class FragmentView(LogView[FragmentRecord]):
    """Follows the log, with a monotonic clock."""

    def __init__(self, kafka: KafkaSettings, on_failure: Callable[[Exception], None]) -> None:
        self._kafka = kafka
        self.messages = OpenMessages(_RESIDENT_BYTES)
        super().__init__(FRAGMENT_LOG, on_failure)

    def _make_follower(self) -> LogFollower[FragmentRecord]:
        return LogFollower(self._kafka, FRAGMENT_LOG, decode, self._take, wait_ms=int(POLL_S * 1000), forgetful=True)

    def _fold(self, record: FragmentRecord, offset: int) -> None:
        self.messages.apply(record, offset, time.monotonic())


class HoldsParts(Protocol):
    """The part of the log that operations need."""

    @property
    def messages(self) -> OpenMessages: ...

    async def commit(self, record: FragmentRecord) -> int:
        """Return when the record is in the log and applied here: its offset. Raises InfrastructureError."""

    async def parts(self, message: OpenMessage) -> list[StoredPart]:
        """The parts of a message, in their order, without those that the log no longer has. Raises
        InfrastructureError."""

    def now(self) -> float:
        """The clock that `messages` is folded by."""


class FragmentLog:
    """Appends to the log and looks records up in it. Used on the event loop's thread."""

    def __init__(self, kafka: KafkaSettings, view: FragmentView) -> None:
        self._view = view
        self._timeout_s = kafka.request_timeout_s
        self._writer = LogWriter(kafka, FRAGMENT_LOG)
        self._reader = LogReader(kafka, FRAGMENT_LOG)
        self._writers = pool("fragment-log", _WRITERS)
        self._readers = pool("fragment-log-reader", 1)

    @property
    def messages(self) -> OpenMessages:
        return self._view.messages

    async def commit(self, record: FragmentRecord) -> int:
        encoded = [encode(record)]
        loop = asyncio.get_running_loop()
        offset = await loop.run_in_executor(self._writers, self._writer.append_encoded, encoded)
        await self._view.wait_applied(offset, self._timeout_s)
        return offset

    async def parts(self, message: OpenMessage) -> list[StoredPart]:
        resident = dict(message.resident)
        missing = sorted(offset for number, offset in message.offsets() if number not in resident)
        loop = asyncio.get_running_loop()
        for begin in range(0, len(missing), _READ_AT_ONCE):
            some = missing[begin : begin + _READ_AT_ONCE]
            values = await loop.run_in_executor(self._readers, self._reader.read, some)
            for value in values.values():
                record = decode(b"", value)
                if isinstance(record, StoredPart):
                    resident[record.number] = record
        return [resident[number] for number in sorted(resident)]

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        """Begin nothing more, and free the connections."""
        self._writers.shutdown(wait=False, cancel_futures=True)
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writer.close()
