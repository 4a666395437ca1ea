"""Following a log of one partition, so of one order for everybody: each record is applied once, in order.

A follower keeps its position while the broker is away for a while. What the records mean is up to its user.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from core.errors import InfrastructureError, RecordVersionError
from core.eventlog.client import RETRY_AFTER_S
from core.eventlog.consumer import Discontinued, LogConsumer
from core.eventlog.settings import KafkaSettings

Record = TypeVar("Record")


class LogFollower(Generic[Record]):
    """Reads a log from its beginning, in order, and applies each record once. One thread at a time.

    `apply(record, offset)` is called for every record. When it raises, the position stays before that record. `decode`
    turns a key and a value into a record, or raises InfrastructureError. `wait_ms` is how long the broker holds a
    `poll` that finds nothing; a caller of `read_to_end` wants it short (see LogConsumer), one who only polls wants it
    long. `forgetful` says that the log's beginning moves: what it no longer has is passed over.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        decode: Callable[[bytes, bytes | None], Record],
        apply: Callable[[Record, int], None],
        *,
        wait_ms: int = 10,
        forgetful: bool = False,
    ) -> None:
        self._log = LogConsumer(kafka, name, wait_ms=wait_ms)
        self._decode = decode
        self._apply = apply
        self._forgetful = forgetful
        self._position: int | None = None

    @property
    def position(self) -> int:
        """Offset of the next record to apply; 0 before the first read."""
        return self._position or 0

    def read_to_end(self, timeout: float) -> int:
        """Apply all records that are in the log now; returns the position, which is at least the log's end.

        Raises InfrastructureError when Kafka is away or the end is not reached within `timeout` seconds (what was
        read until then is applied), RecordVersionError for a record that a newer Arborcast wrote.
        """
        deadline = time.monotonic() + timeout
        self._open()
        # One request, about a millisecond, and most of the time the answer is that nothing changed.
        end = self._log.ends(timeout)[0]
        if end < self.position:
            raise self._lost(f"its end is now {end}")
        while self.position < end:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise InfrastructureError(
                    f"the {self._log.name} log was read up to {self.position} of {end} within {timeout:g} s",
                    RETRY_AFTER_S,
                )
            self.poll(min(remaining, 1.0))
        return self.position

    def poll(self, timeout: float) -> int:
        """Apply what comes within `timeout` seconds, returning as soon as something came; returns the number applied.

        While the broker is away nothing comes; that is not an error here.
        """
        self._open()
        try:
            records = self._log.poll(timeout).get(0, ())
        except Discontinued as error:
            self._pass_over_or_raise(self._lost(str(error.__cause__)))
            return 0
        for record in records:
            try:
                self._apply(self._read(record.key, record.value, record.offset), record.offset)
            except BaseException:
                # What was polled and not applied would be skipped by the next poll.
                self._log.seek({0: self.position})
                raise
            self._position = record.offset + 1
        return len(records)

    def close(self) -> None:
        """Free the connection."""
        self._log.close()

    def _open(self) -> None:
        if self._log.placed:
            return
        try:
            self._log.partitions()  # raises while there is no such log
            if self._position is None:
                self._position = self._log.beginnings()[0]
            self._log.seek({0: self._position})
        except BaseException:
            self._log.close()
            raise

    def _pass_over_or_raise(self, lost: InfrastructureError) -> None:
        """Go on at the log's beginning where it may have moved beyond our position."""
        beginning = self._log.beginnings()[0]
        if not self._forgetful or beginning <= self.position:
            raise lost
        self._position = beginning
        self._log.seek({0: beginning})

    def _read(self, key: bytes | None, value: bytes | None, offset: int) -> Record:
        place = f"offset {offset} of {self._log.topic}"
        if key is None:
            raise InfrastructureError(f"the record at {place} has no key: something else than Arborcast wrote it")
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
            f"the {self._log.name} log {self._log.topic} was truncated or created anew: we stand at {self.position}, "
            f"{why}. What was applied may no longer be true: restart this process to read the log from its beginning"
        )
