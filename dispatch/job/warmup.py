"""Paying for everything that is slow the first time before anybody waits for it.

Without this the first notification after a start takes 2-6 s, with it 0.2 s: classes, code generation, Python workers,
connections, the table. The warm-up sends a record without outcomes through the attempts log and runs one real
micro-batch over it, from Kafka through the sink; nothing is pushed and nothing recorded.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from core.eventlog.client import make_producer, translated
from core.eventlog.settings import KafkaSettings
from dispatch.logs import attempts
from dispatch.spark.source import read_log
from dispatch.tables.delta_table import rows_of

logger = logging.getLogger(__name__)

RunSink = Callable[[DataFrame], object]


def warm_up(spark: SparkSession, kafka: KafkaSettings, run_sink: RunSink, slots: int) -> None:
    """Run the whole path once over nothing. `run_sink` runs the sink over a frame of the source's columns.

    Raises InfrastructureError when Kafka cannot be reached. Any other trouble is only logged: the queries that follow
    will meet it again, and report it better.
    """
    started = time.monotonic()
    offset = _append_nothing(kafka)
    try:
        # One task for each slot, so that each has a worker with its connections.
        run_sink(empty_frame(spark, slots))
        _run_batch(spark, kafka, offset, run_sink)
    except Exception:
        logger.warning("the warm-up failed; the first notifications will take longer", exc_info=True)
    logger.info("warmed up in %.1f s", time.monotonic() - started)


def empty_frame(spark: SparkSession, partitions: int) -> DataFrame:
    """No rows in so many partitions, with the columns that the sink expects."""
    rows = spark.range(0, partitions, 1, partitions).selectExpr(
        "cast(cast(id as string) as binary) as value", "cast(id as int) as partition", "id as offset"
    )
    return rows.where("offset < 0")


def _append_nothing(kafka: KafkaSettings) -> int:
    producer = make_producer(kafka)
    try:
        offsets: list[int] = []
        with translated("the attempts log cannot be written"):
            future = producer.send(kafka.topic("attempts"), value=attempts.NOTHING, partition=0)
            future.add_callback(lambda acknowledgement: offsets.append(acknowledgement.offset))
            producer.flush(timeout=kafka.request_timeout_s)
        return offsets[0] if offsets else 0
    finally:
        producer.close(timeout=1)


def _run_batch(spark: SparkSession, kafka: KafkaSettings, offset: int, run_sink: RunSink) -> None:
    def batch(frame: DataFrame, number: int) -> None:
        run_sink(frame.select("value", "partition", "offset").where("offset < 0"))
        rows_of(frame.select("value").toArrow().column("value").to_pylist())

    # Only the first partition, from the record that was just appended.
    topic = kafka.topic("attempts")
    source = read_log(
        spark, kafka, "attempts", starting=json.dumps({topic: {"0": offset}}), fail_on_data_loss=False, partitions=[0]
    )
    with tempfile.TemporaryDirectory(prefix="arborcast-warm-up-", ignore_cleanup_errors=True) as folder:
        query = (
            source.writeStream.queryName("warm-up")
            .trigger(availableNow=True)
            .option("checkpointLocation", Path(folder).as_uri())
            .foreachBatch(batch)
            .start()
        )
        if not query.awaitTermination(60):
            query.stop()
