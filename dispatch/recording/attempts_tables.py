"""The record query: from the `attempts` log to the tables `attempts` and `deliveries`.

A batch is written through delta-rs, not through Spark's Delta sink: a commit takes 10 ms instead of seconds, and costs
the hot path next to nothing. How far the log has been read goes into the commit as Delta application transactions, so
that what Spark repeats after a crash is recognised and not written twice, and a query whose tables are behind its
checkpoint, because they were mended or deleted, begins again where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from core.eventlog.consumer import Replaced
from core.eventlog.follower import Tail
from core.eventlog.settings import KafkaSettings
from dispatch.recording.deliveries import EndedDeliveries
from dispatch.settings import TableSettings
from dispatch.spark.checkpoint_repair import go_back, mended
from dispatch.spark.query_keeper import StopGate
from dispatch.spark.source import Pieces, read_log
from dispatch.tables import ATTEMPTS
from dispatch.tables.delta_table import HeldTable, as_progress, rows_of


def unread(logged: pa.Table, reached: Mapping[int, int]) -> pa.Table:
    """Those of the records (columns `partition` and `offset` among others) that come at or after these positions."""
    first = _by_partition(logged, "min")
    if all(offset >= reached.get(partition, 0) for partition, offset in first.items()):
        return logged
    partitions = pa.array(reached, pa.int32())
    positions = pa.array(reached.values(), pa.int64())
    known = pc.take(positions, pc.index_in(logged["partition"].cast(pa.int32()), partitions))
    return logged.filter(pc.greater_equal(logged["offset"], pc.fill_null(known, 0)))


def further(logged: pa.Table, reached: Mapping[int, int]) -> dict[int, int]:
    """The positions after these records; from partition 0 on each has one."""
    last = _by_partition(logged, "max")
    positions = {**reached, **{each: max(offset + 1, reached.get(each, 0)) for each, offset in last.items()}}
    return {each: positions.get(each, 0) for each in range(max(positions, default=-1) + 1)}


def _by_partition(logged: pa.Table, function: str) -> dict[int, int]:
    found = logged.group_by("partition", use_threads=False).aggregate([("offset", function)])
    return dict(zip(found["partition"].to_pylist(), found[f"offset_{function}"].to_pylist(), strict=True))


class LogTable:
    """A table that a log is written to, and how far."""

    def __init__(self, table: HeldTable, log: str) -> None:
        self.held = table
        self._log = log

    def missing(self, logged: pa.Table, writer: str, batch: int) -> pa.Table:
        """Those of a batch's records (columns `partition` and `offset` among others) that the table does not have."""
        reached = self.reached()
        if reached is not None:
            return unread(logged, reached)
        done = self.held.progress(writer)
        return logged.slice(0, 0) if done is not None and done >= batch else logged

    def progress(self, logged: pa.Table, writer: str, batch: int) -> dict[str, int]:
        """How far it is with these records, for the commit that adds their rows."""
        reached = self.reached()
        return {writer: batch, **({} if reached is None else as_progress(self._log, further(logged, reached)))}

    def reached(self) -> dict[int, int] | None:
        """The offset of the first record that the table does not have, by partition; None when it does not say, because
        an Arborcast wrote it that went by the numbers of batches."""
        return self.held.positions(self._log) or ({} if self.held.open().version() == 0 else None)

    def begin_anew(self) -> None:
        """The log is another one: have all of it from its beginning, beside what is there."""
        beginning = dict.fromkeys(self.held.positions(self._log), 0)
        self.held.extend(self.held.spec.arrow([]), as_progress(self._log, beginning))


__all__ = ["AttemptsTable", "rows_of", "start_recording"]

logger = logging.getLogger(__name__)

LOG = "attempts"

# A full record of attempts takes about 125 KB and passes through the JVM's heap when it is collected, so a batch of so
# many records for each MB of heap takes a quarter of it at most. After a long absence there would be no other bound.
_RECORDS_PER_HEAP_MB = 2

# How often a backlog is looked for.
_LONGEST_LOOK_S = 1.0


class AttemptsTable:
    """`attempts`, and `deliveries` if that has a place."""

    def __init__(self, location: str, deliveries: str | None = None) -> None:
        self._attempts = LogTable(HeldTable(ATTEMPTS, location), LOG)
        self._ended = EndedDeliveries(deliveries) if deliveries else None
        self._deliveries = LogTable(self._ended.table, LOG) if self._ended else None

    @property
    def tables(self) -> Sequence[LogTable]:
        """Those that are written."""
        return (self._attempts, self._deliveries) if self._deliveries else (self._attempts,)

    def open(self) -> None:
        """Create the tables if need be; afterwards the first batch costs no more than the others."""
        for each in self.tables:
            each.held.open()

    def reopen(self) -> None:
        """Read the tables' state anew before the next commit."""
        for each in self.tables:
            each.held.reopen()

    def append(self, logged: pa.Table, writer: str, batch: int) -> pa.Table:
        """Append the rows of a batch of records (`value`, `partition`, `offset`); gives those that are new.

        Each table commits for itself: after a crash between the two the records come again, and only the second takes
        them.
        """
        fresh = self._attempts.missing(logged, writer, batch)
        rows = _rows(fresh)
        if fresh.num_rows:
            self._attempts.held.extend(rows, self._attempts.progress(fresh, writer, batch))
        if self._ended and self._deliveries:
            unfinished = self._deliveries.missing(logged, writer, batch)
            if unfinished.num_rows:
                progress = self._deliveries.progress(unfinished, writer, batch)
                self._ended.append(rows if unfinished is fresh else _rows(unfinished), progress)
        return rows


def _rows(logged: pa.Table) -> pa.Table:
    return rows_of(logged["value"].to_pylist())


def checkpoint_at(folder: str, kafka: KafkaSettings, table: AttemptsTable) -> str:
    """The query's checkpoint, mended, and not ahead of the tables.

    Raises InfrastructureError when the tables or the log cannot be read.
    """
    checkpoint = mended(folder)
    found = [each.reached() for each in table.tables]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return checkpoint
    try:
        with closing(Tail(kafka, LOG, {}, _furthest(known))) as tail:
            tail.read(0)
            begins = tail.positions
    except Replaced as error:
        logger.warning("%s; all that is in it is added to the tables", error)
        for each in table.tables:
            each.begin_anew()
        known, begins = [{}], {}
    # What the log no longer has cannot be missing.
    reached = {
        partition: max(begin, min(each.get(partition, 0) for each in known)) for partition, begin in begins.items()
    }
    go_back(checkpoint, kafka.topic(LOG), reached)
    return checkpoint


def _furthest(reached: Sequence[Mapping[int, int]]) -> Mapping[int, int]:
    partitions = {partition for each in reached for partition in each}
    return {partition: max(each.get(partition, 0) for each in reached) for partition in partitions}


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
            logged = frame.select("value", "partition", "offset").toArrow()
            try:
                rows = table.append(logged, query_id(frame), batch)
            except Exception:
                table.reopen()
                raise
            recorded(rows)

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
