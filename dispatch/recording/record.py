"""The record queries: from the `attempts` log to the tables `attempts` and `deliveries`, and from the `notifications`
log to the table of that name.

A batch is written through delta-rs, not through Spark's Delta sink: a commit takes 10 ms instead of seconds, and costs
the hot path next to nothing. The query's id and the batch's number go into the commit as a Delta application
transaction, so that a batch which Spark repeats after a crash is recognised and not written twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dispatch.gate import StopGate
from dispatch.recording.deliveries import EndedDeliveries
from dispatch.recording.held import HeldTable
from dispatch.recording.rows import Build, build, days, rows_of, times
from dispatch.settings import TableSettings
from dispatch.source import read_log
from dispatch.tables import ATTEMPTS, NOTIFICATIONS
from topic_model import notifications
from topic_model.errors import InfrastructureError, RecordVersionError
from topic_model.notifications import Notification
from topic_model.settings import KafkaSettings

__all__ = ["ArchiveTable", "AttemptsTable", "rows_of", "start_archiving", "start_recording"]

logger = logging.getLogger(__name__)

# After a long absence the archive is read in pieces that fit into the driver.
_ARCHIVE_ROWS = 50_000


class AttemptsTable:
    """`attempts`, and `deliveries` if that has a place."""

    def __init__(self, location: str, deliveries: str | None = None) -> None:
        self._attempts = HeldTable(ATTEMPTS, location)
        self._deliveries = EndedDeliveries(deliveries) if deliveries else None

    def open(self) -> None:
        """Create the tables if need be; afterwards the first batch costs no more than the others."""
        self._attempts.open()
        if self._deliveries:
            self._deliveries.table.open()

    def append(self, rows: pa.Table, writer: str, batch: int) -> bool:
        """Append the rows of a batch; False when this writer has written this batch before.

        Each table commits for itself: after a crash between the two the batch comes again, and only the second takes
        it.
        """
        new = self._attempts.append(rows, writer, batch)
        if self._deliveries:
            self._deliveries.append(rows, writer, batch)
        return new

    def reopen(self) -> None:
        """Read the tables' state anew before the next commit."""
        self._attempts.reopen()
        if self._deliveries:
            self._deliveries.table.reopen()


class ArchiveTable:
    """`notifications`."""

    def __init__(self, location: str) -> None:
        self._table = HeldTable(NOTIFICATIONS, location)

    def open(self) -> None:
        """Create the table if need be."""
        self._table.open()

    def append(self, logged: Iterable[Logged], writer: str, batch: int) -> bool:
        """Append a batch; False when this writer has written this batch before."""
        return self._table.append(notification_rows(logged, int(time.time() * 1000)), writer, batch)

    def reopen(self) -> None:
        """Read the table's state anew before the next commit."""
        self._table.reopen()


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


def start_recording(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: TableSettings,
    table: AttemptsTable,
    checkpoint: str,
    gate: StopGate,
    recorded: Callable[[pa.Table], None] = lambda rows: None,
) -> StreamingQuery:
    """Start the query of the outcomes; no batch begins once the gate is closed. `recorded` is told what was added."""

    def write(frame: DataFrame, batch: int) -> None:
        with gate.batch():
            rows = rows_of(frame.select("value").toArrow().column("value").to_pylist())
            try:
                new = table.append(rows, query_id(frame), batch)
            except Exception:
                table.reopen()
                raise
            if new:
                recorded(rows)
            else:
                logger.warning("batch %d of the attempts was in the table already", batch)

    source = read_log(spark, kafka, "attempts", starting="earliest", fail_on_data_loss=False)
    return _start(spark, source, "record-attempts", settings, checkpoint, write)


def start_archiving(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: TableSettings,
    table: ArchiveTable,
    checkpoint: str,
    gate: StopGate,
) -> StreamingQuery:
    """Start the query of the notifications; no batch begins once the gate is closed."""

    def write(frame: DataFrame, batch: int) -> None:
        with gate.batch():
            columns = frame.selectExpr("value", "partition", "offset", "unix_millis(timestamp)").toArrow().columns
            logged = map(Logged, *(column.to_pylist() for column in columns))
            try:
                if not table.append(logged, query_id(frame), batch):
                    logger.warning("batch %d of the notifications was in the table already", batch)
            except Exception:
                table.reopen()
                raise

    source = read_log(
        spark, kafka, "notifications", starting="earliest", fail_on_data_loss=False, max_rows=_ARCHIVE_ROWS
    )
    return _start(spark, source, "archive-notifications", settings, checkpoint, write)


def query_id(frame: DataFrame) -> str:
    """The id of the query that a batch belongs to: it lives in the checkpoint, as the batch numbers do."""
    return str(frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def _start(
    spark: SparkSession,
    source: DataFrame,
    name: str,
    settings: TableSettings,
    checkpoint: str,
    write: Callable[[DataFrame, int], None],
) -> StreamingQuery:
    # Its own scheduling pool, so that recording and pushing share the task slots fairly.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "record")
    return (
        source.writeStream.queryName(name)
        .trigger(processingTime=f"{int(settings.interval_s * 1000)} milliseconds")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(write)
        .start()
    )


def _column(name: str) -> Build[_Archived]:
    """The column of a field that goes into the table as it is."""
    return lambda them: pa.array([getattr(each.notification, name) for each in them])


_NOTIFICATION: dict[str, Build[_Archived]] = {
    "day": lambda them: days(each.notification.accepted_ms for each in them),
    "notification": lambda them: pa.array([each.notification.id for each in them], pa.string()),
    "accepted_at": lambda them: times(each.notification.accepted_ms for each in them),
    "logged_at": lambda them: times(each.logged_ms for each in them),
    "payload_bytes": lambda them: pa.array([len(each.notification.payload) for each in them], pa.int64()),
    **{
        name: _column(name)
        for name in ("topic", "publisher", "message_id", "only", "payload", "producer", "traceparent")
    },
}
