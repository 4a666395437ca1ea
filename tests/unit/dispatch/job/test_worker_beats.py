"""Workers that hang or end: real processes, forked as Spark's daemon forks them, and a fake clock."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from arborcast.dispatch.job.heartbeat import FILE, LIMIT, PATIENCE_WITH_TASKS, WorkerBeats, new_file, started_at
from tests.support.process import has_ended
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LIMIT_S = 30.0
_INT = struct.Struct(">i")

# For each word on stdin: forks a worker and prints its process id. SIGCHLD is ignored, as in Spark's daemon.
DAEMON = """
import os, signal, sys, threading, time
from arborcast.core import liveness
from arborcast.dispatch.job import heartbeat

def idle():
    time.sleep(600)

def works():
    with heartbeat.task():
        while True:
            liveness.beat()
            time.sleep(0.01)

def stuck():
    with heartbeat.task():
        liveness.beat()
        time.sleep(600)

def ended():
    with heartbeat.task():
        liveness.beat()
    time.sleep(600)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
heartbeat._BEAT_S = 0.02
heartbeat.start_heartbeats()
assert threading.active_count() == 1
for word in sys.stdin:
    pid = os.fork()
    if not pid:
        globals()[word.strip()]()
    print(pid, flush=True)
"""


class Daemon:
    """The daemon, its workers, and the driver's side."""

    def __init__(self, folder: Path, limit_s: float | None = None) -> None:
        """With `limit_s` the daemon itself checks its workers."""
        self.killed = 0
        self.file = folder / "run" / "workers"
        self.beats = WorkerBeats(new_file(self.file), LIMIT_S, self._count_killed)
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(DAEMON)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, FILE: str(self.file)} if limit_s is None else {**os.environ, LIMIT: str(limit_s)},
        )
        self.pids: list[int] = []

    def _count_killed(self) -> None:
        self.killed += 1

    def fork(self, what: str) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        self.pids.append(int(self.process.stdout.readline()))
        return self.pids[-1]

    def fields(self) -> dict[int, tuple[int, int, int]]:
        """By process id: rounds of the process, rounds of its tasks, whether it has a task."""
        numbers = memoryview(self.file.read_bytes()).cast("q").tolist()
        places = [numbers[at : at + 5] for at in range(0, len(numbers), 5)]
        return {pid: (runs, works, busy) for pid, _, runs, works, busy in places if pid > 0}

    def look(self, at: float, silent: tuple[int, ...] = (), stuck: int = 0) -> None:
        """A check by the driver, after all processes but the silent ones, and all tasks but that of `stuck`, have
        beaten."""
        before = self.fields()

        def has_beaten(pid: int) -> bool:
            runs, works, busy = self.fields().get(pid, (-1, -1, 0))
            return runs > before[pid][0] and (not busy or pid == stuck or works > before[pid][1])

        wait_until(lambda: all(has_beaten(pid) for pid in before if pid not in silent))
        self.beats.check(at)

    def end(self) -> None:
        for pid in [*self.pids, self.process.pid]:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    made.end()


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def wait_for_beats(daemon: Daemon, *pids: int) -> None:
    wait_until(lambda: set(pids) <= set(daemon.fields()))


def test_only_stopped_workers_are_killed(daemon: Daemon) -> None:
    """With or without a task: a stopped idle worker would never begin its next one."""
    idle, works, stopped, busy = (daemon.fork(what) for what in ("idle", "works", "idle", "works"))
    wait_for_beats(daemon, daemon.process.pid, idle, works, stopped, busy)
    daemon.look(0.0)
    stop(stopped)
    stop(busy)
    daemon.look(1.0, (stopped, busy))
    daemon.look(LIMIT_S - 0.1, (stopped, busy))
    assert daemon.killed == 0
    daemon.look(LIMIT_S + 1.0, (stopped, busy))
    wait_until(lambda: has_ended(stopped) and has_ended(busy))
    assert daemon.killed == 2
    daemon.look(1_000.0)
    daemon.look(2_000.0)
    assert daemon.killed == 2
    assert not has_ended(idle)
    assert not has_ended(works)
    assert not has_ended(daemon.process.pid)


def test_on_a_cluster_the_daemon_checks_its_workers(tmp_path: Path) -> None:
    """With real time and a short limit; running workers beat every 20 ms."""
    daemon = Daemon(tmp_path, limit_s=2)
    try:
        idle, works, stopped = (daemon.fork(what) for what in ("idle", "works", "idle"))
        wait_until(lambda: psutil.Process(stopped).num_threads() == 2)  # its heartbeat has started
        stop(stopped)
        wait_until(lambda: has_ended(stopped))
        assert not has_ended(idle)
        assert not has_ended(works)
        assert daemon.process.poll() is None
    finally:
        daemon.end()


def test_a_stuck_task_is_killed_after_the_longer_limit(daemon: Daemon) -> None:
    """The process beats, its task does not: the longer limit applies. A process without a task is not killed."""
    stuck, works, ended = daemon.fork("stuck"), daemon.fork("works"), daemon.fork("ended")
    wait_until(lambda: [daemon.fields().get(pid, (0, 0, 9))[2] for pid in (stuck, works, ended)] == [1, 1, 0])
    for at in (0.0, LIMIT_S * PATIENCE_WITH_TASKS - 0.1, LIMIT_S * PATIENCE_WITH_TASKS):
        assert daemon.killed == 0
        daemon.look(at, stuck=stuck)
    wait_until(lambda: has_ended(stuck))
    daemon.look(10_000.0)
    assert daemon.killed == 1
    assert not has_ended(works)
    assert not has_ended(ended)


def test_a_stopped_daemon_is_killed(daemon: Daemon) -> None:
    idle = daemon.fork("idle")
    wait_for_beats(daemon, daemon.process.pid, idle)
    daemon.look(0.0)
    stop(daemon.process.pid)
    daemon.look(1.0, (daemon.process.pid,))
    daemon.look(1.0 + LIMIT_S, (daemon.process.pid,))
    assert daemon.process.wait(120) == -signal.SIGKILL
    daemon.look(100.0)
    assert not has_ended(idle), "Spark is still connected to the workers"


def test_the_slot_of_an_ended_worker_is_reused(daemon: Daemon) -> None:
    first = daemon.fork("idle")
    wait_for_beats(daemon, first)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: has_ended(first) and not psutil.pid_exists(first))
    second = daemon.fork("idle")
    wait_for_beats(daemon, second, daemon.process.pid)
    assert first not in daemon.fields()
    # The driver treats it as another worker. The driver was suspended before the second look: no worker counts as
    # silent.
    daemon.beats.check(0.0)
    daemon.beats.check(LIMIT_S - 1)
    daemon.look(LIMIT_S - 1 + 4)
    assert daemon.killed == 0


def test_another_process_with_the_same_id_is_not_killed(daemon: Daemon) -> None:
    idle = daemon.fork("idle")
    wait_for_beats(daemon, idle)
    with daemon.file.open("r+b") as file:
        numbers = memoryview(bytearray(file.read())).cast("q")
        numbers[5 + 1] -= 1  # its start time
        file.seek(0)
        file.write(numbers)
    stop(idle)
    daemon.beats.check(0.0)
    daemon.look(LIMIT_S, (idle,))
    assert daemon.killed == 0
    assert not has_ended(idle)


def test_a_worker_without_work_exits_without_an_error() -> None:
    how = {"PYTHON_WORKER_FACTORY_SECRET": "s", "SPARK_REUSE_WORKER": "1"}
    # Spark's default.
    how["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"
    command = [sys.executable, "-m", "arborcast.dispatch.job.worker_daemon", "pyspark.worker"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **how}
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdin is not None
        assert daemon.stderr is not None
        (port,) = _INT.unpack(daemon.stdout.read(_INT.size))
        with (
            socket.create_connection(("127.0.0.1", port), timeout=120) as connection,
            connection.makefile("rwb") as both,
        ):
            (worker,) = _INT.unpack(both.read(_INT.size))
            assert started_at(worker)
            both.write(_INT.pack(1) + b"s")
            both.flush()
            assert both.read(_INT.size + 2) == _INT.pack(2) + b"ok"
            # SO_LINGER 0: close resets the connection, as with unread bytes in its buffer.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: not started_at(worker))
        daemon.stdin.close()
        assert daemon.stderr.read() == b""
