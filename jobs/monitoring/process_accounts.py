"""What the engine's processes use, added up by what they are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from jobs.monitoring.moments import ProcessFigures
from jobs.stack.processes import resident, words


class Use(NamedTuple):
    """One process as seen at one look. `identity` is not used again by another."""

    name: str
    identity: tuple[int, float]
    cpu_seconds: float
    memory_bytes: float
    threads: int
    descriptors: int


class ProcessAccounts:
    """Adds up by name, and keeps CPU seconds of what has ended: a sum that falls would look like a restart, and the
    whole of it like work done since.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, float], float] = {}
        self._cpu: dict[str, float] = {}

    def look(self, uses: Iterable[Use]) -> dict[str, ProcessFigures]:
        """Figures by name, of names that have a process now."""
        figures: dict[str, ProcessFigures] = {}
        seen = {}
        for use in uses:
            seen[use.identity] = use.cpu_seconds
            used = max(0.0, use.cpu_seconds - self._seen.get(use.identity, 0.0))
            self._cpu[use.name] = self._cpu.get(use.name, 0.0) + used
            known = figures.get(use.name, ProcessFigures(0, 0, 0, 0, 0))
            figures[use.name] = ProcessFigures(
                self._cpu[use.name],
                known.memory_bytes + use.memory_bytes,
                known.threads + use.threads,
                known.descriptors + use.descriptors,
                known.processes + 1,
            )
        self._seen = seen
        return figures


def uses_of(leaders: Mapping[int, str]) -> list[Use]:
    """All processes in the sessions of these leaders, whose parts are named, and this process as the supervisor."""
    found = [_use(psutil.Process(), "supervisor")]
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            part = leaders.get(os.getsid(pid))
            if part is not None:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(_use(process, role(part, words(process))))
    return found


def role(part: str, command: list[str]) -> str:
    """What a process is, from its part and its command line. A closed set: it becomes a label.

    The dispatch job is three: Spark's JVM, the driver, and the Python workers, which are forks of one daemon.
    """
    if part != "dispatch" or not command:
        return part
    if Path(command[0]).name == "java":
        return "dispatch-jvm"
    return "dispatch-driver" if any(word.endswith("dispatch_stream.py") for word in command) else "dispatch-workers"


def _use(process: psutil.Process, name: str) -> Use:
    with process.oneshot():
        times = process.cpu_times()
        return Use(
            name,
            (process.pid, process.create_time()),
            times.user + times.system,
            resident(process),
            process.num_threads(),
            process.num_fds(),
        )
