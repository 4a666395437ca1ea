"""The query of real time: Spark's Real-time Mode with `mapInArrow`.

Spark does not list that operator for the mode: `tests/integration/dispatch/test_realtime_mode.py` checks the required
behaviour for each new version of Spark.

The JVM collects rows up to a number of bytes, and reads the next row before it sends them. So a row that may be the
last is followed by two filler rows: one of that size, and one to be read. In a backlog that would cost more than the
push, so a row with known successors is sent with them, without fillers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from arborcast.dispatch.hot.recovered import StartState
from arborcast.dispatch.realtime.task import RealtimeJob
from arborcast.dispatch.realtime.worker import push_rows
from arborcast.dispatch.spark.source import read_log

# The duration of a run. One of Spark's batches is longer, so that no run has two: a second batch would restart minimum
# intervals, whose state a task gets at its start. The log `progress` has the position for the next run. Spark counts
# milliseconds, in places with 32 bits: less than 24 days.
RUN_S = 7 * 86_400.0
_BATCH = "8 days"

# About five small messages, also the size of the filler of a single row. With four times as much, p50 at 1,000/s is
# twice as long, and a backlog is no faster.
_TOGETHER_BYTES = 4_096

REALTIME_SESSION = {
    # Required by Spark for this operator, see above.
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(_TOGETHER_BYTES),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    # Send each row at once. Spark refuses 4 bytes.
    "spark.sql.execution.pandas.udf.buffer.size": "5",
}


class KnownEnds:
    """The known ends of a log, for the tasks of a run: a row before its end is followed by others. They are properties
    of the JVM, which several engines may share. Executors of a cluster have another JVM, and send each row at once."""

    def __init__(self, spark: SparkSession, topic: str, run: int) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # pyspark has no public way to properties of its JVM
        self._properties = jvm.java.lang.System
        self._names = f"{_ends_of(run)}{topic}."
        self._published: set[str] = set()

    def show(self, ends: Mapping[int, int]) -> None:
        for partition, end in ends.items():
            name = f"{self._names}{partition}"
            self._published.add(name)
            self._properties.setProperty(name, str(end))

    def forget(self) -> None:
        while self._published:
            self._properties.clearProperty(self._published.pop())


def realtime_session(spark: SparkSession) -> SparkSession:
    """The session for these queries. One is enough: for each session Spark keeps a daemon and workers."""
    session = spark.newSession()
    for name, value in REALTIME_SESSION.items():
        session.conf.set(name, value)
    return session


def start_realtime(spark: SparkSession, job: RealtimeJob, begin: StartState, checkpoint: str) -> StreamingQuery:
    """Start the query with an empty checkpoint."""
    kafka = job.settings.kafka
    rows = read_log(
        spark,
        kafka,
        "notifications",
        starting=begin.starting(kafka),
        fail_on_data_loss=job.settings.dispatch.fail_on_data_loss,
        # The broker answers as soon as there is data, an idle one after this time.
        fetch_wait_ms=2_000,
    )
    writer: Any = (  # the types of the pinned Spark lack this trigger
        sent_at_once(rows, job.number)
        .mapInArrow(partial(push_rows, job), "taken long")
        .writeStream.format("noop")
        .queryName("push-realtime")
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
    )
    query: StreamingQuery = writer.trigger(realTime=_BATCH).start()
    return query


def sent_at_once(rows: DataFrame, run: int) -> DataFrame:
    """The columns value, partition and offset, with filler rows, which have no offset."""
    name = f"concat('{_ends_of(run)}', topic, '.', partition)"
    known = F.expr(f"reflect('java.lang.System', 'getProperty', {name}, '0')")
    row = F.struct("value", "partition", "offset")
    full = F.struct(
        F.lit(b" " * _TOGETHER_BYTES).alias("value"),
        F.lit(None).cast("int").alias("partition"),
        F.lit(None).cast("bigint").alias("offset"),
    )
    with_fillers = F.array(row, full, F.lit(None))
    return (
        rows.withColumn("known", known.cast("bigint"))
        .select(
            F.explode(F.when(F.col("offset") + 1 < F.col("known"), F.array(row)).otherwise(with_fillers)).alias("row")
        )
        .select("row.value", "row.partition", "row.offset")
    )


def _ends_of(run: int) -> str:
    return f"arborcast.ends.{run}."
