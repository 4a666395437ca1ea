"""The record query: from the `attempts` log to the `attempts` table.

A batch is written through delta-rs, not through Spark's Delta sink: a commit takes 10 ms instead of seconds, and costs
the hot path next to nothing. The query's id and the batch's number go into the commit as a Delta application
transaction, so that a batch which Spark repeats after a crash is recognised and not written twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dispatch import attempts
from dispatch.attempts import Attempt
from dispatch.gate import StopGate
from dispatch.settings import TableSettings
from dispatch.source import read_log
from dispatch.tables import ATTEMPTS
from topic_model.settings import KafkaSettings

logger = logging.getLogger(__name__)


class AttemptsTable:
    """The table, held open: looking its state up anew for each commit would cost more the longer its history is."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._table: DeltaTable | None = None

    def open(self) -> DeltaTable:
        """The table as we last knew it, created if need be."""
        if self._table is None:
            self._table = ATTEMPTS.ensure(self._location)
        return self._table

    def append(self, rows: pa.Table, writer: str, batch: int) -> bool:
        """Append the rows of a batch; False when this writer has written this batch before.

        Commits are atomic: after a crash at any point the batch is there as a whole, or not at all.
        """
        table = self.open()
        done = table.transaction_version(writer)
        if done is not None and done >= batch:
            return False
        if rows.num_rows:
            transaction = CommitProperties(app_transactions=[Transaction(writer, batch)])
            write_deltalake(table, rows, mode="append", commit_properties=transaction)
        return True

    def reopen(self) -> None:
        """Read the table's state anew before the next commit."""
        self._table = None


def rows_of(values: Iterable[bytes]) -> pa.Table:
    """The table's rows for the values of Kafka records."""
    decoded = [attempt for value in values for attempt in attempts.decode(value)]
    columns = [pa.array([get(attempt) for attempt in decoded], type=field.type) for field, get in _COLUMNS]
    return pa.Table.from_arrays(columns, schema=ATTEMPTS.arrow_schema())


def start_recording(
    spark: SparkSession,
    kafka: KafkaSettings,
    settings: TableSettings,
    table: AttemptsTable,
    checkpoint: str,
    gate: StopGate,
    recorded: Callable[[pa.Table], None] = lambda rows: None,
) -> StreamingQuery:
    """Start the query; no batch begins once the gate is closed. `recorded` is told what was added."""

    def write(frame: DataFrame, batch: int) -> None:
        with gate.batch():
            values: Sequence[bytes] = frame.select("value").toArrow().column("value").to_pylist()
            try:
                rows = rows_of(values)
                if table.append(rows, query_id(frame), batch):
                    recorded(rows)
                else:
                    logger.warning("batch %d of the attempts was in the table already", batch)
            except Exception:
                table.reopen()
                raise

    # Its own scheduling pool, so that recording and pushing share the task slots fairly.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "record")
    return (
        read_log(spark, kafka, "attempts", starting="earliest", fail_on_data_loss=False)
        .writeStream.queryName("record-attempts")
        .trigger(processingTime=f"{int(settings.interval_s * 1000)} milliseconds")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(write)
        .start()
    )


def query_id(frame: DataFrame) -> str:
    """The id of the query that a batch belongs to: it lives in the checkpoint, as the batch numbers do."""
    return str(frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


_GETTERS: dict[str, Callable[[Attempt], object]] = {
    "day": lambda attempt: _time(attempt.started_ms).date(),
    "accepted_at": lambda attempt: _time(attempt.accepted_ms),
    "started_at": lambda attempt: _time(attempt.started_ms),
}


def _getter(name: str) -> Callable[[Attempt], object]:
    return _GETTERS.get(name) or (lambda attempt: getattr(attempt, name))


_COLUMNS = [(field, _getter(field.name)) for field in ATTEMPTS.arrow_schema()]
