"""The query of the real-time gear: Spark's Real-time Mode, with our worker behind it.

The mode has a list of operators that it was tried with. `mapInArrow` is not among them; what we need of it is held by
`tests/integration/dispatch/test_realtime_mode.py`, to be run with every new Spark: that rows come one by one and at
once, that nothing need be yielded before the end, and that a batch whose task fails is not taken for done.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from dispatch.hot.earlier import Beginning
from dispatch.realtime.task import RealtimeJob
from dispatch.realtime.worker import push_rows
from dispatch.spark.source import read_log

# Between two batches of Spark's nothing is delivered for some 300 ms; what a batch would give us, a place to begin
# again, the log `progress` has.
_BATCH = "30 minutes"

REALTIME_SESSION = {
    # We know what we do, see above.
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    # A row leaves the JVM when it is there. With 4 bytes it is refused.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.execution.pandas.udf.buffer.size": "5",
}


def realtime_session(spark: SparkSession) -> SparkSession:
    """The session for these queries. One is enough: Spark keeps a daemon, and workers, for each."""
    session = spark.newSession()
    for name, value in REALTIME_SESSION.items():
        session.conf.set(name, value)
    return session


def start_realtime(spark: SparkSession, job: RealtimeJob, begin: Beginning, checkpoint: str) -> StreamingQuery:
    """Start the query, with an empty checkpoint of its own."""
    kafka = job.settings.kafka
    rows = read_log(
        spark,
        kafka,
        "notifications",
        starting=begin.starting(kafka),
        fail_on_data_loss=job.settings.dispatch.fail_on_data_loss,
        # It is answered as soon as there is something. An idle engine asks once in so long, for each partition.
        fetch_wait_ms=2_000,
    )
    # The JVM sends a row when the next one is there: a marker behind each drives it out.
    row = F.explode(F.array(F.struct("value", "partition", "offset"), F.lit(None))).alias("row")
    writer: Any = (  # the types of the pinned Spark do not know of the trigger
        rows.select(row)
        .select("row.value", "row.partition", "row.offset")
        .mapInArrow(partial(push_rows, job), "taken long")
        .writeStream.format("noop")
        .queryName("push-realtime")
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
    )
    query: StreamingQuery = writer.trigger(realTime=_BATCH).start()
    return query
