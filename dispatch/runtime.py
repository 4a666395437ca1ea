"""The job as a whole: warm up, run the queries, stop between batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dispatch.bases import bases_for
from dispatch.gate import StopGate
from dispatch.job_sources import JobSources, Watched
from dispatch.keeper import Keeper
from dispatch.metrics import JobMetrics
from dispatch.record import AttemptsTable, start_recording
from dispatch.settings import DispatchSettings, PushSettings, TableSettings
from dispatch.sink import SinkJob, push_partition
from dispatch.stream import HotPath
from dispatch.tables import ATTEMPTS
from dispatch.view import RoutingView
from dispatch.warmup import empty_frame, touch, warm_up
from topic_model.kafka_topics import ensure_topics
from topic_model.outbound import AddressPolicy
from topic_model.settings import KafkaSettings

logger = logging.getLogger(__name__)

# Reading the control log for the first time: a million subscriptions take about 15 s.
_FIRST_READ_S = 300.0

# Spark ends idle Python workers after 60 s.
_KEEP_WARM_S = 40.0

# A batch is as long as its slowest push, so this is what a stop may take at most.
_STOP_MARGIN_S = 5.0


@dataclass(frozen=True)
class JobSettings:
    """All that the job needs to know."""

    home: Path
    kafka: KafkaSettings
    dispatch: DispatchSettings
    push: PushSettings
    tables: TableSettings
    outbound: AddressPolicy

    def checkpoint(self, query: str) -> str:
        """Where a query keeps its progress."""
        root = self.dispatch.checkpoint.rstrip("/") or str((self.home / "checkpoints").absolute())
        return f"{root}/{query}"


class DispatchJob:
    """The hot query and the record query in one Spark session."""

    def __init__(
        self, spark: SparkSession, settings: JobSettings, gate: StopGate, metrics: JobMetrics | None = None
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._gate = gate
        self._view = RoutingView(
            settings.kafka, spark.sparkContext, bases_for(spark.sparkContext, settings.home / "routing")
        )
        self._table = AttemptsTable(ATTEMPTS.location(settings.tables, settings.home))
        metrics = metrics or JobMetrics()
        hot = HotPath(settings.kafka, settings.dispatch, settings.push, settings.outbound, self._view, gate, metrics)
        self._keepers = (
            Keeper("push", lambda: hot.start(spark, settings.checkpoint("push")), gate),
            Keeper(
                "record",
                lambda: start_recording(
                    spark,
                    settings.kafka,
                    settings.tables,
                    self._table,
                    settings.checkpoint("record"),
                    gate,
                    metrics.recorded,
                ),
                gate,
                # A table that cannot be written (a full disk) is no reason to stop pushing: the outcomes wait in their
                # log.
                essential=False,
            ),
        )

        queries = {"push": "notifications", "record": "attempts"}
        watched = {keeper.name: Watched(queries[keeper.name], keeper) for keeper in self._keepers}
        metrics.sources = JobSources(settings.kafka, watched, self._view)

    def run(self, ready: Callable[[], None]) -> bool:
        """Run until the gate closes; `ready` is called when the engine would deliver within its usual latency.

        Returns False when a query could not be kept running. Raises InfrastructureError when Kafka or the table cannot
        be reached at start.
        """
        try:
            self._warm_up()
            for keeper in self._keepers:
                keeper.start()
            if all(keeper.wait_running(60) for keeper in self._keepers):
                ready()
            self._keep_warm()
        finally:
            self._stop()
        return not any(keeper.gave_up for keeper in self._keepers)

    def _warm_up(self) -> None:
        settings = self._settings
        ensure_topics(settings.kafka)
        view = self._view.refresh(_FIRST_READ_S)
        self._table.open()
        job = SinkJob(settings.kafka, settings.dispatch, settings.push, settings.outbound, view, batch=-1)
        warm_up(
            self._spark,
            settings.kafka,
            lambda frame: frame.foreachPartition(partial(push_partition, job)),
            settings.dispatch.task_slots,
        )

    def _keep_warm(self) -> None:
        """Until the gate closes: see that Spark does not end the workers while nothing happens."""
        while not self._gate.wait_closed(_KEEP_WARM_S):
            try:
                empty_frame(self._spark, 1).foreachPartition(touch)
            except PySparkException as error:
                logger.info("the workers could not be kept: %s", error)

    def _stop(self) -> None:
        self._gate.close()
        if not self._gate.wait_empty(self._settings.push.total_timeout_s + _STOP_MARGIN_S):
            logger.warning("a batch is still under way; it will be repeated, and some pushes with it")
        for keeper in self._keepers:
            keeper.stop(timeout_s=5.0)
        self._view.close()
