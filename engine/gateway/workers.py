"""Several gateway processes on one port: started, supervised and stopped together.

Each worker follows the logs and serves its share of the connections. The first one does singleton work; while it
restarts, the work waits. Workers share the memory of repeated requests and of their positions in the control log, and a
directory with their metrics.

A worker that dies, or whose event loop hangs, is replaced; its connections are lost, those not yet accepted are not.
Each worker proves its progress to the parent by the time of a file, and the parent to the workers, since it does not
serve HTTP. No worker outlives the parent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from arborcast.core.backoff import Backoff
from arborcast.core.errors import ConfigError
from arborcast.core.files import new_shared_memory, shared_memory, write_atomically
from arborcast.core.liveness import RunningTime, Silence
from arborcast.core.reasons import reason_of
from arborcast.core.telemetry.metrics import Registry, merged
from arborcast.core.threads import pool, start_thread
from arborcast.engine.processes.processes import ManagedProcess, killed_with_parent
from arborcast.ingest.settings import GatewaySettings
from arborcast.ingest.state.changes import GatewayPositions
from arborcast.ingest.state.repeats import TABLE_BYTES

logger = logging.getLogger("arborcast.gateway")

_POLL_S = 0.1
_PUBLISH_S = 1.0

# Delay before a replacement: none at first, then longer. After this number of failures in a row the parent exits, and
# its supervisor restarts it.
_BACKOFF = Backoff(0.1, 5.0)
_FORGET_S = 10.0
_HOPELESS = 8

# Added to the maximum stop time of a worker.
_STOP_MARGIN_S = 3.0

_CONFIG_ERROR = 2

# Beginning of the names of folders in the temporary directory, and a file there: the shared memory.
_FOLDER, _MEMORY = "arborcast-gateway-", "memory"

_READY = ".ready"

# The time of such a file is its owner's last beat.
_BEAT = ".beat"
_BEAT_S = 1.0
_PARENT = "parent"

# Time of a worker until its first heartbeat: mostly imports.
_FIRST_BEAT_S = 120.0


@dataclass(frozen=True)
class Share:
    """A worker's data from its parent. `number` counts from 0."""

    number: int
    listener: socket.socket
    memory: memoryview
    folder: Path

    def waits_for(self, count: int) -> str:
        """Which of `count` workers is not ready yet, empty when all are: any of them may get the next connection."""
        missing = [number for number in range(count) if not (self.folder / f"{number}{_READY}").exists()]
        return f"worker {missing[0]} is not ready yet" if missing else ""

    def positions(self) -> GatewayPositions:
        """Positions of all workers, in the memory behind that of repeated requests."""
        return GatewayPositions(self.memory[TABLE_BYTES:], self.number)

    @property
    def first(self) -> bool:
        """Whether this worker does singleton work."""
        return self.number == 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments with which the parent passes a worker's share; not for people."""
    for name in ("--worker", "--listen-fd"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--share", type=Path, help=argparse.SUPPRESS)


def share_of(options: argparse.Namespace) -> Share | None:
    """A worker's share; None in the parent."""
    if options.worker is None:
        return None
    listener = socket.socket(fileno=options.listen_fd)
    listener.setblocking(False)
    return Share(options.worker, listener, shared_memory(options.share / _MEMORY), options.share)


class WorkerMetrics(Registry):
    """A worker's metrics: those of all workers; those of the others are a second old."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self._share = share

    def text(self) -> str:
        texts = {str(self._share.number): super().text()}
        for file in self._share.folder.glob("*.metrics"):
            # The parent removes those of a dead worker.
            with contextlib.suppress(FileNotFoundError):
                if file.stem not in texts:
                    texts[file.stem] = file.read_text()
        return merged(dict(sorted(texts.items())), "worker")

    async def publish_forever(self, obstacle: Callable[[], str]) -> None:
        """Write them for the other workers, with the readiness of this one; ends when the parent has ended. They are
        read on the event loop, which changes their sources; only the file is written in a thread."""
        loop = asyncio.get_running_loop()
        writer = pool("metrics", 1)
        logged = False
        try:
            while True:
                hindered = bool(obstacle())
                try:
                    await loop.run_in_executor(writer, self._publish, super().text(), not hindered)
                    logged = False
                except FileNotFoundError:
                    return
                except OSError as error:
                    logger.log(logging.DEBUG if logged else logging.ERROR, "metrics cannot be written: %s", error)
                    logged = True
                await asyncio.sleep(_POLL_S if hindered else _PUBLISH_S)
        finally:
            writer.shutdown(wait=False)

    def _publish(self, text: str, ready: bool) -> None:
        own = self._share.folder / f"{self._share.number}.metrics"
        mark = own.with_suffix(_READY)
        if ready:
            mark.touch()  # first: on a full disk only the metrics are missing
        else:
            mark.unlink(missing_ok=True)
        write_atomically(own, text, durable=False)


class LoopBeats:
    """A worker's beats, and its check of the parent's. The event loop only counts: a thread writes the file, since that
    may wait for the disk."""

    def __init__(self, share: Share, limit_s: float) -> None:
        self._own = share.folder / f"{share.number}{_BEAT}"
        self._parents = share.folder / f"{_PARENT}{_BEAT}"
        self._limit_s = limit_s
        self._rounds = 0
        self._problem = ""

    async def beat_forever(self) -> None:
        """Runs until the process ends."""
        start_thread("beat", self._write_forever)
        while True:
            self._rounds += 1
            await asyncio.sleep(_BEAT_S)

    def problem(self) -> str:
        """The problem of the parent; empty without one."""
        return self._problem

    def _write_forever(self) -> None:
        running_time, parent, shown = RunningTime(2 * _BEAT_S), Silence(self._limit_s, 0.0), 0
        while True:
            if self._rounds != shown:
                shown = self._rounds
                _beat(self._own)
            now = running_time.tick()
            parent.observe(_beat_time(self._parents), now)
            silent = f"the parent of the workers has made no progress for {parent.lasts_s(now):.0f} s"
            self._problem = silent if parent.is_too_long(now) else ""
            time.sleep(_BEAT_S)


def _beat(file: Path) -> None:
    with contextlib.suppress(OSError):  # the parent removes the folder at its end
        file.touch()


def _beat_time(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


@contextlib.contextmanager
def _shared_folder() -> Iterator[Path]:
    """A new temporary folder, locked until the end of this process. Those of killed processes are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        # In use, or another user's.
        with contextlib.suppress(OSError), _locked(left, fcntl.LOCK_NB):
            shutil.rmtree(left)
    while True:
        with tempfile.TemporaryDirectory(prefix=_FOLDER, ignore_cleanup_errors=True) as name, _locked(Path(name)):
            folder = Path(name)
            if folder.exists():  # another process may have removed it before the lock
                yield folder
                return


@contextlib.contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[None]:
    """Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(descriptor)


class _WorkerProcess(ManagedProcess):
    def __init__(self, number: int, listener: socket.socket) -> None:
        super().__init__(_BACKOFF, _FORGET_S)
        self.number = number
        self.listener = listener
        self.silence: Silence | None = None
        self.beats = False


def declare_workers(metrics: Registry, hung: Callable[[], int]) -> None:
    """Metrics of the parent of several workers."""
    metrics.counted("arborcast_gateway_hung_workers_total", "Hanging workers that were replaced.", hung)


class Workers:
    """The parent. All work is in the main thread: the kernel ends a worker with the thread that started it."""

    def __init__(self, settings: GatewaySettings, arguments: Sequence[str], listeners: Sequence[socket.socket]) -> None:
        self._stop_s = settings.stop_timeout_s + _STOP_MARGIN_S
        self._hang_s = settings.hang_timeout_s
        self._time = RunningTime(5 * _POLL_S)
        self._checked_at = -_BEAT_S
        self._hung = 0
        self._metrics = Registry()
        declare_workers(self._metrics, lambda: self._hung)
        self._arguments = arguments
        self._workers = [_WorkerProcess(number, listener) for number, listener in enumerate(listeners)]
        self._stopping = False

    def run(self) -> int:
        """Keep the workers alive until SIGTERM or SIGINT; returns the exit status. Raises ConfigError without space for
        their shared memory."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._on_stop_signal(number))
        with _shared_folder() as folder:
            size = TABLE_BYTES + GatewayPositions.size(len(self._workers))
            try:
                new_shared_memory(folder / _MEMORY, size)
            except OSError as error:
                where = tempfile.gettempdir()
                raise ConfigError(
                    f"{where} has no {size:,} bytes for the shared memory of gateway.workers (TMPDIR sets another "
                    f"folder): {reason_of(error)}"
                ) from error
            status = 0
            self._show_metrics(folder)
            while not self._stopping and status == 0:
                status = self._step(folder)
                time.sleep(_POLL_S)
            self._end()
        return status

    def _step(self, folder: Path) -> int:
        """Do due work; returns an exit status if it cannot continue."""
        own_s = self._time.tick()
        if own_s - self._checked_at >= _BEAT_S:
            self._checked_at = own_s
            _beat(folder / f"{_PARENT}{_BEAT}")
            for worker in self._workers:
                if worker.popen is not None and self._hangs(worker, own_s, folder):
                    worker.popen.kill()
        now = time.monotonic()
        for worker in self._workers:
            if worker.is_due(now) and not self._stopping:
                self._start(worker, folder)
            elif (code := worker.exit_code()) is not None:
                worker.died(now, now - worker.started)
                for left in folder.glob(f"{worker.number}.*"):
                    left.unlink(missing_ok=True)
                if code == _CONFIG_ERROR:
                    return _CONFIG_ERROR
                if worker.failures >= _HOPELESS:
                    logger.critical("worker %d ended %d times in a row: stopping", worker.number, worker.failures)
                    return 1
                logger.error("worker %d ended with status %d; another one is started", worker.number, code)
        return 0

    def _hangs(self, worker: _WorkerProcess, at: float, folder: Path) -> bool:
        """Whether its event loop hangs; if so it is counted and logged."""
        beaten = _beat_time(folder / f"{worker.number}{_BEAT}")
        if worker.silence is None:
            worker.silence = Silence(_FIRST_BEAT_S if self._hang_s else 0.0, at)
        elif beaten and not worker.beats:
            worker.beats, worker.silence = True, Silence(self._hang_s, at)
        worker.silence.observe(beaten, at)
        if not worker.silence.is_too_long(at):
            return False
        lasts_s, worker.silence = worker.silence.lasts_s(at), Silence(0.0, at)
        logger.error("worker %d has made no progress for %.0f s and is killed", worker.number, lasts_s)
        self._hung += 1
        self._show_metrics(folder)
        return True

    def _show_metrics(self, folder: Path) -> None:
        """Write the parent's metrics beside those of the workers."""
        with contextlib.suppress(OSError):  # a full disk ends no worker
            write_atomically(folder / f"{_PARENT}.metrics", self._metrics.text(), durable=False)

    def _start(self, worker: _WorkerProcess, folder: Path) -> None:
        listener = worker.listener.fileno()
        command = [sys.executable, "-m", "arborcast.engine.gateway", *self._arguments, "--worker", str(worker.number)]
        command += ["--listen-fd", str(listener), "--share", str(folder)]
        worker.started = time.monotonic()
        worker.silence, worker.beats = None, False
        try:
            worker.popen = subprocess.Popen(killed_with_parent(command), pass_fds=[listener])  # noqa: S603  # this interpreter, no shell
        except OSError as error:  # no memory for it, for example: the other workers continue
            wait_s = worker.died(worker.started, 0.0)
            why = worker.number, reason_of(error), wait_s
            logger.error("worker %d cannot be started: %s; trying again in %g s", *why)

    def _on_stop_signal(self, number: int) -> None:
        if self._stopping:
            self._signal_all(number)  # a second time: at once
        self._stopping = True

    def _signal_all(self, number: int) -> None:
        for worker in self._workers:
            if worker.popen is not None and worker.exit_code() is None:
                worker.popen.send_signal(number)

    def _end(self) -> None:
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + self._stop_s
        for worker in self._workers:
            if worker.popen is not None:
                try:
                    worker.popen.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    logger.warning("worker %d did not stop in time and is killed", worker.number)
                    worker.popen.kill()
                    worker.popen.wait()
