"""The hot query: from the `notifications` log to the sink, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from pyspark.accumulators import Accumulator
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from arborcast.core import fence
from arborcast.dispatch.hot.earlier import Beginning, Earlier, newest_batch, recall
from arborcast.dispatch.hot.intake import Diversions
from arborcast.dispatch.hot.intervals import Asking, Lane, Passed, recall_passed
from arborcast.dispatch.hot.sink import SinkJob, push_partition
from arborcast.dispatch.matching.view import RoutingView
from arborcast.dispatch.monitoring.metrics import JobMetrics, Stages
from arborcast.dispatch.monitoring.under_way import UnderWay
from arborcast.dispatch.redelivery.partition_reports import PartitionReport, Reports
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import JobSettings
from arborcast.dispatch.spark.checkpoint_repair import HadoopFolder, first_number
from arborcast.dispatch.spark.query_supervisor import StopGate, StopRequested
from arborcast.dispatch.spark.source import read_log

# Before anything is known: a quick worker has done so many in a fifth of a second, a very slow one in ten.
_FIRST = 1_000

# Each round costs Spark a job, and reading the batch's rows again: some 50 to 100 ms.
_FEWEST = 100

# More at once would only be a guess.
_MOST_GROWTH = 4.0


class Rounds:
    """Each is to take about `target_s`. `most` is how many deliveries a task may take up in the next one.

    Counted in deliveries, not in notifications: how many of them a worker manages in a second depends on the machine
    and the receivers, and changes slowly; how many deliveries a notification comes to may change with the next one.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self.most = _FIRST

    def took(self, seconds: float) -> None:
        """A round in which some task had all that it might have took so long."""
        growth = self._target_s / max(seconds, 0.001)
        self.most = max(_FEWEST, int(self.most * min(growth, _MOST_GROWTH)))


# Reading back what a batch that was cut off has written: some 100,000 attempts a second.
_RECALL_S = 300.0


class HotPath:
    """What a batch does: read the control log to its end, hand the view to the workers, run the sink, take in what it
    reports."""

    def __init__(
        self,
        settings: JobSettings,
        view: RoutingView,
        redeliverer: Redeliverer,
        gate: StopGate,
        metrics: JobMetrics,
        learn: Callable[[Sequence[PartitionReport]], None],
        under_way: UnderWay | None = None,
    ) -> None:
        """`learn` is called with what the tasks of a round have reported."""
        self._settings = settings
        self._kafka = settings.kafka
        self._view = view
        self._learn = learn
        self._redeliverer = redeliverer
        self._gate = gate
        self._metrics = metrics
        self._under_way = under_way
        self._reports: Accumulator[list[PartitionReport]] | None = None
        # The first batch may be one that another process had begun.
        self._repeating = True
        self.resuming = True
        """Whether the next batch may be one that was cut off before the query was started."""
        self._first_number = 0
        self._pausing = False
        self._known: Broadcast[Earlier] | None = None
        self.positions: dict[int, int] = {}
        """The offsets behind the last batch that is done, of the partitions that have had any."""
        self._rounds = Rounds(settings.dispatch.round_s)
        self._asking = Asking(view)
        self._passed: Passed = {}  # before the next batch

    def start(
        self,
        spark: SparkSession,
        checkpoint: str,
        begin: Beginning | None = None,
    ) -> StreamingQuery:
        """Start the query. It has no trigger: the next batch begins when the last is done, or as soon as something
        comes (Spark looks every `idle_poll_ms`). The redelivery has to know all that is parked. Where the checkpoint is
        new it begins as `begin` says, or by the settings.

        Raises InfrastructureError when the checkpoint is new, and the logs cannot be asked for its numbers.
        """
        self.positions = {} if begin is None else dict(begin.positions)
        newest = self._newest_batch if begin is None else lambda: begin.newest
        self._first_number = first_number(HadoopFolder(spark, checkpoint), newest)
        self._pausing = False
        self._repeating = self.resuming = begin is None
        if self._known is not None:
            self._known.destroy()
        self._known = spark.sparkContext.broadcast(begin.earlier) if begin is not None else None
        self._passed = {} if begin is None else self.passed_before(begin.positions)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "push")
        source = read_log(
            spark,
            self._kafka,
            "notifications",
            starting=self._settings.dispatch.starting_offsets if begin is None else begin.starting(self._kafka),
            fail_on_data_loss=self._settings.dispatch.fail_on_data_loss,
            most=self._settings.dispatch.max_rows_per_batch,
        )
        return (
            # A batch that is repeated has the time at which it was planned first.
            source.select("value", "partition", "offset", F.unix_millis(F.current_timestamp()).alias("planned_ms"))
            .writeStream.queryName("push-notifications")
            .option("checkpointLocation", checkpoint)
            .foreachBatch(self.run_batch)
            .start()
        )

    def pause(self) -> None:
        """Begin no further batch; returns when none is under way. `positions` are where to go on then."""
        self._pausing = True
        self._gate.wait_empty()

    def run_batch(self, frame: DataFrame, batch: int) -> None:
        """Dispatch one batch, by Spark's number; returns when every outcome is in the `attempts` log, or parked.

        Most batches are done in one round. A long one (a backlog) takes several, each as long as `rounds` say. At the
        beginning of each round it is known what has become of subscriptions, what is parked and which endpoints are
        degraded, and the job can stop between two. Spark cannot plan smaller batches while a query runs.
        """
        with self._gate.batch(), self._metrics.batch() as stages, ExitStack() as after:
            if self._pausing:
                raise StopRequested
            number = self._first_number + batch
            earlier = self._known
            if self._repeating:
                earlier = self._before(frame, number)
                if earlier is not None:
                    after.callback(earlier.destroy)
                self._passed = self._passed_before(frame)
            self._repeating = True
            stages.over("recall")
            done: dict[int, int] = {}
            passed = dict(self._passed)
            while self._round(frame, number, earlier, done, passed, stages):
                # The rest is repeated by the next start, without what is done.
                self._gate.pass_on()
            self._repeating = self.resuming = False
            self._passed = passed
            self.positions |= {partition: offset + 1 for partition, offset in done.items()}

    def _round(
        self,
        frame: DataFrame,
        number: int,
        earlier: Broadcast[Earlier] | None,
        done: dict[int, int],
        passed: dict[int, Mapping[Lane, int]],
        stages: Stages,
    ) -> bool:
        """Dispatch as much of a batch as one round may take, behind what is `done`; whether there is more.

        The control log is read to its end first: a notification that was accepted after a Subscribe was answered meets
        that subscription. What is parked is known before the next round begins, so nothing overtakes it.
        """
        # Workers on other hosts do not see whether the lease holds.
        fence.wait(self._gate.pass_on)
        view = self._view.refresh(self._kafka.request_timeout_s)
        stages.over("view", ("control", self._view.read_s))
        job = SinkJob(
            self._settings,
            view,
            number,
            int(time.time() * 1000),
            self._diversions(),
            earlier,
            self._under_way.file if self._under_way else "",
            done.copy(),
            self._rounds.most,
            passed.copy(),
            self._held(),
        )
        began = time.monotonic()
        reports = self._run(frame, job)
        stages.over("job")
        self._learn(reports)
        if any(report.repeated for report in reports):
            # What the dead worker has parked was not reported.
            self._redeliverer.catch_up(self._kafka.request_timeout_s)
        stages.over("feedback")
        rest = any(report.rest for report in reports)
        if rest:
            self._rounds.took(time.monotonic() - began)
        for report in reports:
            done.update(report.done)
            passed.update(report.passed)
        return rest

    def passed_before(self, positions: Mapping[int, int]) -> Passed:
        """What has passed before these positions, for minimum intervals. Raises InfrastructureError."""
        return recall_passed(self._kafka, self._asking.policies(), positions, _RECALL_S)

    def _passed_before(self, frame: DataFrame) -> Passed:
        """The same of a batch that may have been begun before."""
        if not self._asking.policies():
            return {}
        firsts = frame.groupBy("partition").agg(F.min("offset").alias("first")).collect()
        return self.passed_before({row["partition"]: row["first"] for row in firsts})

    def _run(self, frame: DataFrame, job: SinkJob) -> list[PartitionReport]:
        try:
            reports = run_sink(frame.select("value", "partition", "offset"), job, self._accumulator(frame))
        finally:
            if self._under_way is not None:
                self._under_way.clear()
        self._metrics.dispatched(
            sum(report.notifications for report in reports),
            sum(report.deliveries for report in reports),
            sum(report.thinned for report in reports),
        )
        return reports

    def _newest_batch(self) -> int:
        return max(newest_batch(self._kafka, _RECALL_S), self._redeliverer.newest_batch())

    def _before(self, frame: DataFrame, batch: int) -> Broadcast[Earlier] | None:
        """What an earlier run of this batch, in this process or another, has come to."""
        first = frame.select("planned_ms").first()
        if first is None:
            return None
        settled = recall(self._kafka, batch, first.planned_ms, _RECALL_S)
        # What it has parked was perhaps not reported, and must not be overtaken either.
        self._redeliverer.catch_up(_RECALL_S)
        return frame.sparkSession.sparkContext.broadcast(Earlier(settled)) if settled else None

    def _held(self) -> frozenset[str]:
        return self._redeliverer.lanes.for_batch() | self._view.all_suspended()

    def _diversions(self) -> Diversions:
        health = self._redeliverer.health
        return Diversions(
            degraded=health.degraded(),
            watched=health.watched(),
            unjudged=self._view.all_unjudged(),
            on_trial=health.on_trial(int(time.time() * 1000)),
        )

    def _accumulator(self, frame: DataFrame) -> Accumulator[list[PartitionReport]]:
        if self._reports is None:
            self._reports = accumulator(frame)
        return self._reports


def accumulator(frame: DataFrame) -> Accumulator[list[PartitionReport]]:
    """A new collection of reports. Spark keeps every accumulator for ever, so one is used for all batches."""
    empty: list[PartitionReport] = []
    return frame.sparkSession.sparkContext.accumulator(empty, Reports())


def run_sink(frame: DataFrame, job: SinkJob, reports: Accumulator[list[PartitionReport]]) -> list[PartitionReport]:
    """Run the sink over a batch; what its partitions have reported."""
    reports.value = []
    frame.foreachPartition(partial(push_partition, job, reports))
    return reports.value
