"""The job: warm up, run the query, stop between batches."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from pyspark.sql import DataFrame, SparkSession

from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import pool
from arborcast.dispatch.delivery.credentials import SecretOpener
from arborcast.dispatch.delivery.pushes import make_push_spans
from arborcast.dispatch.hot.sink import SinkJob
from arborcast.dispatch.hot.stream import JobParts, accumulator, run_sink
from arborcast.dispatch.job.deadlines import DeadlineWatch
from arborcast.dispatch.job.heartbeat import keep_worker_alive
from arborcast.dispatch.job.operator_events import OperatorEvents
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import NO_BATCH
from arborcast.dispatch.matching.bases import bases_for, workers_are_local
from arborcast.dispatch.matching.unmatched import Unmatched
from arborcast.dispatch.matching.view import RoutingView
from arborcast.dispatch.monitoring.in_flight_gauge import InFlightGauge
from arborcast.dispatch.monitoring.metrics import JobMetrics
from arborcast.dispatch.monitoring.sources import FollowerFigures, Sources, Watched, progress_of
from arborcast.dispatch.operations.erasure import Eraser
from arborcast.dispatch.realtime.mode_controller import ModeController
from arborcast.dispatch.recording.compaction import SparkCompactor
from arborcast.dispatch.recording.recording import Recording
from arborcast.dispatch.recording.slo import SloTable
from arborcast.dispatch.redelivery.events import OperatorEvent
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import JobSettings
from arborcast.dispatch.spark.query_supervisor import CHECK_S, StopGate, StopRequested
from arborcast.dispatch.spark.source import read_log
from arborcast.dispatch.tables import SLO
from arborcast.dispatch.tables.delta_table import rows_of
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.projections.erasures import covering

logger = logging.getLogger(__name__)

RunSink = Callable[[DataFrame], object]


def warm_up(spark: SparkSession, kafka: KafkaSettings, run_sink: RunSink, slots: int) -> None:
    """Run the whole path once without notifications. `run_sink` runs the sink over a frame with the source's columns.

    Without it the first notification after a start takes 2-6 s, with it 0.2 s: classes, code generation, Python
    workers, connections, the table. A record without outcomes goes through the attempts log, and one micro-batch over
    it from Kafka through the sink; nothing is pushed or recorded.

    Raises InfrastructureError without Kafka. Other failures are logged: the query will report them.
    """
    started = time.monotonic()
    with closing(LogWriter(kafka, "attempts")) as log:
        offset = log.append_encoded([(attempts.key_of(NO_BATCH), attempts.encode())])
    try:
        # One task for each slot, so that each has a worker with its connections.
        run_sink(empty_frame(spark, slots))
        _run_batch(spark, kafka, offset, run_sink)
    except Exception:
        logger.warning("the warm-up failed; the first notifications will take longer", exc_info=True)
    logger.info("warmed up in %.1f s", time.monotonic() - started)


def empty_frame(spark: SparkSession, partitions: int) -> DataFrame:
    """No rows in this number of partitions, with the columns of the sink."""
    rows = spark.range(0, partitions, 1, partitions).selectExpr(
        "cast(cast(id as string) as binary) as value", "cast(id as int) as partition", "id as offset"
    )
    return rows.where("offset < 0")


def _run_batch(spark: SparkSession, kafka: KafkaSettings, offset: int, run_sink: RunSink) -> None:
    def batch(frame: DataFrame, number: int) -> None:
        run_sink(frame.select("value", "partition", "offset").where("offset < 0"))
        rows_of(frame.select("value").toArrow().column("value").to_pylist())

    # Only the first partition, from the appended record on.
    topic = kafka.topic("attempts")
    source = read_log(
        spark, kafka, "attempts", starting=json.dumps({topic: {"0": offset}}), fail_on_data_loss=False, partitions=[0]
    )
    with tempfile.TemporaryDirectory(prefix="arborcast-warm-up-", ignore_cleanup_errors=True) as folder:
        query = (
            source.writeStream.queryName("warm-up")
            .trigger(availableNow=True)
            .option("checkpointLocation", f"file://{folder}")  # as in `JobSettings.checkpoint`
            .foreachBatch(batch)
            .start()
        )
        if not query.awaitTermination(60):
            query.stop()


# Timeout of the first read of the control log: a million subscriptions take about 15 s.
_FIRST_READ_S = 300.0

# Time for which other services wait for the start of the query, and interval of later checks.
_START_S = 60.0
_LATE_S = 1.0

# Spark ends idle Python workers after 60 s.
_KEEP_WARM_S = 40.0

# A stop waits for the current batch, as long as a batch waits for slow receivers, plus this time for the last writes.
_STOP_MARGIN_S = 5.0

# The redelivery stops at the same time as the batch. Its pushes may take long; those that do not end in time are
# repeated after the next start.
_REDELIVERY_STOP_S = 4.0

# Unfinished writes are repeated after the next start.
_RECORDING_STOP_S = 3.0


class DispatchJob:
    """The query and the threads beside it."""

    def __init__(
        self, spark: SparkSession, settings: JobSettings, gate: StopGate, metrics: JobMetrics | None = None
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._gate = gate
        self._view = RoutingView(
            settings.kafka,
            spark.sparkContext,
            bases_for(spark.sparkContext, settings.home / "routing"),
            unmatched=Unmatched(settings.kafka, lambda: self.modes.positions()),
        )
        self._metrics = metrics = metrics or JobMetrics()
        metrics.slo_target = settings.slo.target
        self._gauge = InFlightGauge(settings.home / "run" / "pushes") if workers_are_local(spark.sparkContext) else None
        self._events = OperatorEvents(settings.kafka, self._view)
        self._redeliverer = Redeliverer(
            settings.kafka,
            settings.push,
            settings.retry,
            settings.outbound,
            self._view,
            settings.home / "parked" / "parked.sqlite",
            SecretOpener(settings.secrets),
            self._events.publish,
            make_push_spans(settings.tracing),
            settings.mqtt,
        )
        self._control = ControlLog(settings.kafka)
        eraser = Eraser(
            settings.kafka,
            self._view,
            lambda: self.modes.written(),
            self._control.append,
            lambda spec: spec.location(settings.tables, settings.home),
            archive=settings.tables.archive,
            unused_files_hours=settings.tables.unused_files_hours,
        )
        self._recording = recording = Recording(
            settings.kafka,
            settings.tables,
            settings.home,
            gate,
            health=self._redeliverer.health.everything,
            control_position=lambda: self._view.catch_up(settings.kafka.request_timeout_s),
            routes=self._view.routes,
            recorded=metrics.recorded,
            joiner=SparkCompactor(spark, settings.dispatch.task_slots)
            if settings.tables.upkeep_by == "spark"
            else None,
            publish=self._events.publish,
            operation=metrics.operation,
            slo=SloTable(
                settings.kafka,
                SLO.location(settings.tables, settings.home),
                settings.slo.latency_s,
                self._owner_of,
                metrics.objective,
                min(60.0, 12 * settings.tables.interval_s),
            ),
            erased=lambda notification: covering(self._view.erasures.scopes, notification),
            eraser=eraser,
        )
        self._deadlines = deadlines = DeadlineWatch(
            settings.kafka,
            self._view,
            lambda: self.modes.matched(),
            lambda: self.modes.mode == "realtime",
            self._publish_deadline,
        )

        def apply(reports: Sequence[PartitionReport]) -> None:
            self._redeliverer.batch_done(reports)
            deadlines.apply(reports)

        self.modes = ModeController(
            JobParts(spark, settings, self._view, self._redeliverer, gate, metrics, apply, self._gauge)
        )
        self._hot = self.modes.supervisor
        watched = {
            "push": Watched("notifications", lambda: progress_of(self._hot.query, self.modes.positions())),
            "record": Watched("attempts", lambda: recording.attempts.progress),
        }
        if archive := recording.archive:
            watched["archive"] = Watched("notifications", lambda: archive.progress)
        redelivery = self._redeliverer.statistics
        followers = FollowerFigures(settings.kafka, watched)
        metrics.sources = Sources(
            view=lambda: self._view.size,
            waiting=lambda: {"parked": (current := redelivery()).parked, "due": current.due},
            redelivery_failures=lambda: float(redelivery().failures),
            breakers=lambda: {str(state): count for state, count in redelivery().breakers.items()},
            health=self._redeliverer.health.everything,
            pushes=self._pushes,
            notices=lambda: float(self._events.stored),
            queues=lambda: redelivery().queues,
            erasures=lambda: float(eraser.open),
            erased=lambda: float(eraser.erased),
            lag=followers.lag,
            behind=recording.behind,
            progress=followers.progress,
        )

    @property
    def rounds(self) -> int:
        """The loop count of the redelivery's thread."""
        return self._redeliverer.rounds

    def run(self, ready: Callable[[], None]) -> bool:
        """Run until the gate closes; `ready` is called when the engine delivers within its usual latency.

        Returns False if the query could not be kept running. Raises InfrastructureError if Kafka is unavailable at the
        start.
        """
        try:
            self._control.ensure_created()
            self.modes.open()
            self._open()
            self._gate.raise_if_closed()
            self._events.start()
            self._hot.start()
            delivers = self._delivers(_START_S)
            if delivers:
                ready()
            self.modes.watch()
            self._deadlines.start()
            self._recording.start()
            while not delivers and not self._gate.closed:
                # After a crash with a backlog the start reads back for minutes.
                if delivers := self._delivers(_LATE_S):
                    ready()
            self._keep_warm()
        except StopRequested:
            logger.info("stopped during the start")
        finally:
            self._stop()
        return not self._hot.gave_up

    def _delivers(self, timeout_s: float) -> bool:
        return self._hot.wait_running(timeout_s) and self.modes.wait_ready(timeout_s)

    def _owner_of(self, subscription_id: str) -> str:
        subscription = self._view.subscription(subscription_id)
        return subscription.owner if subscription is not None else ""

    def _publish_deadline(self, event: OperatorEvent) -> None:
        self._metrics.deadline(event.kind)
        self._events.publish(event)

    def _pushes(self) -> dict[str, float]:
        of_batches = {"batch": float(self._gauge.total())} if self._gauge else {}
        return {**of_batches, "redelivery": float(self._redeliverer.statistics().in_flight)}

    def _open(self) -> None:
        """Read the parked deliveries while Spark warms up: one uses Python and Kafka, the other JVM and workers."""
        with pool("open-parked", 1) as executor:
            parked = executor.submit(self._redeliverer.start, _FIRST_READ_S)
            try:
                self._warm_up()
                # Gigabytes take minutes: a stop does not wait for them.
                while not parked.done():
                    self._gate.raise_if_closed()
                    with suppress(TimeoutError):
                        parked.result(CHECK_S)
                parked.result()
            except BaseException:
                self._redeliverer.begin_stop(0.0)  # otherwise the pool would wait for it
                raise

    def _warm_up(self) -> None:
        settings = self._settings
        view = self._view.refresh(_FIRST_READ_S)
        self._gate.raise_if_closed()
        self._recording.open()
        gauge_file = self._gauge.file if self._gauge else ""
        job = SinkJob(settings=settings, number=NO_BATCH, gauge_file=gauge_file, view=view)
        warm_up(
            self._spark,
            settings.kafka,
            lambda frame: run_sink(frame, job, accumulator(frame)),
            settings.dispatch.task_slots,
        )

    def _keep_warm(self) -> None:
        """Keep Spark from ending idle workers until the gate closes."""
        while not self._gate.wait_closed(_KEEP_WARM_S):
            if self.modes.mode == "realtime":
                continue  # its tasks keep the workers
            try:
                empty_frame(self._spark, 1).foreachPartition(keep_worker_alive)
            except Exception as error:  # of pyspark, or py4j's for a task that has failed
                logger.info("the workers could not be kept: %s", error)

    def _stop(self) -> None:
        self._gate.close()
        if self._gauge is not None:
            self._gauge.show_stop(True)
        self._deadlines.stop()
        self._redeliverer.begin_stop(_REDELIVERY_STOP_S)
        patience_s = 2 * self._settings.retry.batch_wait_s + _STOP_MARGIN_S
        if not self._gate.wait_empty(patience_s):
            logger.warning("a batch is still in progress; the next start repeats its pushes without a row")
        self.modes.stop(patience_s)
        self._hot.stop(timeout_s=5.0)
        if self._gauge is not None:
            self._gauge.show_stop(False)  # the session may have another job
        self._recording.stop(_RECORDING_STOP_S)
        self._redeliverer.stop(_REDELIVERY_STOP_S)
        self._events.stop(timeout_s=1.0)
        self._control.close()
        self._view.close()
