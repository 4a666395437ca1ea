"""Changes between the modes: notifications one by one (realtime), or many together (batch).

Each mode starts where the other has stopped (`recovery`). Real time needs a task slot for each partition of the log;
with fewer in the cluster the mode is batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from pyspark.sql.streaming.query import StreamingQuery

from arborcast.core.backoff import Backoff
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.consumer import LogConsumer
from arborcast.core.settings import KafkaSettings
from arborcast.core.threads import Service
from arborcast.dispatch.hot.recovered import NOTHING, StartState
from arborcast.dispatch.hot.stream import HotPath, JobParts
from arborcast.dispatch.logs.attempts import NO_BATCH
from arborcast.dispatch.realtime.driver import ProgressListener
from arborcast.dispatch.realtime.mode_policy import (
    LITTLE,
    MOST_UNREAD,
    WORTH_ELSEWHERE_S,
    WORTH_HERE_S,
    Load,
    Mode,
    ModePolicy,
)
from arborcast.dispatch.realtime.realtime_mode import RealtimeMode
from arborcast.dispatch.realtime.recovery import Recovery, next_run
from arborcast.dispatch.spark.query_supervisor import QuerySupervisor, StopRequested, waits_for_data
from arborcast.dispatch.spark.source import remove_checkpoint

logger = logging.getLogger(__name__)

# Tasks settle their messages within the timeout of a push.
_STOP_MARGIN_S = 5.0

# Longest time without progress while parked deliveries are read.
_PARKED_S = 300.0

# Interval of the check of the mode.
_CHECK_S = 0.25

# Poll interval without events.
_IDLE_S = 1.0


class _Arrivals:
    """New records of the `notifications` log, and the mode for them. Used by one thread."""

    def __init__(self, kafka: KafkaSettings, policy: ModePolicy) -> None:
        self._log = LogConsumer(kafka, "notifications")
        self.policy = policy
        self.ends: Mapping[int, int] = {}
        self.at = 0.0
        self.quiet = False
        """Whether the last poll found no new records."""

    def poll(self, at: float) -> tuple[int, float]:
        """The number of new records since the last poll, and the time since then. Raises InfrastructureError."""
        before, passed_s = self.ends, max(at - self.at, 0.01)
        try:
            self.ends = self._log.ends()
        except InfrastructureError:
            self._log.close()
            raise
        self.at = at
        return sum(end - before.get(number, end) for number, end in self.ends.items()), passed_s

    def close(self) -> None:
        self._log.close()


class ModeController:
    """Starts the query in one mode or the other, and changes modes. The supervisor calls `start`."""

    def __init__(self, parts: JobParts) -> None:
        self._parts = parts
        self._hot = HotPath(parts)
        self._realtime = RealtimeMode(parts)
        self._recovery = Recovery(parts.settings, parts.redeliverer, self._realtime.listener)
        self._run = NO_BATCH
        self._began = StartState({}, NOTHING, NO_BATCH)  # where the current run started
        self._begin: StartState | None = None  # where the next run starts, until `progress` has it
        self._may_be_realtime = False
        self._returns_to_realtime = False  # after the batches of a backlog
        self._lock = threading.RLock()
        self.mode: Mode = "batch"
        self._target: Mode = "batch"
        self.supervisor = QuerySupervisor("push", self.start, parts.gate, self._at_rest, parts.metrics.query_failed)
        policy = ModePolicy(WORTH_HERE_S if self._realtime.here else WORTH_ELSEWHERE_S)
        self._arrivals = _Arrivals(parts.settings.kafka, policy)
        self._service = Service(
            "modes",
            self._watch,
            backoff=Backoff(_IDLE_S, _IDLE_S),
            delay_s=_CHECK_S,
            close=self._arrivals.close,
            what="the choice of the execution mode",
        )

    def open(self) -> None:
        """Read the log before the first start. Long before it: workers of an earlier job on other hosts take a while to
        end. Raises InfrastructureError."""
        self._recovery.read_partitions()
        self._listener.read()
        self._listener.end_workers()
        self._listener.start()
        if self._parts.settings.dispatch.mode != "batch" and (not self._realtime.here or self._has_slots()):
            self._may_be_realtime, self._target = True, "realtime"
        self._parts.metrics.mode = lambda: self.mode

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the workers are ready, in the real-time mode, or the gate closes; returns whether they are."""
        deadline = time.monotonic() + timeout_s
        while self.mode != "batch" and not self._listener.wait_ready(min(_CHECK_S, timeout_s)):
            if self._parts.gate.closed or time.monotonic() >= deadline:
                return False
        return True

    def watch(self) -> None:
        """Change modes, if the settings allow it, and restart the query after a task has lost its worker, or for
        another size of batches."""
        self._service.start()

    def stop(self, timeout_s: float) -> None:
        """Settle pushes in flight in real time, and write the next start. The gate is closed, and batches have
        ended."""
        with self._lock:
            if self.mode == "realtime":
                self._drain(timeout_s)
            elif self._parts.gate.wait_empty(0) and self._hot.clean:
                self._write_clean()
        self._listener.stop()
        self._service.stop(_STOP_MARGIN_S)

    def positions(self) -> Mapping[int, int]:
        """By partition, the offset before which all is settled."""
        known = self.written()
        return known if self.mode == "realtime" else {**known, **self._hot.positions}

    def written(self) -> Mapping[int, int]:
        """By partition, the offset before which all is settled according to the log `progress`: no start is before
        it."""
        return {number: each.position for number, each in self._listener.known.items()}

    def matched(self) -> Mapping[int, int]:
        """By partition, the offset before which all is matched and reported."""
        if self.mode == "realtime":
            known = self._listener.known
            return {number: max(each.position, each.taken) for number, each in known.items()}
        return self.positions()

    def start(self) -> StreamingQuery:
        """Start the query in the chosen mode, where the last one ended."""
        with self._lock:
            self._realtime.end()
            # Parked deliveries of all processes must not be overtaken.
            self._parts.redeliverer.catch_up(_PARKED_S)
            self._recovery.settle()
            self._listener.catch_up(self._parts.settings.kafka.request_timeout_s)
            self._begin = begin = self._begin or self._recovery.start_state()
            self._began, self._run = begin, next_run(begin.newest)
            recovered = self._recovery.share(begin, self._parts.spark.sparkContext)
            if self._target == "realtime":
                if not (begin.batches or self._is_backlog(begin)) and self._has_slots():
                    self.mode = "realtime"
                    passed, ends = self._hot.passed_before(begin.positions), self._recovery.ends
                    return self._realtime.start(self._run, begin, recovered, passed, ends, self._write_start)
                # First batches for a backlog, or for the rest of an interrupted batch: they drop a timely message for a
                # newer one, while real time would push it behind newer ones. Or until there are enough task slots.
                self._target, self._returns_to_realtime = "batch", True
            self._write_start()
            remove_checkpoint(self._parts.spark, checkpoint := self._parts.settings.checkpoint("push"))
            self.mode = "batch"
            write_positions = partial(self._recovery.write_positions, self._run, begin)
            return self._hot.start(checkpoint, self._run, begin, recovered, write_positions)

    def shift(self, mode: Mode) -> None:
        """Change the mode. No message is lost, and none is pushed twice if all are settled in time."""
        with self._lock:
            if mode == self._target or self._parts.gate.closed:
                return
            if mode == "realtime" and (self._has_rest() or not self._has_slots()):
                return
            self._switch(mode)

    def _switch(self, mode: Mode) -> None:
        with self._lock, suppress(StopRequested):  # a stop needs the lock: it does not wait for a long round
            began = time.monotonic()
            with self.supervisor.planned_restart():
                if self.mode == "batch":
                    self._hot.pause()
                # A failed start has begun nothing: the next one is at the same positions.
                patience_s = 2 * self._parts.settings.retry.batch_wait_s + _STOP_MARGIN_S
                if self._begin is None and (self._hot.clean if self.mode == "batch" else self._drain(patience_s)):
                    positions = self.positions()
                    if len(positions) == self._recovery.partitions:
                        begin = self._began.advanced(positions, self._recovery.ends, self._run)
                        self._begin = begin._replace(batches=self._has_rest())
                self._target, self._returns_to_realtime = mode, self._returns_to_realtime and mode == self.mode
            logger.info("mode: %s (%.1f s to settle pushes in flight)", mode, time.monotonic() - began)

    @property
    def _listener(self) -> ProgressListener:
        return self._realtime.listener

    def _has_slots(self) -> bool:
        return self._realtime.has_slots(self._recovery.partitions)

    def _drain(self, timeout_s: float) -> bool:
        """Let the tasks settle their messages; returns whether all have."""
        clean = self._realtime.drain(timeout_s)
        if clean:
            self._write_clean()
        self._realtime.stop_updates()
        return clean

    def _at_rest(self, query: StreamingQuery) -> bool:
        if self.mode == "batch":
            return waits_for_data(query)
        if self._parts.gate.closed:
            return True
        known = self._listener.known
        through = all(number in known and known[number].position >= end for number, end in self._recovery.ends.items())
        return through and self._listener.wait_ready(0)

    def _write_start(self) -> None:
        self._recovery.write_start(self._run, self._began)
        self._begin = None

    def _write_clean(self) -> None:
        try:
            self._recovery.write_clean(self._run, self._began, self.positions())
        except InfrastructureError as error:
            logger.warning("the next start reads back what this run has pushed: %s", error)

    def _is_backlog(self, begin: StartState) -> bool:
        """Whether the backlog is large enough for batches."""
        waiting = sum(end - begin.positions.get(number, end) for number, end in self._recovery.ends.items())
        return self._parts.settings.dispatch.mode == "auto" and waiting > self._arrivals.policy.backlog

    def _watch(self) -> float | None:
        if self._parts.gate.closed:
            return None
        at, mode, arrivals = time.monotonic(), self.mode, self._arrivals
        if mode != self._target:
            return _CHECK_S  # the query is not yet started in the new mode
        if mode == "batch" and self._hot.batch_size.outdated:
            logger.info("the query is started again with batches of another size, for the size of its notifications")
            self._switch(mode)
        if not self._may_be_realtime:
            return _CHECK_S
        if arrivals.quiet and self._listener.reported_at < arrivals.at and at - arrivals.at < _IDLE_S:
            return _CHECK_S
        arrived, passed_s = arrivals.poll(at)
        ends = arrivals.ends
        load = Load(self._waiting(ends), arrived / passed_s, at, self._parts.redeliverer.unread)
        if load.waiting > LITTLE:
            self._realtime.show(ends)
        arrivals.quiet = mode == "realtime" and not (arrived or load.waiting)
        if self._parts.settings.dispatch.mode == "auto":
            if (chosen := arrivals.policy.next(mode, load)) != mode:
                self.shift(chosen)
        elif self._returns_to_realtime and load.waiting <= LITTLE and load.unread <= MOST_UNREAD:
            self.shift("realtime")
        self._restart_if_required(len(ends))
        return _CHECK_S

    def _restart_if_required(self, partitions: int) -> None:
        """Restart the query where Spark would not, or later: it notices a dead worker with the next row, and new
        partitions at the end of its batch."""
        with self._lock:
            if self.mode != "realtime" or self._parts.gate.closed:
                return
            if why := self._listener.missing():
                logger.warning("%s: the query is started again", why)
                self._parts.metrics.query_failed()
                with self.supervisor.planned_restart():
                    self._listener.end_workers()
            elif self._realtime.outdated:
                logger.info("many subscriptions have changed: the query is started again with all of them")
                self._switch("realtime")
            elif partitions > self._recovery.partitions:
                logger.info("the notifications log has %d partitions now: the query is started again", partitions)
                self._switch("realtime")
                self._begin = None  # the next start reads the positions of the new partitions
            elif self._realtime.is_over:
                logger.info("the real-time run has reached its maximum duration: the next one continues")
                self._switch("realtime")

    def _has_rest(self) -> bool:
        """Whether the rest of an interrupted batch may not be settled yet: see `start`."""
        at = self.positions()
        return self._began.batches and any(at.get(number, end) < end for number, end in self._recovery.ends.items())

    def _waiting(self, ends: Mapping[int, int]) -> int:
        at = self.positions()
        return sum(max(0, end - at.get(number, end)) for number, end in ends.items())
