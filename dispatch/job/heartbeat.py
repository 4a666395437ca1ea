"""Heartbeats: of the job (`Heartbeat`, a thread of the driver), and of Spark's Python workers.

The workers, and the daemon that forks them, count their loops in shared memory. The daemon has the first slot in it,
and reserves one for each worker before the fork. A thread of the worker counts as long as the process runs; during a
task its main thread counts each of its turns. The watcher kills a process without progress. SIGKILL also ends a stopped
process (the SIGTERM of Spark's own timeout does not); Spark repeats the task.

On its own host the driver monitors, over a mapped file named in the workers' environment, on other hosts the daemon,
over inherited memory.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from arborcast.core import liveness
from arborcast.core.backoff import Backoff
from arborcast.core.files import new_shared_memory, shared_memory
from arborcast.core.liveness import RunningTime, Silence
from arborcast.core.threads import Service, start_thread

logger = logging.getLogger(__name__)

FILE = "ARBORCAST_WORKER_BEATS"
"""The environment variable with the driver's file."""

LIMIT = "ARBORCAST_WORKER_HANG_TIMEOUT_S"
"""The environment variable with a worker's timeout, without a file; 0 for none."""

# A daemon, and workers for all possible task slots, with those of an earlier daemon.
_SLOTS = 513

# Of each: process id, start time, loop count, task count, whether it has a task.
_FIELDS = 5
_PID, _STARTED, _RUNS, _WORKS, _BUSY = range(_FIELDS)
_BYTES = 8 * _FIELDS * _SLOTS
_RESERVED = -1

_BEAT_S = 1.0

# A task may take long between two turns (a condition, an answer of Kafka): its timeout is this many times that of a
# process.
PATIENCE_WITH_TASKS = 5


class BeatSlot:
    def __init__(self, numbers: memoryview, number: int) -> None:
        self._numbers = numbers
        self._at = _FIELDS * number

    def reserve(self) -> None:
        """For the next forked process."""
        self._numbers[self._at + _PID] = _RESERVED

    def take(self) -> None:
        """For this process."""
        self._numbers[self._at + _PID] = _RESERVED
        self._numbers[self._at + _BUSY] = 0
        self._numbers[self._at + _STARTED] = started_at(os.getpid())
        self._numbers[self._at + _PID] = os.getpid()

    @property
    def free(self) -> bool:
        pid = self._numbers[self._at + _PID]
        return pid == 0 or (pid != _RESERVED and not started_at(pid))

    def runs(self) -> None:
        self._numbers[self._at + _RUNS] += 1

    def works(self) -> None:
        self._numbers[self._at + _WORKS] += 1

    def busy(self, has_task: bool) -> None:
        self._numbers[self._at + _BUSY] = int(has_task)


_own: BeatSlot | None = None


def start_heartbeats() -> None:
    """Start the heartbeats of the daemon and its workers, before the first fork. Threads do not survive a fork, so the
    daemon uses an alarm signal, which forked workers do not inherit."""
    file, limit_s = os.environ.get(FILE, ""), float(os.environ.get(LIMIT, "0"))
    if not (file or limit_s):
        return
    try:
        numbers = shared_memory(Path(file)).cast("q") if file else memoryview(mmap.mmap(-1, _BYTES)).cast("q")
    except (OSError, ValueError) as error:
        logger.warning("hanging workers will not be detected: %s cannot be mapped (%s)", file, error)
        return
    daemon, own, running_time = os.getpid(), BeatSlot(numbers, 0), RunningTime(2 * _BEAT_S)
    own.take()
    watch = None if file else WorkerBeats(numbers, limit_s)

    def on_alarm(_number: int, _frame: FrameType | None) -> None:
        own.runs()
        if watch is not None:
            watch.check(running_time.tick())

    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, _BEAT_S, _BEAT_S)
    following: list[BeatSlot] = []

    def before_fork() -> None:
        if os.getpid() == daemon:
            slots = (BeatSlot(numbers, number) for number in range(1, _SLOTS))
            following[:] = itertools.islice((slot for slot in slots if slot.free), 1)
            for slot in following:
                slot.reserve()

    def after_fork() -> None:
        global _own
        if following and os.getppid() == daemon:
            _own = following.pop()
            _own.take()
            start_thread("beat", _run_forever, _own)

    os.register_at_fork(before=before_fork, after_in_child=after_fork)


def _run_forever(slot: BeatSlot) -> None:
    while True:
        slot.runs()
        time.sleep(_BEAT_S)


@contextmanager
def task() -> Iterator[None]:
    """A context for a task: the beats of this thread are those of the task."""
    slot = _own
    if slot is None:
        yield
        return
    slot.works()
    slot.busy(True)
    liveness.listen(slot.works)
    try:
        yield
    finally:
        liveness.listen(liveness.ignore_beat)
        slot.busy(False)


@dataclass
class _Monitored:
    """A process, as known to its monitor."""

    identity: tuple[int, int]
    process: Silence
    task: Silence


class WorkerBeats:
    def __init__(self, numbers: memoryview, limit_s: float, killed: Callable[[], None] = lambda: None) -> None:
        """`limit_s` is the timeout of a process, 0 for none; `killed` is called after a kill."""
        self._numbers = numbers
        self._limit_s = limit_s
        self._killed = killed
        self._monitored: dict[int, _Monitored] = {}

    def check(self, at: float) -> None:
        """Kill processes without a heartbeat for too long; `at` is the time of the monitor."""
        numbers = self._numbers.tolist()
        for number in range(_SLOTS):
            pid, started, runs, works, busy = numbers[_FIELDS * number : _FIELDS * (number + 1)]
            if pid in (0, _RESERVED):
                self._monitored.pop(number, None)
                continue
            known = self._monitored.get(number)
            if known is None or known.identity != (pid, started):
                limit_s = self._limit_s
                known = _Monitored((pid, started), Silence(limit_s, at), Silence(limit_s * PATIENCE_WITH_TASKS, at))
                self._monitored[number] = known
            known.process.observe(runs, at)
            known.task.observe((works, busy), at)
            if known.process.is_too_long(at):
                self._end(number, known, f"did not run for {known.process.lasts_s(at):.0f} s")
            elif busy and known.task.is_too_long(at):
                self._end(number, known, f"was at the same point of its task for {known.task.lasts_s(at):.0f} s")

    def _end(self, number: int, known: _Monitored, why: str) -> None:
        del self._monitored[number]
        self._numbers[_FIELDS * number + _PID] = 0
        pid, started = known.identity
        try:
            if started_at(pid) != started:
                return
            os.kill(pid, signal.SIGKILL)
        except OSError:
            return  # the process has ended
        subject = "the daemon of the Python workers" if number == 0 else "a Python worker"
        logger.warning("%s (pid %d) %s and was killed; Spark replaces it", subject, pid, why)
        self._killed()


def started_at(pid: int) -> int:
    """The start time of a process, in an arbitrary unit; 0 without such a process; its session without /proc."""
    try:
        # From the third field on: the second is a name with any characters, in brackets.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        with contextlib.suppress(OSError):
            return 0 if Path("/proc/self").exists() else os.getsid(pid)
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])  # ticks since boot, unaffected by changes of the clock


def new_file(file: Path) -> memoryview:
    """The memory of the driver, in a new file: workers of a killed job may still use the last one."""
    return new_shared_memory(file, _BYTES).cast("q")


def keep_worker_alive(rows: Iterable[object]) -> None:
    """A partition function without effect, for tasks that keep Spark from ending its idle Python workers. A worker
    imports the module of the function: that of the warm-up would load delta-rs, Arrow and pandas (70 MiB)."""
    for _ in rows:
        pass


BEAT_S = 2.0


class Heartbeat:
    """The heartbeat of the job, every other second: `beat` is called while the JVM answers and the redelivery works. It
    is set when the job is ready. `ping_jvm` returns when the JVM answers, and raises without an answer; `rounds` counts
    the loops of the redelivery."""

    def __init__(
        self, ping_jvm: Callable[[], object], rounds: Callable[[], int], limit_s: float, workers: WorkerBeats | None
    ) -> None:
        """`limit_s` is the timeout of a Python worker; the redelivery has that of a task."""
        self.beat: Callable[[], None] | None = None
        self._ping_jvm = ping_jvm
        self._rounds = rounds
        self._workers = workers
        self._time = RunningTime(2 * BEAT_S)
        self._redelivery = Silence(limit_s * PATIENCE_WITH_TASKS, 0.0)
        self._hangs = False
        self._service = Service(
            "heartbeat", self._step, delay_s=BEAT_S, backoff=Backoff(BEAT_S, BEAT_S), what="the heartbeat of the job"
        )

    def __enter__(self) -> Heartbeat:
        self._service.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Does not wait: the JVM may never answer."""
        self._service.stop()

    def _step(self) -> float:
        self.check(self._time.tick())
        return BEAT_S

    def check(self, at: float) -> None:
        """One beat, at this time of the monitor."""
        if self._workers is not None:
            self._workers.check(at)
        if self.beat is None:
            self._redelivery.answered(at)  # it has not begun, or reads parked deliveries
        self._redelivery.observe(self._rounds(), at)
        hangs = self._redelivery.is_too_long(at)
        if hangs and not self._hangs:
            lasts_s = self._redelivery.lasts_s(at)
            logger.error("the redelivery has made no progress for %.0f s: no heartbeat until it does", lasts_s)
        self._hangs = hangs
        self._ping_jvm()
        if self.beat is not None and not hangs:
            self.beat()
