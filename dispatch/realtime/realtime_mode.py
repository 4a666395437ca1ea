"""The real-time mode on the driver: its query, the workers of a run, updates to them and their reports."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.core.broadcast import Broadcast
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from arborcast.core import fence
from arborcast.core.errors import InfrastructureError
from arborcast.dispatch.hot.intervals import Passed
from arborcast.dispatch.hot.recovered import RecoveredDeliveries, StartState
from arborcast.dispatch.hot.stream import JobParts
from arborcast.dispatch.matching.bases import workers_are_local
from arborcast.dispatch.realtime.driver import ProgressListener, WorkerUpdates
from arborcast.dispatch.realtime.query import RUN_S, KnownEnds, realtime_session, start_realtime
from arborcast.dispatch.realtime.task import RealtimeJob, clock_of
from arborcast.dispatch.realtime.workers import LocalWorkers, remote_workers
from arborcast.dispatch.spark.query_supervisor import StopRequested
from arborcast.dispatch.spark.source import remove_checkpoint

logger = logging.getLogger(__name__)

_FEW_SLOTS_HERE = "mode: batch, since %d partitions need as many dispatch.task_slots, and there are %d"
_FEW_SLOTS = (
    "mode: batch, until the cluster has a task slot (a core of an executor) for each of the %d partitions of the "
    "notifications log; now it has %d. Add workers or cores, or set dispatch.mode = batch"
)


class RealtimeMode:
    """Starts and ends runs. Used under the lock of `ModeController`, except `show` and `_has_failed`."""

    def __init__(self, parts: JobParts) -> None:
        self._parts = parts
        self.here = workers_are_local(parts.spark.sparkContext)
        """Whether the workers are on the driver's host."""
        kafka = parts.settings.kafka
        self._workers = LocalWorkers() if self.here else remote_workers(kafka, self._wait, self._has_failed)
        self.listener = ProgressListener(kafka, lambda report: parts.take_reports([report]), self._workers)
        self._session: SparkSession | None = None
        self._updates: WorkerUpdates | None = None
        self._query: StreamingQuery | None = None  # of the last run
        self._ends: KnownEnds | None = None  # of the last run, if its tasks are in this JVM
        self._ends_at = math.inf  # by the monotonic clock
        self._short = False  # too few task slots

    def start(
        self,
        run: int,
        begin: StartState,
        recovered: Broadcast[RecoveredDeliveries] | None,
        passed: Passed,
        ends: Mapping[int, int],
        write_start: Callable[[], None],
    ) -> StreamingQuery:
        """Start the query of a run. `ends` are those of the `notifications` log; `write_start` is called before a task
        begins. Raises InfrastructureError."""
        parts = self._parts
        # First: remaining tasks of an earlier run stop when they read about this one.
        self.listener.begin(run, len(begin.positions))
        self._updates = updates = WorkerUpdates(
            parts.settings.kafka, parts.view, lambda: parts.exclusions(patient=True), run, one_base=not self.here
        )
        updates.start()
        write_start()
        if parts.gauge is not None:
            parts.gauge.clear()
        job = RealtimeJob(
            settings=parts.settings,
            number=run,
            recovered=recovered,
            passed=passed,
            gauge_file=parts.gauge.file if parts.gauge is not None else "",
            began_s=clock_of(self.here)(),
            again=ends if recovered is not None else {},
            since=begin.since,
            topic=begin.topic,
            base=None if self.here else updates.base,
        )
        remove_checkpoint(parts.spark, checkpoint := parts.settings.checkpoint("realtime"))
        if self._session is None:
            self._session = realtime_session(parts.spark)
        if self.here:
            self._ends = KnownEnds(parts.spark, parts.settings.kafka.topic("notifications"), run)
            self._ends.show(ends)
        # Workers on other hosts do not check the lease of this job.
        fence.wait(parts.gate.raise_if_closed)
        self._query = start_realtime(self._session, job, begin, checkpoint)
        self._ends_at = time.monotonic() + RUN_S
        return self._query

    def show(self, ends: Mapping[int, int]) -> None:
        """Set the end of the `notifications` log for tasks in this JVM."""
        if (known := self._ends) is not None:
            known.show(ends)

    @property
    def outdated(self) -> bool:
        """Whether the workers need a newer base than that of their run."""
        return self._updates is not None and self._updates.outdated

    @property
    def is_over(self) -> bool:
        """Whether the run has reached its maximum duration."""
        return time.monotonic() > self._ends_at

    def drain(self, timeout_s: float) -> bool:
        """Let the tasks settle their messages; returns whether all have, and have left none to the next run."""
        if self._updates is None:
            return False
        try:
            self._updates.request_stop()
        except InfrastructureError as error:
            logger.warning("the request to stop could not be sent to the workers: %s", error)
            return False
        if not self.listener.wait_stopped(timeout_s):
            logger.warning("not all pushes ended in time; some will be repeated")
            return False
        return self.listener.settled

    def stop_updates(self) -> None:
        if self._updates is not None:
            self._updates.stop()
            self._updates = None

    def end(self) -> None:
        """End the workers of all earlier runs; returns when none of them begins a push any more."""
        if self._ends is not None:
            self._ends.forget()
            self._ends = None
        self.stop_updates()
        self.listener.end_workers()
        self._workers.wait_ended()

    def has_slots(self, partitions: int) -> bool:
        """Whether there is a task slot for each partition; the number of a cluster's slots may change."""
        short = partitions > (slots := self._slots())
        if short and not self._short:
            logger.warning(_FEW_SLOTS_HERE if self.here else _FEW_SLOTS, partitions, slots)
        self._short = short
        return not short

    def _slots(self) -> int:
        """The slots of the cluster, without one if its executors compact the tables' files, too: a task of this mode
        never ends."""
        context: Any = self._parts.spark.sparkContext._jsc.sc()  # noqa: SLF001  # pyspark has no public way to this
        slots = int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
        return slots - (self._parts.settings.tables.upkeep_by == "spark")

    def _has_failed(self) -> bool:
        """Whether a task of the query has failed in Spark: its worker or executor died."""
        query, tracker = self._query, self._parts.spark.sparkContext.statusTracker()
        if query is None:
            return False
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(query.runId))]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return any(stage is not None and stage.numFailedTasks for stage in stages)

    def _wait(self, seconds: float) -> None:
        if self._parts.gate.wait_closed(seconds):
            raise StopRequested
