"""Process trees: their start, usage and end; and safe identification despite reused process ids."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

from arborcast.core.backoff import Backoff
from arborcast.core.security.ip_addresses import EVERYWHERE
from arborcast.engine.processes.errors import PortInUse


class ManagedProcess:
    """The state of a process: running or not, its deaths in a row, and its next start. Times are monotonic. `forget_s`
    is the uptime after which earlier deaths do not count."""

    def __init__(self, backoff: Backoff, forget_s: float = 60.0) -> None:
        self._backoff = backoff
        self._forget_s = forget_s
        self.popen: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.failures = 0
        """Deaths in a row."""
        self._due = 0.0

    def is_due(self, now: float) -> bool:
        return self.popen is None and now >= self._due

    def exit_code(self) -> int | None:
        """Its exit code; None while it runs, or before its start."""
        return None if self.popen is None else self.popen.poll()

    def died(self, now: float, healthy_s: float) -> float:
        """Count a death after `healthy_s` seconds of healthy operation; returns the wait before the next start, in
        seconds, doubled each time."""
        self.popen = None
        self.failures = 1 if healthy_s >= self._forget_s else self.failures + 1
        wait_s = self._backoff.after(self.failures)
        self._due = now + wait_s
        return wait_s


class Deadline:
    """One limit for the sum of several steps; by the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()

    def passed(self, share: float = 1.0) -> bool:
        """Whether this share of the time has passed."""
        return time.monotonic() - self._began >= self._seconds * share


LOOPBACK = "127.0.0.1"


# Outside the range of outgoing connections and of listeners on port 0, which could take a port before its server binds
# it; and outside Kubernetes' node ports.
_FREE_PORTS = range(20_000, 30_000)


def free_port() -> int:
    """A port that is currently free, another one at each call. The caller should bind it soon."""
    for port in itertools.islice(_candidates(os.getpid()), len(_FREE_PORTS)):
        if is_free(port):
            return port
    raise PortInUse(f"no port from {_FREE_PORTS[0]} to {_FREE_PORTS[-1]} is free; choose ports in the configuration")


@functools.lru_cache(1)
def _candidates(_process: int) -> Iterator[int]:
    """The ports in a random order, for one process: not for its forks."""
    return itertools.cycle(random.sample(_FREE_PORTS, len(_FREE_PORTS)))


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether this process could listen on the port. Connections of a former listener in TIME_WAIT do not count."""
    return not obstacle(port, host)


def obstacle(port: int, host: str) -> str:
    """Why this process cannot listen on the port, with its holder if it is in use; empty if it can."""
    try:
        _bound(host, port).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return f"cannot be used on {host}: {error.strerror}"
        by = holder(port)
        return f"is in use by {by}" if by else "is in use"
    return ""


def _bound(host: str, port: int) -> socket.socket:
    """A socket at the address of a server with this host, which may be a name. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host or EVERYWHERE, port, type=socket.SOCK_STREAM)[0]
    probe = socket.socket(family, kind, protocol)
    try:
        if port:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
    except OSError:
        probe.close()
        raise
    return probe


def holder(port: int) -> str:
    """The listener on the port, for people: "java (pid 4711)"; empty without permission."""
    # Other users' sockets need privileges, on macOS all sockets do.
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    return ""
                with contextlib.suppress(psutil.Error):
                    return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
                return f"pid {connection.pid}"
    return ""


def require_free(port: int, what: str, option: str, host: str = LOOPBACK, zero: str = "takes a free one") -> None:
    """Raises PortInUse with a message that names the port, its holder and the option that chooses another."""
    if why := obstacle(port, host):
        raise PortInUse(
            f"port {port} for {what} {why}; change that, or choose another with {option} PORT ({option} 0 {zero})"
        )


_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Counts the requests to stop. The loop sleeps only in `wait`."""

    def __init__(self) -> None:
        self.stops = 0
        # A pipe instead of an Event: setting an Event in a handler can deadlock with the wait that it interrupts.
        self._reader, self._writer = os.pipe()  # not inherited: PEP 446
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    @contextlib.contextmanager
    def installed(self) -> Iterator[Signals]:
        """Installs the handlers (in the main thread), and restores the earlier ones at the end. A hangup that is
        ignored stays so: nohup."""
        numbers = (each for each in _STOP if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN)
        before = {number: signal.signal(number, self._stop) for number in numbers}
        # Without a handler a child's death does not end the wait.
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(fd)
            for number, handler in before.items():
                signal.signal(number, handler)

    def wait(self, seconds: float) -> None:
        """Sleep until a signal arrives, up to `seconds`."""
        ready, _, _ = select.select([self._reader], [], [], max(0.0, seconds))
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 4096)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stops += 1


_DIE_WITH_PARENT = str(Path(__file__).with_name("die_with_parent.py"))


def started_s(process: psutil.Process) -> float:
    """When the process started, in seconds; on Linux since the boot: a time since the epoch is computed from the clock,
    and changes when that is set."""
    created = process.create_time()
    return created - psutil.boot_time() if sys.platform == "linux" else created


@functools.cache
def _boot() -> str:
    """The id of this boot of the machine; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class ProcessId:
    """A unique identity: process ids are reused, but not with the same start time in the same boot."""

    pid: int
    created: float
    boot: str = ""

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The identity of a running process; None without one."""
        try:
            return cls(pid, started_s(psutil.Process(pid)), _boot())
        except psutil.Error:
            return None

    @classmethod
    def of_this(cls) -> ProcessId:
        return cls(os.getpid(), started_s(psutil.Process()), _boot())

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine was not restarted since."""
        return self.boot == _boot()

    def process(self) -> psutil.Process | None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            # Linux counts in clock ticks of a hundredth of a second.
            same = self.is_of_this_boot and abs(started_s(process) - self.created) < 0.02
            if same and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


@dataclass(frozen=True)
class Usage:
    """Usage of a process tree: resident bytes, CPU seconds since its start, number of processes."""

    memory_bytes: int = 0
    cpu_seconds: float = 0.0
    processes: int = 0


def spawn(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, log: IO[bytes] | None
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, with its output into `log`; None: into a pipe. It dies with this
    process.

    Call it from the main thread: on Linux the child dies with the thread that started it.
    """
    return subprocess.Popen(
        killed_with_parent(command),
        env=dict(environ),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if log is None else log,
        stderr=subprocess.STDOUT,
        # Ctrl-C in the terminal must reach only the supervisor, which stops the parts in their order.
        start_new_session=True,
    )


def killed_with_parent(command: Sequence[str]) -> list[str]:
    """The command, made to die with this process."""
    return [sys.executable, "-I", "-S", _DIE_WITH_PARENT, str(os.getpid()), *command]


def session(leader: int) -> list[psutil.Process]:
    """All running processes of the session of a spawned process, itself first if it runs."""
    return sorted((process for _, process in sessions([leader])), key=lambda process: process.pid != leader)


def sessions(leaders: Container[int]) -> Iterator[tuple[int, psutil.Process]]:
    """All running processes of the sessions of these spawned processes, each with its leader.

    In contrast to the tree of descendants this includes processes whose leader has died, and in contrast to the process
    group those with a group of their own, such as Spark's Python workers.
    """
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            leader = os.getsid(pid)
            if leader in leaders and (process := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
                yield leader, process


def stopped(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those stopped by a signal or a debugger."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                found.append(process)
    return found


def name(process: psutil.Process) -> str:
    """The name of its program; empty if it has ended."""
    try:
        return process.name()
    except psutil.Error:
        return ""


def words(process: psutil.Process) -> list[str]:
    """Its command line; empty if it has ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def send(process: psutil.Process, number: int) -> None:
    """Send a signal unless the process has ended."""
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def usage(processes: Iterable[psutil.Process], *, ended_children: bool = True) -> Usage:
    """The sum of the usage of the processes; with `ended_children`, with the CPU time of their ended children.

    Memory is PSS on Linux: pages shared by several processes (Python workers are forks of one another) count once.
    Elsewhere it is RSS, which counts them for each process.
    """
    memory, cpu, count = 0, 0.0, 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            memory += resident(process)
            cpu += times.user + times.system
            if ended_children:  # only the parent that waited for them has their times
                cpu += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
            count += 1
    return Usage(memory, cpu, count)


def memory_kind() -> str:
    """The kind of memory in `usage`: "pss" or "rss"."""
    return "pss" if sys.platform == "linux" else "rss"


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """kill -9 for each; waits for their end, up to two seconds."""
    targets = list(processes)
    for process in targets:
        # psutil compares start times before it signals, so a reused id is safe.
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(targets, 2.0)


def resident(process: psutil.Process) -> int:
    """The memory of one process as counted by `usage`, in bytes."""
    if sys.platform == "linux":
        with contextlib.suppress(psutil.AccessDenied):
            return int(process.memory_full_info().pss)
    return int(process.memory_info().rss)
