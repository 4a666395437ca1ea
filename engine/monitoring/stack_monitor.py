"""The monitor of the embedded engine: the metrics of all parts and processes, on one page, and their history."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from arborcast.core.backoff import Backoff
from arborcast.core.telemetry.jvm import JvmFigures, declare_jvm
from arborcast.core.telemetry.metrics import CONTENT_TYPE, Registry, merged
from arborcast.core.threads import Service
from arborcast.engine.embedded.questions import fetch
from arborcast.engine.embedded.state import EngineStatus, PartState
from arborcast.engine.monitoring.endpoint import Page
from arborcast.engine.monitoring.history import MOST_SAMPLES, MetricsHistory, read_downsampled, read_history
from arborcast.engine.monitoring.perf_counters import read_jvm
from arborcast.engine.monitoring.samples import MetricsSample, ProcessFigures, Scrape, sample_of
from arborcast.engine.processes.processes import resident, sessions, started_s, words
from arborcast.engine.settings.loading import Settings


class ProcessUse(NamedTuple):
    """One process at one reading. `identity` is not reused by another process."""

    name: str
    identity: tuple[int, float]
    cpu_seconds: float
    memory_bytes: float
    threads: int
    descriptors: int


class ProcessAccounts:
    """Sums by name with the CPU seconds of ended processes: a falling sum would look like a restart, and its total like
    new work."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, float], float] = {}
        self._cpu: dict[str, float] = {}

    def update(self, uses: Iterable[ProcessUse]) -> dict[str, ProcessFigures]:
        """Figures by name, of names with a running process."""
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


# Smaller differences of the resident size count as unchanged, for this time.
_SAME = 1 / 50
_MEMORY_S = 60.0


class MemoryReader:
    """The memory of processes. Linux walks all pages of a process for its proportional size (some milliseconds for a
    JVM), so it is read only when the resident size has changed, or after a minute, because the number of sharers may
    have changed."""

    def __init__(
        self, read: Callable[[psutil.Process], int] = resident, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._now = now
        self._known: dict[tuple[int, float], tuple[int, float, int]] = {}

    def of(self, process: psutil.Process) -> int:
        size, now = process.memory_info().rss, self._now()
        identity = (process.pid, started_s(process))
        before, until, memory = self._known.get(identity, (0, 0.0, 0))
        if now >= until or abs(size - before) > before * _SAME:
            memory = self._read(process)
            self._known[identity] = (size, now + _MEMORY_S, memory)
        return memory

    def keep(self, identities: Iterable[tuple[int, float]]) -> None:
        """Drop all other, ended processes."""
        self._known = {each: self._known[each] for each in identities if each in self._known}


def uses_of(leaders: Mapping[int, str], memory: MemoryReader) -> list[ProcessUse]:
    """All processes in the sessions of these leaders, with their parts' names, and this process as the supervisor."""
    found = [_use(psutil.Process(), "supervisor", memory)]
    for leader, process in sessions(leaders):
        with contextlib.suppress(psutil.Error, OSError):
            found.append(_use(process, role(leaders[leader], words(process)), memory))
    memory.keep([use.identity for use in found])
    return found


def role(part: str, command: list[str]) -> str:
    """The role of a process, from its part and its command line. A closed set: it becomes a label. The dispatch job has
    three: Spark's JVM, the driver, and the Python workers, which are forks of one daemon."""
    if part != "dispatch" or not command:
        return part
    if Path(command[0]).name == "java":
        return "dispatch-jvm"
    return (
        "dispatch-driver"
        if any(argument.endswith("dispatch_stream.py") for argument in command)
        else "dispatch-workers"
    )


def _use(process: psutil.Process, name: str, memory: MemoryReader) -> ProcessUse:
    with process.oneshot():
        times = process.cpu_times()
        return ProcessUse(
            name,
            (process.pid, started_s(process)),
            times.user + times.system,
            memory.of(process),
            process.num_threads(),
            process.num_fds(),
        )


# Maximum age of a reading that is reused for a request.
_FRESH_S = 1.0

# Timeout of a part's metrics; a slower part is missing from the reading.
_PATIENCE_S = 2.0

_JSON = "application/json"

# A history has up to 4,000 samples of some kilobytes.
_MOST_PAGE = 64 * 1024 * 1024


@dataclass(frozen=True)
class Reading:
    at: float
    text: str
    sample: MetricsSample
    endpoints: Mapping[str, Any]


class StackMonitor:
    """Collects the figures of all parts, periodically and on request, in its own threads. It raises no exceptions."""

    def __init__(
        self,
        status: Callable[[], EngineStatus | None],
        urls: Mapping[str, str],
        history: MetricsHistory,
        sample_s: float,
        fetch: Callable[[str], bytes] | None = None,
    ) -> None:
        """`status` gives the states of the parts; `urls` are base addresses of parts with metrics, by part."""
        self._status = status
        self._urls = urls
        self._history = history
        self._sample_s = sample_s
        self._fetch = fetch or own_page
        self._accounts = ProcessAccounts()
        self._memory = MemoryReader()
        self._figures: dict[str, ProcessFigures] = {}
        self._broker: JvmFigures | None = None
        self._broker_registry = Registry()
        declare_jvm(self._broker_registry, lambda: self._broker)
        self._registry = Registry()
        declare_stack(self._registry, status, lambda: self._figures, history.folder.parent)
        self._lock = threading.Lock()
        self._last: Reading | None = None
        self._service = Service("monitor", self._sample, delay_s=sample_s, backoff=Backoff(sample_s, sample_s))

    def start(self) -> None:
        self._service.start()

    def stop(self) -> None:
        self._service.stop()

    def reading(self) -> Reading:
        """A reading that is at most a second old."""
        with self._lock:
            now = time.time()
            if self._last is None or not 0 <= now - self._last.at < _FRESH_S:
                self._last = self._collect(now)
            return self._last

    def pages(self) -> dict[str, Page]:
        return {
            "/metrics": Page(CONTENT_TYPE.decode(), lambda: self.reading().text.encode()),
            "/status.json": Page(_JSON, self._status_page),
            "/history.json": Page(_JSON, lambda: self._history_page({}), self._history_page),
            "/recent.json": Page(_JSON, self._recent_page),
        }

    def _collect(self, now: float) -> Reading:
        status = self._status()
        parts = status.parts if status else {}
        running = {name: part.process.pid for name, part in parts.items() if part.process}
        answering = {name for name, part in parts.items() if part.process and not part.silent_since}
        self._figures = self._accounts.update(uses_of({pid: name for name, pid in running.items()}, self._memory))
        texts = {}
        for part, url in self._urls.items():
            if part in answering:  # a part that does not answer would delay the reading
                with contextlib.suppress(OSError):
                    texts[part] = self._fetch(f"{url}/metrics").decode()
        # It has no metrics page, and is not a program of ours.
        self._broker = read_jvm(running["kafka"]) if "kafka" in running else None
        texts["kafka"] = self._broker_registry.text()
        text = merged(texts, "component") + self._registry.text()
        endpoints: Mapping[str, Any] = {"slowest_endpoints": []}
        if "dispatch" in texts:
            with contextlib.suppress(OSError, ValueError, TypeError):
                endpoints = {**endpoints, **msgspec.json.decode(self._fetch(f"{self._urls['dispatch']}/status.json"))}
        return Reading(now, text, sample_of(now, Scrape.of(text)), endpoints)

    def _recent_page(self) -> bytes:
        now = self.reading().sample
        # The last stored sample may be this one.
        return msgspec.json.encode([*(sample for sample in self._history.recent() if sample.at < now.at), now])

    def _history_page(self, query: Mapping[str, str]) -> bytes:
        """`?since=…&points=…`: samples since a time; with `points` up to this number of them, evenly spaced."""
        now, since, points = time.time(), float(query.get("since", 0.0)), int(query.get("points", MOST_SAMPLES))
        if not 0 < points <= MOST_SAMPLES or not since < now:
            raise ValueError(f"since is a time before now, points at most {MOST_SAMPLES}")
        folder = self._history.folder
        return msgspec.json.encode(
            read_downsampled(folder, since, now, points) if "points" in query else read_history(folder, since)
        )

    def _status_page(self) -> bytes:
        reading = self.reading()
        return msgspec.json.encode({"at": reading.at, **reading.endpoints, "now": reading.sample})

    def _sample(self) -> float:
        self._history.add(self.reading().sample)
        return self._sample_s


def declare_stack(
    registry: Registry,
    status: Callable[[], EngineStatus | None],
    figures: Callable[[], Mapping[str, ProcessFigures]],
    home: Path,
) -> None:
    """Metrics that only the supervisor has: the state of the parts, the usage of each process, and the free space of
    the data directory."""

    def of_parts(read: Callable[[Any], float]) -> dict[tuple[str, ...], float]:
        known = status()
        return {(name,): float(read(part)) for name, part in known.parts.items()} if known else {}

    registry.gauges(
        "arborcast_part_ready",
        "1 when the part is ready and answers.",
        ("part",),
        lambda: of_parts(lambda part: part.state is PartState.READY and not part.silent_since),
    )
    registry.counts(
        "arborcast_part_restarts_total", "Restarts.", ("part",), lambda: of_parts(lambda part: part.restarts)
    )
    registry.counts(
        "arborcast_part_hangs_total", "Of these, after a hang.", ("part",), lambda: of_parts(lambda part: part.hangs)
    )
    registry.gauges(
        "arborcast_part_silent_seconds",
        "Time without an answer; 0: none.",
        ("part",),
        lambda: of_parts(lambda part: max(time.time() - part.silent_since, 0.0) if part.silent_since else 0.0),
    )

    def free() -> dict[tuple[str, ...], float]:
        with contextlib.suppress(OSError):
            return {(): shutil.disk_usage(home).free}
        return {}

    registry.gauges("arborcast_disk_free_bytes", "In the data directory.", (), free)
    for name, attribute, help in (
        ("arborcast_process_memory_bytes", "memory_bytes", "Memory in use: PSS on Linux, elsewhere RSS."),
        ("arborcast_process_threads", "threads", "Threads."),
        ("arborcast_process_descriptors", "descriptors", "Open file descriptors."),
        ("arborcast_processes", "processes", "Processes of this kind."),
    ):
        registry.gauges(name, help, ("process",), _reader(figures, attribute))
    registry.counts(
        "arborcast_process_cpu_seconds_total", "CPU time used.", ("process",), _reader(figures, "cpu_seconds")
    )


def _reader(
    figures: Callable[[], Mapping[str, ProcessFigures]], attribute: str
) -> Callable[[], dict[tuple[str, ...], float]]:
    return lambda: {(name,): getattr(one, attribute) for name, one in figures().items()}


def own_page(url: str) -> bytes:
    """A page of one of our own parts, at an address of this machine, which no certificate names. Raises as `get`."""
    return get(url, verify=False)


def gateway_page(settings: Settings, page: str) -> bytes:
    """A page of the gateway of these settings. Raises as `get`."""
    if not settings.gateway.port:
        raise OSError("gateway.port is 0: the gateway has a free port, which is unknown")
    return own_page(settings.gateway_url + page)


def get(url: str, timeout: float = _PATIENCE_S, *, verify: bool = True) -> bytes:
    """The body of a page. Raises OSError; FileNotFoundError for an unknown page."""
    status, body = fetch(url, timeout, most=_MOST_PAGE, verify=verify)
    if status == 404:
        raise FileNotFoundError(f"{url} is not there")
    if status != 200:
        raise OSError(f"{url} answered {status}")
    return body
