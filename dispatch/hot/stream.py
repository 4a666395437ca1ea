"""The hot query: from the `notifications` log to the sink, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from pyspark.accumulators import Accumulator
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from arborcast.core import fence
from arborcast.core.wall_clock import time_ms
from arborcast.dispatch.hot.intake import Exclusions
from arborcast.dispatch.hot.intervals import IntervalPolicies, Passed, read_passed
from arborcast.dispatch.hot.recovered import OutcomeLogs, RecoveredDeliveries, StartState
from arborcast.dispatch.hot.sink import SinkJob, push_partition
from arborcast.dispatch.logs.attempts import NO_BATCH
from arborcast.dispatch.matching.view import RoutingView
from arborcast.dispatch.monitoring.in_flight_gauge import InFlightGauge
from arborcast.dispatch.monitoring.metrics import JobMetrics, Stages
from arborcast.dispatch.redelivery.partition_reports import PartitionReport, Reports
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import JobSettings
from arborcast.dispatch.spark.query_supervisor import StopGate, StopRequested
from arborcast.dispatch.spark.source import read_log

# The first value: a quick worker completes this number in a fifth of a second, a very slow one in ten seconds.
_FIRST = 1_000

# Each round costs a Spark job, and reading the batch's rows again: some 50 to 100 ms.
_FEWEST = 100

_MOST_GROWTH = 4.0


class Rounds:
    """The size of rounds of about `target_s`. `most` is the maximum of deliveries of a task in the next round: a
    worker's rate of deliveries changes slowly, while the number of recipients may change with each notification."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self.most = _FIRST

    def measured(self, seconds: float) -> None:
        """Adapt to the duration of a round in which a task reached its maximum."""
        growth = self._target_s / max(seconds, 0.001)
        self.most = max(_FEWEST, int(self.most * min(growth, _MOST_GROWTH)))


# Bytes of the rows of a partition in a batch, after one with too many: each round reads them again.
_BATCH_BYTES = 64 * 1024 * 1024

# A query with a larger maximum is started when the rows of full batches have less than this share of the bytes.
_SMALL_BATCH = 8


class BatchSize:
    """The maximum number of notifications in a batch. Each round reads the rows of its batch again, and Spark can limit
    their number only, for a whole query: after a batch with too many bytes another query has a lower maximum."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows = most
        self.outdated = False
        """Whether another query should begin, with `rows`."""

    def read(self, reports: Sequence[PartitionReport]) -> None:
        """Adapt to the rows that the tasks of a round have read."""
        rows, size = sum(report.read for report in reports), sum(report.size for report in reports)
        room = _BATCH_BYTES * sum(report.read > 0 for report in reports)
        full = 2 * rows > self.rows and not any(report.rest for report in reports)
        is_small = full and self.rows < self._most and size * _SMALL_BATCH < room
        if rows and (is_small or any(report.unread for report in reports)):
            self.rows = min(self._most, max(1, rows * room // max(size, 1)))
            self.outdated = True


# Length of a round of a longer batch: changes of subscriptions and a stop take effect between two rounds.
_ROUND_S = 3.0


@lru_cache(maxsize=1)
def _union(held: frozenset[str], suspended: frozenset[str]) -> frozenset[str]:
    """The same object for the same objects: ten comparisons in a second cost nothing while nothing changes."""
    return held | suspended


class JobParts(NamedTuple):
    """Parts shared by the modes. `apply` is called with the reports of tasks."""

    spark: SparkSession
    settings: JobSettings
    view: RoutingView
    redeliverer: Redeliverer
    gate: StopGate
    metrics: JobMetrics
    apply: Callable[[Sequence[PartitionReport]], None]
    gauge: InFlightGauge | None = None

    def exclusions(self, patient: bool = False) -> Exclusions:
        """Lanes, endpoints, subscriptions and notifications that workers must not push. `patient` is as for
        `Health.on_trial`."""
        health = self.redeliverer.health
        held, read = self.redeliverer.lanes.for_workers()
        return Exclusions(
            _union(held, self.view.all_suspended()),
            read,
            health.degraded(),
            health.watched(),
            self.view.all_unjudged(),
            health.on_trial(time_ms(), patient=patient),
            self.view.erasures.for_workers,
        )

    def take_reports(self, reports: Sequence[PartitionReport]) -> None:
        self.apply(reports)
        self.metrics.dispatched(
            sum(report.notifications for report in reports),
            sum(report.deliveries for report in reports),
            sum(report.thinned for report in reports),
        )


class HotPath:
    """A batch: read the control log to its end, send the view to the workers, run the sink, apply its reports."""

    def __init__(self, parts: JobParts) -> None:
        self._parts = parts
        self._reports: Accumulator[list[PartitionReport]] | None = None
        self._first_number = NO_BATCH
        self._pausing = False
        self._recovered: Broadcast[RecoveredDeliveries] | None = None  # of the current query
        self._write: Callable[[Mapping[int, int]], None] = lambda positions: None
        self.positions: Mapping[int, int] = {}
        """The offsets behind the last round, by partition."""
        self.clean = False
        """Whether no push was started behind these: a query was started, and no round is in progress or failed."""
        self._rounds = Rounds(_ROUND_S)
        self.batch_size = BatchSize(parts.settings.dispatch.max_rows_per_batch)
        self._interval_policies = IntervalPolicies(parts.view)
        self._passed: Passed = {}  # before the next batch
        self._outcomes = OutcomeLogs(parts.settings.kafka)

    def start(
        self,
        checkpoint: str,
        run: int,
        begin: StartState,
        recovered: Broadcast[RecoveredDeliveries] | None,
        write: Callable[[Mapping[int, int]], None],
    ) -> StreamingQuery:
        """Start the query with an empty checkpoint, at the positions of the log `progress`. It has no trigger: the next
        batch begins when the last is done, or when records arrive. The redelivery must have read the parked log.
        Raises InfrastructureError."""
        spark, kafka, dispatch = self._parts.spark, self._parts.settings.kafka, self._parts.settings.dispatch
        self.positions = dict(begin.positions)
        self._first_number, self._write, self._pausing = run, write, False
        self.clean = True
        self._recovered = recovered
        self._passed = self.passed_before(begin.positions)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "push")
        source = read_log(
            spark,
            kafka,
            "notifications",
            starting=begin.starting(kafka),
            fail_on_data_loss=dispatch.fail_on_data_loss,
            most=self.batch_size.rows,
        )
        return (
            source.select("value", "partition", "offset")
            .writeStream.queryName("push-notifications")
            .option("checkpointLocation", checkpoint)
            .foreachBatch(self.run_batch)
            .start()
        )

    def pause(self) -> None:
        """Begin no further round, and wait for the current one. `positions` are then final. Raises StopRequested if the
        gate is closed meanwhile."""
        self._pausing = True
        self._parts.gate.wait_empty()
        self._parts.gate.raise_if_closed()
        self.batch_size.outdated = False

    def run_batch(self, frame: DataFrame, batch: int) -> None:
        """Dispatch one batch, with Spark's number; returns when every outcome is in the `attempts` log, or parked.
        Spark never repeats a batch: after a failure the query restarts after the last round.

        Most batches have one round. A backlog has several, since Spark cannot plan smaller batches while a query runs:
        each begins with the current subscriptions, parked deliveries and degraded endpoints, and the job can stop
        between two rounds."""
        with self._parts.gate.batch(), self._parts.metrics.batch() as stages:
            done: dict[int, int] = {}
            rest = True
            while rest:
                # The next start dispatches the remaining rows.
                self._parts.gate.raise_if_closed()
                if self._pausing:
                    raise StopRequested
                rest = self._round(frame, self._first_number + batch, done, stages)

    def _round(self, frame: DataFrame, number: int, done: dict[int, int], stages: Stages) -> bool:
        """Dispatch one round behind the offsets `done`; returns whether rows are left. The control log is read to its
        end first, for read your writes. The parked log is read before the next round, so no delivery is overtaken."""
        parts, timeout_s = self._parts, self._parts.settings.kafka.request_timeout_s
        # Workers on other hosts do not check the lease.
        fence.wait(parts.gate.raise_if_closed)
        view = parts.view.refresh(timeout_s)
        stages.over("view", ("control", parts.view.read_s))
        job = SinkJob(
            settings=parts.settings,
            number=number,
            recovered=self._recovered,
            passed=self._passed,
            gauge_file=parts.gauge.file if parts.gauge else "",
            view=view,
            outcomes=self._outcomes.ends(),
            exclusions=parts.exclusions(),
            done=done.copy(),
            most=self._rounds.most,
        )
        began = time.monotonic()
        self.clean = False
        reports = self._run(frame, job)
        stages.over("job")
        parts.take_reports(reports)
        if any(report.repeated for report in reports):
            # Parked deliveries of the dead worker were not reported.
            parts.redeliverer.catch_up(timeout_s)
        stages.over("feedback")
        self.batch_size.read(reports)
        rest = any(report.rest for report in reports)
        if rest:
            self._rounds.measured(time.monotonic() - began)
        for report in reports:
            done.update(report.done)
            self._passed = {**self._passed, **report.passed}
        done_to = {partition: offset + 1 for report in reports for partition, offset in report.done.items()}
        self.positions = {**self.positions, **done_to}
        self.clean = not any(report.left for report in reports)
        self._write(done_to)
        return rest

    def passed_before(self, positions: Mapping[int, int]) -> Passed:
        """The minimum intervals that have begun before these positions. Raises InfrastructureError."""
        return read_passed(self._parts.settings.kafka, self._interval_policies.policies(), positions)

    def _run(self, frame: DataFrame, job: SinkJob) -> list[PartitionReport]:
        if self._reports is None:
            self._reports = accumulator(frame)
        try:
            return run_sink(frame, job, self._reports)
        finally:
            if self._parts.gauge is not None:
                self._parts.gauge.clear()


def accumulator(frame: DataFrame) -> Accumulator[list[PartitionReport]]:
    """A new collection of reports. Spark never frees an accumulator, so one is used for all batches."""
    empty: list[PartitionReport] = []
    return frame.sparkSession.sparkContext.accumulator(empty, Reports())


def run_sink(frame: DataFrame, job: SinkJob, reports: Accumulator[list[PartitionReport]]) -> list[PartitionReport]:
    """Run the sink over a batch; returns the reports of its partitions."""
    reports.value = []
    frame.foreachPartition(partial(push_partition, job, reports))
    return reports.value
