"""The gears: notifications one by one, at once (realtime), or many together (batch).

Both start where the other has stopped (`recovery`). The real-time gear needs a task slot for each partition of the log,
for as long as it lasts; while a cluster has fewer there are batches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from arborcast.core import fence
from arborcast.core.errors import ArborcastError, InfrastructureError
from arborcast.dispatch.hot.recovered import NOTHING, StartState
from arborcast.dispatch.hot.stream import HotPath
from arborcast.dispatch.logs.attempts import NO_BATCH
from arborcast.dispatch.matching.bases import workers_are_here
from arborcast.dispatch.matching.view import RoutingView
from arborcast.dispatch.monitoring.metrics import JobMetrics
from arborcast.dispatch.monitoring.under_way import UnderWay
from arborcast.dispatch.realtime.driver import Exclusions, ProgressListener, WorkerUpdates
from arborcast.dispatch.realtime.mode_policy import LITTLE, WORTH_ELSEWHERE_S, WORTH_HERE_S, Gear, Load, ModePolicy
from arborcast.dispatch.realtime.query import RUN_S, KnownEnds, realtime_session, start_realtime
from arborcast.dispatch.realtime.recovery import RECALL_S, Recovery, next_run, notifications
from arborcast.dispatch.realtime.task import RealtimeJob, clock_of
from arborcast.dispatch.realtime.workers import WorkersHere, workers_elsewhere
from arborcast.dispatch.redelivery.partition_reports import PartitionReport
from arborcast.dispatch.redelivery.redeliverer import Redeliverer
from arborcast.dispatch.settings import JobSettings
from arborcast.dispatch.spark.checkpoint import remove_checkpoint
from arborcast.dispatch.spark.query_supervisor import QuerySupervisor, StopGate, StopRequested, waits_for_data

logger = logging.getLogger(__name__)

# Tasks settle what they have within the time that a push may take.
_STOP_MARGIN_S = 5.0

# How often it is looked whether the gear is the right one.
_LOOK_S = 0.25

# How often it is looked while nothing comes.
_IDLE_S = 1.0


_NOT_STARTED = StartState({}, NOTHING, NO_BATCH)


class _Seen(NamedTuple):
    """Where the log ended, and when."""

    ends: Mapping[int, int]
    at: float


class ModeController:
    """Starts the query in one gear or the other, and shifts. `start` is the supervisor's to call."""

    def __init__(
        self,
        spark: SparkSession,
        settings: JobSettings,
        hot: HotPath,
        view: RoutingView,
        redeliverer: Redeliverer,
        gate: StopGate,
        metrics: JobMetrics,
        learn: Callable[[Sequence[PartitionReport]], None],
        under_way: UnderWay | None,
    ) -> None:
        """`learn` is called with what the workers report."""
        self._tell_reports = learn
        self._spark = spark
        self._settings = settings
        self._kafka = settings.kafka
        self._hot = hot
        self._view = view
        self._redeliverer = redeliverer
        self._gate = gate
        self._metrics = metrics
        self._under_way = under_way
        self._session: SparkSession | None = None
        self._here = workers_are_here(spark.sparkContext)
        self._box = ModePolicy(WORTH_HERE_S if self._here else WORTH_ELSEWHERE_S)
        workers = WorkersHere() if self._here else workers_elsewhere(settings.kafka, self._wait, self._has_failed)
        self._hearing = ProgressListener(settings.kafka, self._learn, workers)
        self._recovery = Recovery(settings, redeliverer, self._hearing)
        self._feeder: WorkerUpdates | None = None
        self._run = NO_BATCH
        self._began = _NOT_STARTED  # where that run started
        self._begin: StartState | None = None  # where the next start begins, until `progress` has it
        self._may_be = False  # realtime
        self._returns = False  # to it, when the batch gear has done what had to come first
        self._short = False  # of task slots
        self._query: StreamingQuery | None = None  # the last one in real time
        self._ends_at = 0.0  # by the monotonic clock, where nothing ends it earlier
        self._ends: KnownEnds | None = None  # for that one, where its tasks are in this JVM
        self._lock = threading.RLock()
        self.gear: Gear = "batch"
        self._wanted: Gear = "batch"
        self.supervisor = QuerySupervisor("push", self.start, gate, self._at_rest)
        self._thread = threading.Thread(target=self._watch, name="gearbox", daemon=True)

    def open(self) -> None:
        """Before the first start, and long before it: workers of a job before this one, on other hosts, take a while to
        end. Raises InfrastructureError."""
        self._recovery.look()
        self._hearing.read()
        self._hearing.end_workers()
        self._hearing.start()
        self._may_be = self._settings.dispatch.gear != "batch" and self._may_be_realtime()
        if self._may_be:
            self._wanted = "realtime"
        self._metrics.gear = lambda: self.gear

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the workers of the real-time gear are ready, if it is in that one; whether they are."""
        return self.gear == "batch" or self._hearing.wait_ready(self._recovery.partitions, timeout_s)

    def watch(self) -> None:
        """From now on shift, where the settings let us, and see that the tasks have workers."""
        if self._may_be:
            self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """The gate is closed, and batches have had their time: settle what is under way in real time, and write where
        the next start is."""
        with self._lock:
            if self.gear == "realtime":
                self._drain(timeout_s)
            elif self._gate.wait_empty(0) and self._hot.clean:
                self._write_clean()
        self._hearing.stop()
        if self._thread.is_alive():
            self._thread.join(_STOP_MARGIN_S)

    def positions(self) -> Mapping[int, int]:
        """By partition, the offset before which all is settled."""
        known = {number: each.position for number, each in self._hearing.known.items()}
        return known if self.gear == "realtime" else {**known, **self._hot.positions}

    def matched(self) -> Mapping[int, int]:
        """By partition, the offset before which all is matched and reported."""
        if self.gear == "realtime":
            known = self._hearing.known
            return {number: max(each.position, each.taken) for number, each in known.items()}
        return self.positions()

    def worker_processes(self) -> set[int]:
        """Those that have a task of the real-time gear."""
        return self._hearing.processes()

    def start(self) -> StreamingQuery:
        """Start the query in the gear that is wanted, where things were left."""
        with self._lock:
            if self._ends is not None:
                self._ends.forget()
                self._ends = None
            if self._feeder is not None:
                self._feeder.stop()
                self._feeder = None
            self._hearing.end_workers()
            self._hearing.wait_ended()
            # What was parked until now must not be overtaken, whoever has parked it.
            self._redeliverer.catch_up(RECALL_S)
            self._recovery.settle()
            self._hearing.catch_up(self._kafka.request_timeout_s)
            self._begin = begin = self._begin or self._recovery.start_state()
            self._began, self._run = begin, next_run(begin.newest)
            if self._wanted == "realtime":
                if not (begin.batches or self._is_heap(begin)) and self._has_slots():
                    self.gear = "realtime"
                    self._query = self._start_realtime(self._run, begin)
                    self._ends_at = time.monotonic() + RUN_S
                    return self._query
                # First the backlog, or the rest of a batch that was cut off: in a batch a timely message is dropped
                # where a newer one waits; one by one it would be pushed, also behind newer ones pushed before the
                # crash. Or until there are enough task slots.
                self._wanted, self._returns = "batch", True
            self._write_start()
            remove_checkpoint(self._spark, checkpoint := self._settings.checkpoint("push"))
            self.gear = "batch"
            return self._hot.start(self._spark, checkpoint, self._run, begin, self._write_positions)

    def shift(self, gear: Gear) -> None:
        """Change over. Nothing is lost by it, and nothing comes twice if all is settled in time."""
        with self._lock:
            if gear == self._wanted or self._gate.closed:
                return
            if gear == "realtime" and not self._has_slots():
                return
            self._go_over(gear)

    def _go_over(self, gear: Gear) -> None:
        with self._lock:
            began = time.monotonic()
            with self.supervisor.new_beginning():
                if self.gear == "batch":
                    self._hot.pause()
                # A start that failed has begun nothing: the next one begins where that was to.
                if self._begin is None and (self._hot.clean if self.gear == "batch" else self._drain(self._patience_s)):
                    positions = self.positions()
                    if len(positions) == self._recovery.partitions:
                        self._begin = self._began.gone_on(positions, self._recovery.ends, self._run)
                self._wanted, self._returns = gear, False
        logger.info("gear: %s (%.1f s to settle what was under way)", gear, time.monotonic() - began)

    @property
    def _patience_s(self) -> float:
        return 2 * self._settings.retry.batch_wait_s + _STOP_MARGIN_S

    def _may_be_realtime(self) -> bool:
        if self._here and self._recovery.partitions > (slots := self._slots()):
            logger.warning(
                "gear: batch, for %d partitions need as many dispatch.task_slots, and there are %d",
                *(self._recovery.partitions, slots),
            )
            return False
        return True

    def _has_slots(self) -> bool:
        """Whether there is one for each partition; of a cluster's, which may change."""
        short = self._recovery.partitions > (slots := self._slots())
        if short and not self._short:
            logger.warning(
                "gear: batch, until the cluster has a task slot (a core of an executor) for each of the %d partitions "
                "of the notifications log; now it has %d. Add workers or cores, or say dispatch.gear = batch",
                *(self._recovery.partitions, slots),
            )
        self._short = short
        return not short

    def _slots(self) -> int:
        """Those of the cluster, but for one where its executors join the tables' files, too: a task of the real-time
        gear gives none back."""
        context: Any = self._spark.sparkContext._jsc.sc()  # noqa: SLF001  # pyspark does not say what executors have
        slots = int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
        return slots - (self._settings.tables.upkeep_by == "spark")

    def _has_failed(self) -> bool:
        """Whether Spark knows that a task of the real-time query has failed: its worker has died, or its executor."""
        query, tracker = self._query, self._spark.sparkContext.statusTracker()
        if query is None:
            return False
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(query.runId))]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return any(stage is not None and stage.numFailedTasks for stage in stages)

    def _wait(self, seconds: float) -> None:
        if self._gate.wait_closed(seconds):
            raise StopRequested

    def _at_rest(self, query: StreamingQuery) -> bool:
        if self.gear == "batch":
            return waits_for_data(query)
        if self._gate.closed:
            return True
        known = self._hearing.known
        through = all(number in known and known[number].position >= end for number, end in self._recovery.ends.items())
        return through and self._hearing.wait_ready(self._recovery.partitions, 0)

    def _start_realtime(self, run: int, begin: StartState) -> StreamingQuery:
        # First of all: tasks of an earlier run that are still there stop when they hear of this one.
        self._hearing.begin(run, len(begin.positions))
        self._feeder = WorkerUpdates(self._kafka, self._view, self._told, run, one_base=not self._here)
        self._feeder.start()
        self._write_start()
        if self._under_way is not None:
            self._under_way.clear()
        known = self._spark.sparkContext.broadcast(begin.earlier) if begin.since >= 0 else None
        again = self._recovery.ends if begin.since >= 0 else {}
        under_way = self._under_way.file if self._under_way is not None else ""
        passed = self._hot.passed_before(begin.positions)
        base = None if self._here else self._feeder.base
        began_s = clock_of(self._here)()
        job = RealtimeJob(self._settings, run, began_s, known, again, begin.since, under_way, passed, base)
        remove_checkpoint(self._spark, checkpoint := self._settings.checkpoint("realtime"))
        if self._session is None:
            self._session = realtime_session(self._spark)
        if self._here:
            self._ends = KnownEnds(self._spark, self._kafka.topic("notifications"), run)
            self._ends.show(self._recovery.ends)
        # Workers on other hosts do not see whether the lease of this job holds.
        fence.wait(self._gate.pass_on)
        return start_realtime(self._session, job, begin, checkpoint)

    def _write_start(self) -> None:
        self._recovery.write_start(self._run, self._began)
        self._begin = None

    def _write_positions(self, positions: Mapping[int, int]) -> None:
        self._recovery.write_positions(self._run, self._began, positions)

    def _write_clean(self) -> None:
        try:
            self._recovery.write_clean(self._run, self._began, self.positions())
        except InfrastructureError as error:
            logger.warning("the next start reads back what this run has pushed: %s", error)

    def _is_heap(self, begin: StartState) -> bool:
        """Whether so much waits that batches should begin with it."""
        waiting = sum(end - begin.positions.get(number, end) for number, end in self._recovery.ends.items())
        return self._settings.dispatch.gear == "auto" and waiting > self._box.heap

    def _drain(self, timeout_s: float) -> bool:
        """Have the tasks settle what they have; whether all have."""
        if self._feeder is None:
            return False
        try:
            self._feeder.ask_to_stop()
        except InfrastructureError as error:
            logger.warning("the workers cannot be asked to stop: %s", error)
            return False
        clean = self._hearing.wait_stopped(self._recovery.partitions, timeout_s)
        if not clean:
            logger.warning("not everything was settled in time; some pushes will be made again")
        else:
            self._write_clean()
        self._feeder.stop()
        self._feeder = None
        return clean

    def _told(self) -> Exclusions:
        health = self._redeliverer.health
        held, read = self._redeliverer.lanes.for_workers()
        return Exclusions(
            held | self._view.all_suspended(),
            read,
            health.degraded(),
            health.watched(),
            self._view.all_unjudged(),
            health.on_trial(int(time.time() * 1000), patient=True),
        )

    def _learn(self, report: PartitionReport) -> None:
        self._tell_reports([report])
        self._metrics.dispatched(report.notifications, report.deliveries, report.thinned)

    def _watch(self) -> None:
        quiet, before = False, _Seen({}, 0.0)
        while not self._gate.wait_closed(_LOOK_S):
            try:
                with notifications(self._kafka) as log:
                    while not self._gate.wait_closed(_LOOK_S):
                        at, gear = time.monotonic(), self.gear
                        if gear != self._wanted:
                            continue  # it was shifted, and the query is not started yet
                        if quiet and self._hearing.heard < before.at and at - before.at < _IDLE_S:
                            continue
                        seen = _Seen(log.ends(), at)
                        came = sum(end - before.ends.get(number, end) for number, end in seen.ends.items())
                        load = Load(self._waiting(seen.ends), came / max(at - before.at, 0.01), at)
                        if load.waiting > LITTLE and (known := self._ends) is not None:
                            known.show(seen.ends)
                        quiet, before = gear == "realtime" and not (came or load.waiting), seen
                        if self._settings.dispatch.gear == "auto":
                            if (wanted := self._box.next(gear, load)) != gear:
                                self.shift(wanted)
                        elif self._returns and load.waiting <= LITTLE:
                            self.shift("realtime")
                        self._look_for_workers()
            except ArborcastError as error:
                logger.info("the gear stays as it is: %s", error)
            except Exception:
                logger.exception("the gear stays as it is")

    def _look_for_workers(self) -> None:
        """Spark notices that a worker has died when it has a row for it, and that may be an hour later."""
        with self._lock:
            if self.gear != "realtime" or self._gate.closed:
                return
            if why := self._hearing.missing():
                logger.warning("%s: the query is started again", why)
                with self.supervisor.new_beginning():
                    self._hearing.end_workers()
            elif self._feeder is not None and self._feeder.outdated:
                logger.info("many subscriptions have changed: the query is started again with all of them")
                self._go_over("realtime")
            elif time.monotonic() > self._ends_at:
                logger.info("the run in real time is over: the next one goes on behind it")
                self._go_over("realtime")

    def _waiting(self, ends: Mapping[int, int]) -> int:
        at = self.positions()
        return sum(max(0, end - at.get(number, end)) for number, end in ends.items())
