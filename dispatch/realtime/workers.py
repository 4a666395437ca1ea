"""Liveness of a run's workers, and their end before the next run: two workers of a partition could push a lane out of
order.

On the driver's host the processes are visible, and killed. A worker elsewhere is monitored by its heartbeats, and ends
by its lease (`worker_lease`): the driver writes the end of the run to `feed`, and waits until every lease has expired.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping

from arborcast.core import fence
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.topics import FEED_LOG
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.liveness import RunningTime, Silence
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.job import heartbeat
from arborcast.dispatch.job.lease import LEASE_S
from arborcast.dispatch.realtime.messages import WorkerProgress, WorkerUpdate, encode_feed

# A killed process ends at once, unless it waits for a disk.
_ENDS_S = 60.0

_PAUSE_S = 1.0

# After this time without a heartbeat a worker has no lease either.
_SILENT_S = LEASE_S

# Timeout of the first report of a task: its process may have to start, on a busy machine.
_STARTS_S = 300.0

# Maximum interval between two checks, in seconds.
_LONGEST_CHECK_S = 2.0


def _silent(silences: Mapping[int, Silence], at: float) -> str:
    """The reason to restart a run, if a task is silent for too long."""
    silent = next((number for number, silence in silences.items() if silence.is_too_long(at)), None)
    if silent is None:
        return ""
    return f"the Python worker of task {silent} has not reported for {silences[silent].lasts_s(at):.0f} s"


class LocalWorkers:
    """The workers of the current run, on the driver's host. Used under one lock."""

    def __init__(self, running_time: RunningTime | None = None) -> None:
        self._time = running_time or RunningTime(_LONGEST_CHECK_S)
        self._tasks: dict[int, tuple[int, int]] = {}  # process id and start time of each
        # Tasks without a report: the process of a worker that dies before its first one is unknown, and Spark notices
        # its death with the next row.
        self._starting: dict[int, Silence] = {}

    def begin(self, tasks: int) -> None:
        self._tasks.clear()
        at = self._time.tick()
        self._starting = {number: Silence(_STARTS_S, at) for number in range(tasks)}

    def reported(self, progress: WorkerProgress) -> None:
        self._starting.pop(progress.task, None)
        known = self._tasks.get(progress.task)
        if known is None or known[0] != progress.pid:
            self._tasks[progress.task] = progress.pid, heartbeat.started_at(progress.pid)

    def missing(self) -> str:
        """The reason to restart the run; empty while its workers live."""
        at = self._time.tick()
        # 0: it had ended when its report was read.
        dead = {pid for pid, started in self._tasks.values() if not started or heartbeat.started_at(pid) != started}
        return f"a Python worker (pid {min(dead)}) has died" if dead else _silent(self._starting, at)

    def end(self, newest: int) -> None:
        """End the workers; `newest` is the highest number of a run. Spark stops a query without waiting for them, and
        the next run would not know their last pushes and records. Raises InfrastructureError."""
        deadline = time.monotonic() + _ENDS_S
        for pid, started in set(self._tasks.values()):
            while started and heartbeat.started_at(pid) == started:
                if time.monotonic() > deadline:
                    raise InfrastructureError(f"the Python worker {pid} was killed and does not end", _PAUSE_S)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.005)
        self._tasks.clear()
        self._starting.clear()

    def wait_ended(self) -> None:
        """Wait until no worker can begin another push."""


class RemoteWorkers:
    """The workers of the current run, on other hosts; see LocalWorkers."""

    def __init__(
        self,
        write: Callable[[WorkerUpdate], object],
        wait: Callable[[float], None],
        failed: Callable[[], bool],
        clock: Callable[[], float] = fence.clock,
        running_time: RunningTime | None = None,
    ) -> None:
        """`write` returns when the update is in the log `feed`, or raises InfrastructureError; `wait` waits for this
        number of seconds, or raises; `failed` returns whether a task of the run has failed in Spark."""
        self._write = write
        self._failed = failed
        self._wait = wait
        self._clock = clock
        self._time = running_time or RunningTime(_LONGEST_CHECK_S)
        self._silences: dict[int, Silence] = {}
        self._stopped: set[int] = set()
        self._may_live = True  # at first those of an earlier driver
        self._until = 0.0

    def begin(self, tasks: int) -> None:
        at = self._time.tick()
        self._silences = {number: Silence(_STARTS_S, at) for number in range(tasks)}
        self._stopped.clear()
        self._may_live = True

    def reported(self, progress: WorkerProgress) -> None:
        at = self._time.tick()
        self._silences[progress.task] = Silence(_SILENT_S, at)
        if progress.stopped:
            self._stopped.add(progress.task)

    def missing(self) -> str:
        at = self._time.tick()
        if self._failed():
            return "a Python worker has died, or its executor"
        return _silent(self._silences, at)

    def end(self, newest: int) -> None:
        orderly = bool(self._silences) and self._stopped >= self._silences.keys()
        if not self._may_live or orderly or newest < 0:
            return
        self._write(WorkerUpdate(newest + 1, -1, 0, -1, complete=False, stop=True))
        # Later renewals read it and the worker exits; an earlier renewal is valid for this time.
        self._until = self._clock() + LEASE_S
        self._may_live = False
        self._silences = {}

    def wait_ended(self) -> None:
        while (left_s := self._until - self._clock()) > 0:
            self._wait(left_s)


def remote_workers(kafka: KafkaSettings, wait: Callable[[float], None], failed: Callable[[], bool]) -> RemoteWorkers:
    """Workers that read the end of their run in the log `feed`."""

    def write(message: WorkerUpdate) -> None:
        with contextlib.closing(LogWriter(kafka, FEED_LOG)) as log:
            log.append_encoded([encode_feed(message)])

    return RemoteWorkers(write, wait, failed)
