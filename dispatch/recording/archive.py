"""The archive: from the `notifications` log to the table of that name, with payloads.

Read from Kafka, not by a query, which would copy large messages through the JVM's heap. The commits have the
positions, so a crash neither loses nor repeats a row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.recording.follower import GatheringFollower
from arborcast.dispatch.tables import NOTIFICATIONS
from arborcast.dispatch.tables.delta_table import Build, DeltaTableWriter, build, days, times
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification

LOG = "notifications"

ErasedBy = Callable[[Notification], str]

_BYTES_PER_STEP = 8 * 1024 * 1024


class Archive(GatheringFollower):
    """`erased` returns the id of the erasure of a notification, empty for none: the log has its payload until Kafka
    deletes it, and the table may be built again from the log."""

    def __init__(
        self,
        kafka: KafkaSettings,
        location: str,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
        erased: ErasedBy = lambda _: "",
    ) -> None:
        self._table = DeltaTableWriter(NOTIFICATIONS, location)
        super().__init__(kafka, LOG, [self._table], interval_s, _BYTES_PER_STEP, clock)
        self._rows: list[pa.Table] = []
        self._erased = erased

    def take(self, records: Sequence[ConsumerRecord]) -> None:
        if records:
            self._rows.append(notification_rows(records, time_ms(), self._erased))

    def _gathered_bytes(self) -> int | None:
        return sum(rows.nbytes for rows in self._rows) if self._rows else None

    def _extend(self, positions: Mapping[int, int]) -> int:
        rows = pa.concat_tables(self._rows)
        self._table.extend(rows, self._progress(positions))
        self._rows.clear()
        return int(rows.num_rows)

    def _forget(self) -> None:
        super()._forget()
        self._rows.clear()


class _Archived(NamedTuple):
    notification: Notification
    partition: int
    offset: int
    logged_ms: int
    payload_bytes: int
    erased: str | None = None


def notification_rows(records: Iterable[ConsumerRecord], recorded_ms: int, erased: ErasedBy = lambda _: "") -> pa.Table:
    """Rows of `notifications`. Damaged records are skipped, as by the dispatch. Raises RecordVersionError for a newer
    version."""
    archived = []
    for record in records:
        at = record.partition, record.offset
        notification = unless_damaged("notifications", at, notifications.decode, record.value)
        if notification is not None:
            place = record.partition, record.offset, record.timestamp
            row = _Archived(notification, *place, len(notification.payload))
            if erasure := erased(notification):
                emptied = msgspec.structs.replace(notification, payload=b"", producer=b"")
                row = row._replace(notification=emptied, erased=erasure)
            archived.append(row)
    special = _NOTIFICATION | {"recorded_at": lambda them: times([recorded_ms] * len(them))}
    return build(NOTIFICATIONS, archived, special)


def _column(field: str) -> Build[_Archived]:
    return lambda them: pa.array([getattr(each.notification, field) for each in them])


_NOTIFICATION: dict[str, Build[_Archived]] = {
    **{field: _column(field) for field in Notification.__struct_fields__},
    "day": lambda them: days(each.notification.accepted_ms for each in them),
    "notification": lambda them: pa.array([each.notification.id for each in them], pa.string()),
    "accepted_at": lambda them: times(each.notification.accepted_ms for each in them),
    "logged_at": lambda them: times(each.logged_ms for each in them),
    "path": lambda them: pa.array([" ".join(each.notification.path) for each in them], pa.string()),
}
