"""The archive: from the `notifications` log to the table of that name, payloads and all.

Read straight from Kafka, not by a query: what a query collects passes through the JVM's heap as a whole, which large
messages filled; and its batches began when those of the record query did, which cost the hot path twice its p99. How
far it has come is in the commits themselves, so a crash neither leaves out nor repeats a row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from core.errors import InfrastructureError, RecordVersionError
from core.eventlog.client import ConsumerRecord
from core.eventlog.follower import Tail
from core.settings import KafkaSettings
from dispatch.monitoring.sources import QueryProgress
from dispatch.recording.follower import TableFollower
from dispatch.tables import NOTIFICATIONS
from dispatch.tables.delta_table import Build, DeltaTableWriter, as_progress, build, days, times
from topic_model.records import notifications
from topic_model.records.notifications import Notification

logger = logging.getLogger(__name__)

LOG = "notifications"

# A step is kept short: while it decodes, the hot path's driver waits for the interpreter.
_RECORDS_PER_STEP = 2_000
_BYTES_PER_STEP = 8 * 1024 * 1024

# What is gathered until the next commit stays in memory.
_BYTES_PER_COMMIT = 64 * 1024 * 1024


class Archive(TableFollower):
    """Follows the log, in short steps, and commits what they have gathered each `interval_s`."""

    def __init__(
        self, kafka: KafkaSettings, location: str, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kafka = kafka
        self._table = DeltaTableWriter(NOTIFICATIONS, location)
        super().__init__(LOG, [self._table])
        self._interval_s = interval_s
        self._clock = clock
        self._gathered: list[pa.Table] = []
        self._committed_at = clock()
        self._progress: QueryProgress | None = None

    @property
    def progress(self) -> QueryProgress | None:
        """The last commit, as a query would tell it; None before there was one."""
        return self._progress

    def open(self) -> None:
        """Create the table if need be."""
        self._table.open()

    def _opened(self) -> Tail:
        return Tail(self._kafka, LOG, self._known())

    def _write(self, tail: Tail) -> bool:
        records = tail.read(_RECORDS_PER_STEP, _BYTES_PER_STEP)
        if records:
            self._gathered.append(notification_rows(map(_logged, records), int(time.time() * 1000)))
        size = sum(rows.nbytes for rows in self._gathered)
        if self._gathered and (self._clock() - self._committed_at >= self._interval_s or size >= _BYTES_PER_COMMIT):
            self._commit(tail.positions)
        return len(records) >= _RECORDS_PER_STEP or sum(map(_bytes, records)) >= _BYTES_PER_STEP

    def _restart(self) -> None:
        # What is archived stays: these rows are of the log that was.
        self._table.extend(NOTIFICATIONS.arrow([]), as_progress(LOG, dict.fromkeys(self._known(), 0)))

    def _forget(self) -> None:
        super()._forget()
        self._gathered.clear()

    def _commit(self, positions: Mapping[int, int]) -> None:
        rows = pa.concat_tables(self._gathered)
        self._table.extend(rows, as_progress(LOG, positions))
        self._gathered.clear()
        self._committed_at = self._clock()
        number = self._progress.batch + 1 if self._progress else 0
        self._progress = QueryProgress(number, rows.num_rows, dict(positions))

    def _known(self) -> dict[int, int]:
        """The next offset, by partition: as the commits say, or, of a table from before they did, behind its rows."""
        return self._table.positions(LOG) or self._behind_rows()

    def _behind_rows(self) -> dict[int, int]:
        rows = self._table.open().to_pyarrow_dataset().scanner(columns=["partition", "offset"])
        ends: dict[int, int] = {}
        for batch in rows.to_batches():
            for partition in pc.unique(batch["partition"]).to_pylist():
                offsets = batch.filter(pc.field("partition") == partition)["offset"]
                ends[partition] = max(ends.get(partition, 0), pc.max(offsets).as_py() + 1)
        return ends


class Logged(NamedTuple):
    """A record of the notifications log and where it is."""

    value: bytes
    partition: int
    offset: int
    logged_ms: int


class _Archived(NamedTuple):
    notification: Notification
    partition: int
    offset: int
    logged_ms: int


def notification_rows(logged: Iterable[Logged], recorded_ms: int) -> pa.Table:
    """Rows of `notifications`. What cannot be read is left out, as the dispatch leaves it out.

    Raises RecordVersionError for a record of a newer Arborcast.
    """
    archived = []
    for value, partition, offset, logged_ms in logged:
        try:
            archived.append(_Archived(notifications.decode(value), partition, offset, logged_ms))
        except RecordVersionError:
            raise
        except InfrastructureError as error:
            logger.error("offset %d of partition %d is not archived: %s", offset, partition, error)
    special = _NOTIFICATION | {"recorded_at": lambda them: times([recorded_ms] * len(them))}
    return build(NOTIFICATIONS, archived, special)


def _logged(record: ConsumerRecord) -> Logged:
    return Logged(record.value or b"", record.partition, record.offset, record.timestamp)


def _bytes(record: ConsumerRecord) -> int:
    return len(record.value or b"")


def _column(name: str) -> Build[_Archived]:
    """The column of a field that goes into the table as it is."""
    return lambda them: pa.array([getattr(each.notification, name) for each in them])


_NOTIFICATION: dict[str, Build[_Archived]] = {
    "day": lambda them: days(each.notification.accepted_ms for each in them),
    "notification": lambda them: pa.array([each.notification.id for each in them], pa.string()),
    "accepted_at": lambda them: times(each.notification.accepted_ms for each in them),
    "logged_at": lambda them: times(each.logged_ms for each in them),
    "priority": lambda them: pa.array([each.notification.priority for each in them], pa.int32()),
    "hops": lambda them: pa.array([each.notification.hops for each in them], pa.int32()),
    "payload_bytes": lambda them: pa.array([len(each.notification.payload) for each in them], pa.int64()),
    **{
        name: _column(name)
        for name in (
            "topic",
            "publisher",
            "message_id",
            "only",
            "payload",
            "producer",
            "traceparent",
            "control",
            "cause",
        )
    },
}
