"""The gears: notifications one by one, at once (realtime), or many together (batch).

Both go on where the other has stopped. The log `progress` says where that is as long as the real-time gear was the last
that came to anything; Spark's checkpoint does once a batch behind that is done. A checkpoint has a range of numbers for
its batches, and a real-time run begins one, so the higher number was the later one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from core.errors import ArborcastError, InfrastructureError
from core.eventlog.consumer import LogConsumer
from core.settings import KafkaSettings
from dispatch.hot.earlier import NOTHING, Beginning, Earlier, earlier, newest_batch, recall_since
from dispatch.hot.stream import HotPath
from dispatch.logs.attempts import NO_BATCH
from dispatch.matching.bases import workers_are_here
from dispatch.matching.view import RoutingView
from dispatch.monitoring.metrics import JobMetrics
from dispatch.monitoring.sources import progress_of
from dispatch.monitoring.under_way import UnderWay
from dispatch.realtime.driver import Feeder, Hearing, Told
from dispatch.realtime.gearbox import HEAP, LITTLE, Gear, Gearbox, Load
from dispatch.realtime.messages import ProgressLog, WorkerProgress
from dispatch.realtime.query import realtime_session, start_realtime
from dispatch.realtime.task import RealtimeJob
from dispatch.redelivery.held_lanes import PartitionReport
from dispatch.redelivery.redeliverer import Redeliverer
from dispatch.settings import JobSettings
from dispatch.spark.checkpoint_repair import RANGE, RANGES, HadoopFolder, is_cut_off, mended, settled
from dispatch.spark.query_supervisor import QuerySupervisor, StopGate, waits_for_data

logger = logging.getLogger(__name__)

_RECALL_S = 300.0

# Tasks settle what they have within the time that a push may take.
_STOP_MARGIN_S = 5.0

# How often it is looked whether the gear is the right one.
_LOOK_S = 0.25

# How often it is looked while nothing comes.
_IDLE_S = 1.0


_FROM_THE_CHECKPOINT = Beginning({}, NOTHING, NO_BATCH)


class _Seen(NamedTuple):
    """Where the log ended, and when."""

    ends: Mapping[int, int]
    at: float


class Gears:
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
        self._hearing = Hearing(settings.kafka, self._learn)
        self._feeder: Feeder | None = None
        self._began = _FROM_THE_CHECKPOINT  # the query that runs
        self._begin: Beginning | None = None  # after a shift: where the other gear was through with everything
        self._partitions = 0
        self._ends: Mapping[int, int] = {}  # of the log, when the query was started
        self._may_be = False  # realtime
        self._returns = False  # to it, when the batch gear has done what had to come first
        self._lock = threading.RLock()
        self.gear: Gear = "batch"
        self._wanted: Gear = "batch"
        self.supervisor = QuerySupervisor("push", self.start, gate, self._at_rest)
        self._thread = threading.Thread(target=self._watch, name="gearbox", daemon=True)

    def open(self) -> None:
        """Before the first start. Raises InfrastructureError."""
        with _notifications(self._kafka) as log:
            self._partitions = len(log.partitions())
        self._hearing.read()
        self._hearing.start()
        self._may_be = self._settings.dispatch.gear != "batch" and self._may_be_realtime()
        if self._may_be:
            self._wanted = "realtime"
        self._metrics.gear = lambda: self.gear

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the workers of the real-time gear are ready, if it is in that one; whether they are."""
        return self.gear == "batch" or self._hearing.wait_ready(self._partitions, timeout_s)

    def watch(self) -> None:
        """From now on shift, where the settings let us, and see that the tasks have workers."""
        if self._may_be:
            self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """The gate is closed: settle what is under way, as far as that is not the gate's to wait for."""
        with self._lock:
            if self.gear == "realtime":
                self._drain(timeout_s)
        self._hearing.stop()
        if self._thread.is_alive():
            self._thread.join(_STOP_MARGIN_S)

    def positions(self) -> Mapping[int, int] | None:
        """The offsets behind what is settled, by partition; None when that is not known."""
        if self.gear == "realtime":
            return {number: each.position for number, each in self._hearing.known.items()}
        progress = progress_of(self.supervisor.query)
        known = progress.settled if progress is not None else None
        if not known:
            known = settled(self._checkpoint, self._kafka.topic("notifications"))
        return None if known is None else {**known, **self._hot.positions}

    def matched(self) -> Mapping[int, int] | None:
        """The offsets behind what is matched, and was reported, by partition; None when that is not known."""
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
            if self._feeder is not None:
                self._feeder.stop()
                self._feeder = None
            self._hearing.end_workers()
            self._hearing.catch_up(self._kafka.request_timeout_s)
            # What was parked until now must not be overtaken, whoever has parked it.
            self._redeliverer.catch_up(_RECALL_S)
            begin = self._begin or self._realtime_was_last()
            self._begin = None
            if self._wanted == "realtime":
                found = begin or self._checkpoint_was_last()
                if found is not None and not self._is_heap(found):
                    self.gear = "realtime"
                    self._began = found
                    return self._start_realtime(found)
                # First of all the batch that was cut off, or the backlog.
                self._wanted, self._returns = "batch", True
            self.gear = "batch"
            self._began = begin or _FROM_THE_CHECKPOINT
            if begin is not None:
                HadoopFolder(self._spark, self._checkpoint).remove()
            return self._hot.start(self._spark, mended(self._checkpoint), begin)

    def shift(self, gear: Gear) -> None:
        """Change over. Nothing is lost by it, and nothing comes twice if all is settled in time."""
        with self._lock:
            if gear == self._wanted or self._gate.closed:
                return
            if self.gear == "batch" and self._hot.resuming and is_cut_off(self._checkpoint):
                return  # what that batch has come to is known when it is repeated
            began = time.monotonic()
            with self.supervisor.new_beginning():
                if self.gear == "batch":
                    self._hot.pause()
                if self.gear == "batch" or self._drain(self._patience_s):
                    positions = dict(self.positions() or {})
                    if len(positions) == self._partitions:
                        self._begin = self._began.gone_on(positions, self._ends, self._newest())
                self._wanted, self._returns = gear, False
        logger.info("gear: %s (%.1f s to settle what was under way)", gear, time.monotonic() - began)

    @property
    def _checkpoint(self) -> str:
        return self._settings.checkpoint("push")

    @property
    def _patience_s(self) -> float:
        return 2 * self._settings.retry.batch_wait_s + _STOP_MARGIN_S

    def _may_be_realtime(self) -> bool:
        slots = self._spark.sparkContext.defaultParallelism
        if not workers_are_here(self._spark.sparkContext):
            logger.info("gear: batch, for the workers are on a cluster")
            return False
        if self._partitions > slots:
            logger.info("gear: batch, for %d partitions need as many dispatch.task_slots", self._partitions)
            return False
        return True

    def _at_rest(self, query: StreamingQuery) -> bool:
        if self.gear == "batch":
            return waits_for_data(query)
        if self._gate.closed:
            return True
        known = self._hearing.known
        through = all(number in known and known[number].position >= end for number, end in self._ends.items())
        return through and self._hearing.wait_ready(self._partitions, 0)

    def _start_realtime(self, begin: Beginning) -> StreamingQuery:
        run = (begin.newest // RANGE + 1) * RANGE
        # First of all: tasks of an earlier run that are still there stop when they hear of this one.
        self._hearing.begin(run)
        self._feeder = Feeder(self._kafka, self._view, self._told, run)
        self._feeder.start()
        self._say_where(run, begin)
        if self._under_way is not None:
            self._under_way.clear()
        known = self._spark.sparkContext.broadcast(begin.earlier) if begin.since >= 0 else None
        again = self._ends if begin.since >= 0 else {}
        under_way = self._under_way.file if self._under_way is not None else ""
        passed = self._hot.passed_before(begin.positions)
        job = RealtimeJob(
            self._settings, run, time.time(), known, again, begin.since, begin.since_ms, under_way, passed
        )
        folder = HadoopFolder(self._spark, checkpoint := self._settings.checkpoint("realtime"))
        folder.remove()
        if self._session is None:
            self._session = realtime_session(self._spark)
        return start_realtime(self._session, job, begin, checkpoint)

    def _is_heap(self, begin: Beginning) -> bool:
        """Whether so much waits that batches should begin with it."""
        waiting = sum(end - begin.positions.get(number, end) for number, end in self._ends.items())
        return self._settings.dispatch.gear == "auto" and waiting > HEAP

    def _say_where(self, run: int, begin: Beginning) -> None:
        """From now on the real-time gear is the last one."""
        since, since_ms = (begin.since, begin.since_ms) if begin.since >= 0 else (run, int(time.time() * 1000))
        log = ProgressLog(self._kafka)
        try:
            for partition, position in begin.positions.items():
                log.tell(WorkerProgress(run, partition, position, since, since_ms, task=-1))
            log.settle(self._kafka.request_timeout_s)
        finally:
            log.close()

    def _drain(self, timeout_s: float) -> bool:
        """Have the tasks settle what they have; whether all have."""
        if self._feeder is None:
            return False
        try:
            self._feeder.ask_to_stop()
        except InfrastructureError as error:
            logger.warning("the workers cannot be asked to stop: %s", error)
            return False
        clean = self._hearing.wait_stopped(self._partitions, timeout_s)
        if not clean:
            logger.warning("not everything was settled in time; some pushes will be made again")
        self._feeder.stop()
        self._feeder = None
        return clean

    def _realtime_was_last(self) -> Beginning | None:
        """Where it was, if no batch was done since."""
        known = self._hearing.known
        folder = HadoopFolder(self._spark, self._checkpoint)
        of_checkpoint = folder.highest(RANGES)
        run = max((each.run for each in known.values()), default=NO_BATCH)
        if not known or (
            of_checkpoint is not None and of_checkpoint * RANGE > run and folder.highest("commits") is not None
        ):
            return None
        positions = {number: each.position for number, each in known.items()}
        if all(each.clean for each in known.values()):
            return Beginning(self._placed(positions), Earlier(), self._newest())
        since = min(each.since for each in known.values())
        since_ms = min(each.since_ms for each in known.values())
        found = recall_since(self._kafka, since, since_ms, _RECALL_S)
        behind = earlier(found, self._redeliverer.parked_behind(positions), since)
        logger.info("%d deliveries were settled before the workers were cut off", len(found) + len(behind.unwritten))
        return Beginning(self._placed(positions), behind, self._newest(), since, since_ms)

    def _checkpoint_was_last(self) -> Beginning | None:
        """Where the batches were; None when the last one is not done, or that cannot be seen from here."""
        positions = settled(self._checkpoint, self._kafka.topic("notifications"))
        if positions is None or is_cut_off(self._checkpoint):
            return None
        newest = max(self._redeliverer.newest_batch(), self._newest())
        if newest == NO_BATCH:
            newest = newest_batch(self._kafka, _RECALL_S)
        return Beginning(self._placed(positions), Earlier(), newest)

    def _placed(self, positions: Mapping[int, int]) -> dict[int, int]:
        """With all partitions that there are. Raises InfrastructureError where the log is another than it was."""
        with _notifications(self._kafka) as log:
            begins, ends = log.beginnings(), log.ends()
        first = ends if self._settings.dispatch.starting_offsets == "latest" and not positions else begins
        found = {number: positions.get(number, first[number]) for number in ends}
        for number, position in found.items():
            if begins[number] <= position <= ends[number]:
                continue
            if self._settings.dispatch.fail_on_data_loss:
                raise InfrastructureError(
                    f"partition {number} of the notifications log reaches from {begins[number]} to {ends[number]}, and "
                    f"we stand at {position}: notifications are lost, or the log was made anew. "
                    f"dispatch.fail_on_data_loss = false goes on behind the gap"
                )
            found[number] = begins[number]
        self._partitions, self._ends = len(ends), ends
        return found

    def _newest(self) -> int:
        """The highest number of a batch that is known of, without a look into the logs; of a checkpoint that of its
        first, for all of its range are its own."""
        of_checkpoint = HadoopFolder(self._spark, self._checkpoint).highest(RANGES)
        of_batches = NO_BATCH if of_checkpoint is None else of_checkpoint * RANGE
        return max([of_batches, *(each.run for each in self._hearing.known.values())])

    def _told(self) -> Told:
        health = self._redeliverer.health
        held, read = self._redeliverer.lanes.for_workers()
        return Told(
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
        box, quiet, before = Gearbox(), False, _Seen({}, 0.0)
        while not self._gate.wait_closed(_LOOK_S):
            try:
                with _notifications(self._kafka) as log:
                    while not self._gate.wait_closed(_LOOK_S):
                        at, gear = time.monotonic(), self.gear
                        if gear != self._wanted:
                            continue  # it was shifted, and the query is not started yet
                        if quiet and self._hearing.heard < before.at and at - before.at < _IDLE_S:
                            continue
                        seen = _Seen(log.ends(), at)
                        came = sum(end - before.ends.get(number, end) for number, end in seen.ends.items())
                        load = Load(self._waiting(seen.ends), came / max(at - before.at, 0.01), at)
                        quiet, before = gear == "realtime" and not (came or load.waiting), seen
                        if self._settings.dispatch.gear == "auto":
                            if (wanted := box.next(gear, load)) != gear:
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
            if gone := self._hearing.missing():
                logger.warning("a Python worker (pid %s) has died: the query is started again", min(gone))
                with self.supervisor.new_beginning():
                    self._hearing.end_workers()

    def _waiting(self, ends: Mapping[int, int]) -> int:
        at = self.positions() or {}
        return sum(max(0, end - at.get(number, end)) for number, end in ends.items())


def _notifications(kafka: KafkaSettings) -> closing[LogConsumer]:
    return closing(LogConsumer(kafka, "notifications"))
