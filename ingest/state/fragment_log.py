"""The log `fragments` as a gateway sees it: which messages lack parts, and their contents when they are needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from arborcast.core.eventlog.follower import LogFollower
from arborcast.core.eventlog.topics import FRAGMENT_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.state.log_view import WAIT_MS, Commits, LoggedState, LogView
from arborcast.topic_model.projections.open_messages import OpenMessage, OpenMessages
from arborcast.topic_model.records.fragments import FragmentRecord, StoredPart, decode, encode

# Maximum size of parts in memory: most messages are complete within a second.
_RESIDENT_BYTES = 16 * 1024 * 1024

# Each of these reads has the time of a request.
_READ_AT_ONCE = 5_000


class FragmentView(LogView[FragmentRecord]):
    """Follows the log, with a monotonic clock."""

    def __init__(self, kafka: KafkaSettings, on_failure: Callable[[Exception], None]) -> None:
        self.messages = messages = OpenMessages(_RESIDENT_BYTES)
        super().__init__(
            partial(LogFollower, kafka, FRAGMENT_LOG, decode, wait_ms=WAIT_MS, forgetful=True, skips_damaged=True),
            lambda record, offset: messages.apply(record, offset, time.monotonic()),
            on_failure,
        )


class CommitsFragments(Commits[FragmentRecord], Protocol):
    """The part of the log that operations need."""

    @property
    def messages(self) -> OpenMessages: ...

    async def parts(self, message: OpenMessage) -> list[StoredPart]:
        """The parts of a message, in their order, without expired ones. Raises InfrastructureError."""

    def now(self) -> float:
        """The clock that `messages` is folded by."""


class FragmentLog(LoggedState[FragmentRecord]):
    """Appends to the log and reads records from it. Used on the event loop's thread."""

    def __init__(self, kafka: KafkaSettings, view: FragmentView) -> None:
        super().__init__(kafka, LogWriter(kafka, FRAGMENT_LOG), encode, view)
        self.messages = view.messages

    async def parts(self, message: OpenMessage) -> list[StoredPart]:
        resident = dict(message.resident)
        missing = sorted(offset for number, offset in message.offsets() if number not in resident)
        for begin in range(0, len(missing), _READ_AT_ONCE):
            values = await self.values(missing[begin : begin + _READ_AT_ONCE])
            for value in values.values():
                record = decode(b"", value)
                if isinstance(record, StoredPart):
                    resident[record.number] = record
        return [resident[number] for number in sorted(resident)]

    def now(self) -> float:
        return time.monotonic()
