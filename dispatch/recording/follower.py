"""Followers of logs that write tables: their positions in the log, and their recovery after a failure.

Some gather rows, in short steps, until the next commit is due.
"""

from __future__ import annotations

import hashlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.consumer import Replaced
from arborcast.core.eventlog.follower import LogCursor
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.monitoring.sources import QueryProgress
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, as_progress

logger = logging.getLogger(__name__)


class Work(ABC):
    """Work repeated at an interval."""

    name: str

    @abstractmethod
    def step(self) -> bool:
        """Do a bounded piece; returns whether more may follow at once."""

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Close connections."""


class TableFollower(Work):
    """Follows a log, in steps, from the positions in its tables.

    A failure, which may be between a commit and its answer, discards all state in memory: the next step reads the
    positions of the tables again. A log that was created again is followed from its beginning.
    """

    def __init__(self, kafka: KafkaSettings, log: str, tables: Sequence[DeltaTableWriter]) -> None:
        self._kafka = kafka
        # In messages the log's name identifies its tables.
        self.name = self._log = log
        self._tables = tables
        self._cursor: LogCursor | None = None
        self._topic: dict[str, int] = {}
        """A number for the id of the log's Kafka topic, for all commits with positions; empty without an id."""

    def step(self) -> bool:
        """Apply a bounded piece of the log to the tables; returns whether more can be read at once. Raises the errors
        of Kafka and Delta; then a later step begins again at the tables' positions."""
        try:
            return self._step()
        except BaseException:
            self._forget()
            raise

    def close(self) -> None:
        """Close the connection. Uncommitted records are read again after the next start."""
        if self._cursor is not None:
            self._cursor.close()

    @abstractmethod
    def _write(self, log: LogCursor) -> bool:
        """Read more, and commit if that is due; returns whether more can be read at once."""

    def _opened(self) -> LogCursor:
        """The log behind the positions of the tables."""
        return self._behind([table.positions(self._log) for table in self._tables])

    def _restart(self) -> None:
        """Set the positions of the tables to the beginning of a log that was created again. Their rows stay: they are
        of the previous log."""
        for table in self._tables:
            beginning = dict.fromkeys(table.positions(self._log), 0)
            table.extend(table.spec.arrow([]), self._progress(beginning))

    def _behind(self, known: Sequence[Mapping[int, int]]) -> LogCursor:
        """The log from the lowest of these positions: repeated records are recognised, or have no effect."""
        partitions = {each for positions in known for each in positions}
        begin = {each: min(positions.get(each, 0) for positions in known) for each in partitions}
        seen = {each: max(positions.get(each, 0) for positions in known) for each in partitions}
        cursor = LogCursor(self._kafka, self._log, begin, seen)
        try:
            self._check_topic(cursor.topic_id())
        except BaseException:
            cursor.close()
            raise
        return cursor

    def _check_topic(self, topic_id: str) -> None:
        """Raises Replaced if the tables have positions in another log, for instance of another cluster."""
        digest = hashlib.blake2b(topic_id.encode(), digest_size=8).digest()
        self._topic = {f"{self._log}-topic": int.from_bytes(digest) >> 1} if topic_id else {}
        for writer, number in self._topic.items():
            for table in self._tables:
                if table.progress(writer) not in (None, number):
                    raise Replaced(f"the {self._log} log is not that of the table at {table.location}")

    def _progress(self, positions: Mapping[int, int]) -> dict[str, int]:
        return as_progress(self._log, positions) | self._topic

    def _forget(self) -> None:
        """Drop the state of the log and the tables; a subclass adds its own."""
        self.close()
        self._cursor = None
        for table in self._tables:
            table.reopen()

    def _step(self) -> bool:
        try:
            if self._cursor is None:
                self._cursor = self._opened()
            return self._write(self._cursor)
        except Replaced as error:
            logger.warning("%s; its tables continue with its beginning", error)
        self._forget()
        self._restart()
        return True


def may_have_more(records: Sequence[ConsumerRecord], most: int, most_bytes: int) -> bool:
    """Whether a read up to these limits may have left records."""
    return len(records) >= most or sum(len(each.value or b"") for each in records) >= most_bytes


# Steps are short: decoding delays the hot path's driver (interpreter lock).
_RECORDS_PER_STEP = 2_000

# Without records, each request costs the broker and this process a millisecond.
_IDLE_S = 3.0

# Gathered rows are in memory until the next commit.
BYTES_PER_COMMIT = 64 * 1024 * 1024


class GatheringFollower(TableFollower):
    """Follows the log in steps of bounded bytes, and commits the collected rows each `interval_s`."""

    def __init__(
        self,
        kafka: KafkaSettings,
        log: str,
        tables: Sequence[DeltaTableWriter],
        interval_s: float,
        bytes_per_step: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(kafka, log, tables)
        self._interval_s = interval_s
        self._bytes_per_step = bytes_per_step
        self._clock = clock
        self._committed_at = clock()
        self._idle_until = clock()
        self.progress: QueryProgress | None = None
        """The last commit, in the form of a query's progress; None until the tables are read."""

    def open(self) -> None:
        """Create the tables if they do not exist."""
        for table in self._tables:
            table.open()

    @abstractmethod
    def take(self, records: Sequence[ConsumerRecord]) -> None:
        """Gather the rows of these records."""

    @abstractmethod
    def _gathered_bytes(self) -> int | None:
        """The size of the gathered rows, of the largest table; None if there is nothing to commit."""

    @abstractmethod
    def _extend(self, positions: Mapping[int, int]) -> int:
        """Write and drop the gathered rows; returns their number."""

    def commit(self, positions: Mapping[int, int]) -> None:
        """Write the gathered rows, up to these positions (the next offsets)."""
        count = self._extend(positions)
        self._committed_at = self._clock()
        self.progress = QueryProgress(count, dict(positions))

    def _write(self, log: LogCursor) -> bool:
        if self._clock() < self._idle_until:
            return False
        if self.progress is None:  # also for a disk that is full from the start on
            log.ends()
            self.progress = QueryProgress(settled=dict(log.positions))
        records = log.read(_RECORDS_PER_STEP, self._bytes_per_step)
        self.take(records)
        size = self._gathered_bytes()
        if size is None:
            if not records:
                self._idle_until = self._clock() + min(self._interval_s, _IDLE_S)
        elif self._clock() - self._committed_at >= self._interval_s or size >= BYTES_PER_COMMIT:
            self.commit(log.positions)
        return may_have_more(records, _RECORDS_PER_STEP, self._bytes_per_step)
