"""The record query: from the `attempts` log to the tables `attempts` and `deliveries`.

A batch is written through delta-rs, not through Spark's Delta sink: a commit takes 10 ms instead of seconds, and costs
the hot path next to nothing. The query's id and the batch's number go into the commit as a Delta application
transaction, so that a batch which Spark repeats after a crash is recognised and not written twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dispatch.gate import StopGate
from dispatch.recording.deliveries import EndedDeliveries
from dispatch.recording.held import HeldTable
from dispatch.recording.rows import rows_of
from dispatch.settings import TableSettings
from dispatch.source import Pieces, read_log
from dispatch.tables import ATTEMPTS
from topic_model.settings import KafkaSettings

__all__ = ["AttemptsTable", "rows_of", "start_recording"]

logger = logging.getLogger(__name__)

# A full record of attempts takes about 125 KB and passes through the JVM's heap when it is collected, so a batch of so
# many records for each MB of heap takes a quarter of it at most. After a long absence there would be no other bound.
_RECORDS_PER_HEAP_MB = 2

# How often a backlog is looked for.
_LONGEST_LOOK_S = 1.0


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


def start_recording(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: TableSettings,
    table: AttemptsTable,
    checkpoint: str,
    gate: StopGate,
    heap_mb: int,
    recorded: Callable[[pa.Table], None] = lambda rows: None,
) -> StreamingQuery:
    """Start the query of the outcomes; no batch begins once the gate is closed. `recorded` is told what was added.

    A batch is made each `interval_s`, or as soon as there is as much as one may have, which depends on the heap.
    """

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

    source = read_log(
        spark,
        kafka,
        "attempts",
        starting="earliest",
        fail_on_data_loss=False,
        pieces=Pieces(heap_mb * _RECORDS_PER_HEAP_MB, settings.interval_s),
    )
    # Its own scheduling pool, so that recording and pushing share the task slots fairly.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "record")
    return (
        source.writeStream.queryName("record-attempts")
        .trigger(processingTime=f"{int(min(settings.interval_s, _LONGEST_LOOK_S) * 1000)} milliseconds")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(write)
        .start()
    )


def query_id(frame: DataFrame) -> str:
    """The id of the query that a batch belongs to: it lives in the checkpoint, as the batch numbers do."""
    return str(frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
