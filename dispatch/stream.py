"""The hot query: from the `notifications` log to the sink, batch by batch."""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dispatch.gate import StopGate
from dispatch.metrics import JobMetrics
from dispatch.settings import DispatchSettings, PushSettings
from dispatch.sink import SinkJob, push_partition
from dispatch.source import read_log
from dispatch.view import RoutingView
from topic_model.outbound import AddressPolicy
from topic_model.settings import KafkaSettings


class HotPath:
    """What a batch does: read the control log to its end, hand the view to the workers, run the sink."""

    def __init__(
        self,
        kafka: KafkaSettings,
        dispatch: DispatchSettings,
        push: PushSettings,
        outbound: AddressPolicy,
        view: RoutingView,
        gate: StopGate,
        metrics: JobMetrics,
    ) -> None:
        self._kafka = kafka
        self._dispatch = dispatch
        self._push = push
        self._outbound = outbound
        self._view = view
        self._gate = gate
        self._metrics = metrics

    def start(self, spark: SparkSession, checkpoint: str) -> StreamingQuery:
        """Start the query. It has no trigger: the next batch begins when the last is done, or as soon as something
        comes (Spark looks every `idle_poll_ms`)."""
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "push")
        source = read_log(
            spark,
            self._kafka,
            "notifications",
            starting=self._dispatch.starting_offsets,
            fail_on_data_loss=self._dispatch.fail_on_data_loss,
            max_rows=self._dispatch.max_rows_per_batch,
        )
        return (
            source.select("value", "partition", "offset")
            .writeStream.queryName("push-notifications")
            .option("checkpointLocation", checkpoint)
            .foreachBatch(self.run_batch)
            .start()
        )

    def run_batch(self, frame: DataFrame, batch: int) -> None:
        """Dispatch one batch; returns when every outcome is in the `attempts` log.

        The control log is read to its end first: a notification that was accepted after a Subscribe was answered meets
        that subscription.
        """
        with self._gate.batch(), self._metrics.batch() as stages:
            view = self._view.refresh(self._kafka.request_timeout_s)
            stages.over("view", ("control", self._view.read_s))
            job = SinkJob(self._kafka, self._dispatch, self._push, self._outbound, view, batch)
            frame.foreachPartition(partial(push_partition, job))
            stages.over("job")
