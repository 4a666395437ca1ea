"""Following logs: `LogFollower` applies each record of a log of one partition once, in order; `LogCursor` returns the
records of any log after known positions.

Both keep their positions while the broker is down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from arborcast.core import liveness
from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.core.eventlog.client import RETRY_AFTER_S, ConsumerRecord
from arborcast.core.eventlog.consumer import MAX_RECORDS, WAIT_MS, Discontinued, LogConsumer, Replaced
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.settings import KafkaSettings

Record = TypeVar("Record")


class LogFollower(Generic[Record]):
    """Reads a log from its beginning, in order, and applies each record once. One thread at a time.

    `apply(record, offset)` is called for every record. If it raises, the position stays before that record. `decode`
    returns the record for a key and a value, or raises InfrastructureError. `wait_ms` is the time for which the broker
    holds an empty `poll`; short for callers of `read_to_end` (see LogConsumer), long for those that only poll.
    `forgetful`: the log's beginning is deleted over time, and missing records are skipped. `skips_damaged`: damaged
    records are skipped, too; otherwise `poll` raises InfrastructureError at each.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        decode: Callable[[bytes, bytes | None], Record],
        apply: Callable[[Record, int], None],
        *,
        wait_ms: int = WAIT_MS,
        forgetful: bool = False,
        skips_damaged: bool = False,
    ) -> None:
        self.name = name
        self._log = LogConsumer(kafka, name, wait_ms=wait_ms)
        self._decode = decode
        self._apply = apply
        self._forgetful = forgetful
        self._skips_damaged = skips_damaged
        self._position: int | None = None

    @property
    def position(self) -> int:
        """Offset of the next record to apply; 0 before the first read."""
        return self._position or 0

    def read_to_end(self, timeout: float) -> int:
        """Apply all records of the log; returns the position, at least the log's end. Raises InfrastructureError
        without Kafka or after `timeout` seconds (records read by then are applied), RecordVersionError for a newer
        version."""
        deadline = time.monotonic() + timeout
        self._open()
        # One request of about a millisecond; mostly nothing has changed.
        end = self._log.ends(timeout)[0]
        if end < self.position:
            raise self._lost(f"its end is now {end}")
        return self.read_to(end, deadline - time.monotonic())

    def read_to(self, end: int, timeout: float) -> int:
        """Apply all records before this offset, which are in the log; returns the position. Raises as `read_to_end`."""
        deadline = time.monotonic() + timeout
        while self.position < end:
            liveness.beat()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise InfrastructureError(
                    f"the {self._log.name} log was read up to {self.position} of {end} within {timeout:g} s",
                    RETRY_AFTER_S,
                )
            self.poll(min(remaining, 1.0))
        return self.position

    def poll(self, timeout: float) -> int:
        """Wait up to `timeout` seconds for records and apply them; returns their number. It is 0 while the broker is
        down, without an error."""
        self._open()
        try:
            records = self._log.poll(timeout).get(0, ())
        except Discontinued as error:
            self._skip_deleted_or_raise(self._lost(str(error.__cause__)))
            return 0
        for record in records:
            try:
                self._follow(record)
            except BaseException:
                # The next poll would skip polled, unapplied records.
                self._log.seek({0: self.position})
                raise
            self._position = record.offset + 1
        return len(records)

    def close(self) -> None:
        self._log.close()

    def _follow(self, record: ConsumerRecord) -> None:
        values = record.key, record.value, record.offset
        if not self._skips_damaged:
            self._apply(self._read(*values), record.offset)
        elif (read := unless_damaged(self.name, record.offset, self._read, *values)) is not None:
            self._apply(read, record.offset)

    def _open(self) -> None:
        if self._log.placed:
            return
        try:
            self._log.partitions()  # raises if the log does not exist
            if self._position is None:
                self._position = self._log.beginnings()[0]
            self._log.seek({0: self._position})
        except BaseException:
            self._log.close()
            raise

    def _skip_deleted_or_raise(self, lost: InfrastructureError) -> None:
        """Continue at the log's beginning if it may move beyond the position."""
        beginning = self._log.beginnings()[0]
        if not self._forgetful or beginning <= self.position:
            raise lost
        self._position = beginning
        self._log.seek({0: beginning})

    def _read(self, key: bytes | None, value: bytes | None, offset: int) -> Record:
        place = f"offset {offset} of {self._log.topic}"
        if key is None:
            raise InfrastructureError(f"the record at {place} has no key: it was not written by Arborcast")
        try:
            return self._decode(key, value)
        except RecordVersionError as error:
            raise RecordVersionError(f"{error} ({place})") from error
        except InfrastructureError as error:
            raise InfrastructureError(f"{error} ({place})") from error
        except UnicodeDecodeError as error:
            raise InfrastructureError(f"the key of the record at {place} is not UTF-8") from error

    def _lost(self, why: str) -> InfrastructureError:
        return InfrastructureError(
            f"the {self._log.name} log {self._log.topic} was truncated or created again: the position is "
            f"{self.position}, {why}. The applied records may be invalid: restart this process to read the log "
            "from its beginning"
        )


# With a limit in bytes, this number of the largest records is acceptable.
_RECORDS_AT_ONCE = 64


class LogCursor:
    """Reads a log from given positions (the next offset, by partition); partitions without one, also later ones, from
    their beginning. For one thread.

    Connects on the first use. All methods raise InfrastructureError while the broker is down, and Replaced if the log
    ends before a position, or before an offset of `seen`. `wait_ms` is as for a LogConsumer; if it is long, the ends of
    the log are requested over a second connection.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        positions: Mapping[int, int],
        seen: Mapping[int, int] | None = None,
        *,
        wait_ms: int = WAIT_MS,
        max_records: int = MAX_RECORDS,
    ) -> None:
        self._log = LogConsumer(kafka, name, wait_ms=wait_ms, max_records=max_records)
        self._bounds = LogConsumer(kafka, name) if wait_ms > WAIT_MS else self._log
        self._positions = dict(positions)
        self._seen = seen or {}

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset of each partition."""
        return self._log.positions() if self._log.placed else self._positions

    def topic_id(self) -> str:
        """See `LogConsumer`."""
        return self._bounds.topic_id()

    def ends(self) -> dict[int, int]:
        """The current ends of the log. Afterwards every partition has a position."""
        ends = self._bounds.ends()
        if not self._log.placed or ends.keys() != self.positions.keys():
            self._place(ends)
        return ends

    def has_reached(self, ends: Mapping[int, int]) -> bool:
        """Whether all records before these offsets were read."""
        positions = self.positions
        return all(positions[number] >= end for number, end in ends.items())

    def unread(self) -> int:
        """The number of offsets before the end of the log, as far as the last poll knows."""
        return self._log.unread()

    def poll(self, timeout_s: float) -> dict[int, Sequence[ConsumerRecord]]:
        """Wait up to this time for records, by partition. Raises Discontinued too."""
        self._positions = dict(self.positions)
        if not self._log.placed or len(self._log.partitions()) > len(self._positions):
            self.ends()
        return {number: records for number, records in self._log.poll(timeout_s).items() if records}

    def read(self, limit: int, limit_bytes: int | None = None) -> Sequence[ConsumerRecord]:
        """About `limit` records or this number of bytes up to the current ends; in order by partition. A failure closes
        the connection."""
        try:
            return self._read(limit, limit_bytes)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the connection; a later read opens another."""
        self._log.close()
        self._bounds.close()

    def _read(self, limit: int, limit_bytes: int | None) -> list[ConsumerRecord]:
        ends = self.ends()
        deadline = time.monotonic() + self._log.kafka.request_timeout_s
        at_once = limit if limit_bytes is None else min(limit, _RECORDS_AT_ONCE)
        found: list[ConsumerRecord] = []
        size = 0
        while len(found) < limit and not self.has_reached(ends) and (limit_bytes is None or size < limit_bytes):
            if time.monotonic() > deadline:
                if found:
                    break
                raise InfrastructureError(f"the {self._log.name} log could not be read in time", RETRY_AFTER_S)
            for records in self._log.poll(0.5, min(at_once, limit - len(found))).values():
                found.extend(records)
                size += sum(len(each.value or b"") for each in records)
        self._positions = self._log.positions()
        return found

    def _place(self, ends: Mapping[int, int]) -> None:
        for number, end in ends.items():
            seen = max(self._positions.get(number, 0), self._seen.get(number, 0))
            if seen > end:
                raise Replaced(f"the {self._log.name} log was created again: it ends at {end}, it was read to {seen}")
        beginnings = self._bounds.beginnings()
        self._positions = {number: max(self._positions.get(number, 0), first) for number, first in beginnings.items()}
        self._log.seek(self._positions)
