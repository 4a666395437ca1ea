"""A part of the engine: a process that is kept running."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import psutil

from arborcast.core.backoff import Backoff
from arborcast.core.telemetry import log_format
from arborcast.engine.embedded.questions import LivenessWatch, Question
from arborcast.engine.embedded.state import PartState, PartStatus
from arborcast.engine.processes import logfiles, processes
from arborcast.engine.processes.errors import StackError
from arborcast.engine.processes.processes import ManagedProcess, ProcessId
from arborcast.engine.settings.stack import StackSettings

Report = Callable[[str], None]

# Report progress to a terminal after this time without output.
_REPORT_S = 4.0

# Errors in our logs, in both forms, and repeated starts within a part; characters of them that are reported.
_ERROR = re.compile(r"Z (?:error|critical) |\"level\": ?\"(?:error|critical)\"| is started again in ")
_SHOWN = 300

# A long step of a start that advances, such as reading gigabytes of parked deliveries.
_ADVANCES = re.compile(r" records are left\b")


@dataclass(frozen=True)
class PartSpec:
    """The definition of a part. `prepare` runs before every start. `after` names parts that must be ready before its
    first start. `stop_targets` selects the processes of the part that get SIGTERM, by default the first. `stop_share`
    is the share of the engine's stop time after which it is killed. With `json_log` its output is converted to JSON.
    `liveness` is its health check while it is ready; without an answer for `hang_timeout_s` it hangs (0: never)."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    folder: Path
    log: Path
    is_ready: Callable[[], bool]
    prepare: Callable[[], None] = lambda: None
    after: tuple[str, ...] = ()
    stop_targets: Callable[[list[psutil.Process]], list[psutil.Process]] = lambda all_of_it: all_of_it[:1]
    stop_share: float = 0.97
    json_log: bool = False
    liveness: Question | None = None
    hang_timeout_s: float = 0.0


class StartProgress:
    """A start: the times of its last report and of its last advance (monotonic), and its log since then."""

    def __init__(self, log: Path, now: float = 0.0) -> None:
        self.reported_at = self.advanced_at = now
        self._written = logfiles.LogTail(log)
        self._last = ""

    def report(self, now: float) -> str:
        """The last error or advance in the log, as the end of a sentence; empty without one. An error may be the reason
        of a start that does not end."""
        self.reported_at = now
        for line in self._written.new_lines():
            if _ADVANCES.search(line):
                self.advanced_at = now
            elif not _ERROR.search(line):
                continue
            self._last = log_format.message_of(line) or line
        return f"; its log has: {self._last[:_SHOWN]}" if self._last else ""


class Part:
    """Runs one part. Not thread-safe; used by the supervisor's loop, which calls `step`."""

    def __init__(self, spec: PartSpec, settings: StackSettings, report: Report) -> None:
        self.spec = spec
        self._settings = settings
        self._report = report
        self.process = ManagedProcess(Backoff(settings.restart_first_s, settings.restart_max_s))
        self._id: ProcessId | None = None
        # The copying of its output, or the file that the part itself writes.
        self._log: threading.Thread | FileIO | None = None
        self._progress = StartProgress(spec.log)
        self.state = PartState.STARTING
        self._since = time.time()
        self._last_exit = ""
        self._watch: LivenessWatch | None = None
        self._silent_since = 0.0
        self._hangs = 0
        self.restarts = 0
        self.was_ready = False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def status(self) -> PartStatus:
        return PartStatus(
            self.state, self._since, self._id, self.restarts, self._last_exit, self._hangs, self._silent_since
        )

    @property
    def running(self) -> bool:
        return self.process.popen is not None

    def step(self, now: float) -> None:
        """Handle due events: a death, a start, a restart, readiness."""
        if self.running:
            started = self.process.started
            if (code := self.process.exit_code()) is not None:
                self._died(now, exit_text(code))
            elif self.state is PartState.STARTING:
                if self.spec.is_ready():
                    self.was_ready = True
                    self._become(PartState.READY)
                    self._report(f"{self.name}: ready ({now - started:.1f} s)")
                elif now - self._progress.reported_at >= _REPORT_S:
                    self._report(f"{self.name}: starting, {now - started:.0f} s so far{self._progress.report(now)}")
                elif now - self._progress.advanced_at > self._settings.start_timeout_s:
                    self._died(now, f"was not ready within {self._settings.start_timeout_s:g} s")
        elif self.process.is_due(now):
            self._start(now)

    def watch(self, at: float) -> None:
        """Kill the part if it hangs. `at` is the supervisor's own time."""
        spec = self.spec
        if self.state is not PartState.READY or spec.liveness is None or not spec.hang_timeout_s:
            return
        if self._watch is None:
            self._watch = LivenessWatch(self.name, spec.liveness, spec.hang_timeout_s, at)
        silent_s = self._watch.silent_s(at)
        if self._watch.hangs(at):
            self._hangs += 1
            stopped = (
                f"{processes.name(each)} (pid {each.pid}) is stopped" for each in processes.stopped(self.members())
            )
            why = "; ".join([self._watch.why, *stopped])
            # SIGKILL for all of it: a stopped process takes no other signal.
            self._died(time.monotonic(), f"did not answer for {silent_s:.0f} s ({why}) and was killed")
        elif silent_s and not self._silent_since:
            self._silent_since = time.time() - silent_s
            self._report(f"{self.name}: {self._watch.why}; killed when that lasts for {spec.hang_timeout_s:g} s")
        elif not silent_s and self._silent_since:
            self._report(f"{self.name}: answers again, after {time.time() - self._silent_since:.0f} s")
            self._silent_since = 0.0

    def members(self) -> list[psutil.Process]:
        """All processes of the part, the first one first."""
        return processes.session(self._id.pid) if self._id else []

    def request_stop(self) -> None:
        """Send SIGTERM to the selected processes; stopped ones are continued for it."""
        members = self.members()
        for process in self.spec.stop_targets(members):
            processes.send(process, signal.SIGTERM)
        for process in processes.stopped(members):
            processes.send(process, signal.SIGCONT)

    def has_ended(self) -> bool:
        """Whether all processes have ended; the state is then stopped."""
        if (self.running and self.process.exit_code() is None) or self.members():
            return False
        self._stopped()
        return True

    def kill(self) -> None:
        """kill -9 for all processes."""
        self._kill()
        self._stopped()

    def limit_log(self) -> None:
        """Rotate a large log file, and continue a deleted one; must be called regularly."""
        if isinstance(self._log, FileIO):
            logfiles.keep(self.spec.log, self._log.fileno())
        logfiles.rotate(self.spec.log, self._settings.log_bytes)

    def fail(self) -> None:
        """Record that the engine did not start because of this part. Called after its stop."""
        self._become(PartState.FAILED)

    def _start(self, now: float) -> None:
        spec = self.spec
        if self.state is not PartState.STARTING:
            self._become(PartState.STARTING)
        self.process.started = now
        self._progress = StartProgress(spec.log, now)
        self._report(f"{self.name}: starting")
        try:
            spec.log.parent.mkdir(exist_ok=True)  # deleted by a person, to make space
            spec.prepare()
            self._log = written = None if spec.json_log else spec.log.open("a+b", buffering=0)
            started = processes.spawn(spec.command, spec.environ, spec.folder, written)
        except (StackError, OSError) as error:
            self._died(time.monotonic(), f"could not be started: {error}")
            return
        self.process.popen = started
        if started.stdout is not None:
            self._log = logfiles.follow(os.dup(started.stdout.fileno()), spec.log, self.name)
            started.stdout.close()
        self._id = ProcessId.of(started.pid)

    def _died(self, now: float, how: str) -> None:
        # A surviving member would conflict with its successor: same port, same checkpoint.
        self._kill()
        self._drain()
        ran = now - self.process.started
        # A start without readiness does not count as uptime: a slowly failing part would otherwise restart for ever
        # without a report.
        wait = self.process.died(now, ran if self.state is PartState.READY else 0.0)
        self.restarts += 1
        self._id = None
        self._last_exit = how
        self._become(PartState.RESTARTING)
        self._report(
            f"{self.name}: {how} after {ran:.1f} s; restart {self.restarts} in {wait:g} s; its log is {self.spec.log}"
        )

    def _kill(self) -> None:
        processes.kill_all(self.members())
        if self.process.popen is not None:
            # It has ended, unless it hangs in the kernel; then do not wait.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.popen.wait(timeout=2)

    def _drain(self) -> None:
        """Read its last output before it is reported."""
        if isinstance(self._log, threading.Thread):
            self._log.join(timeout=1)
        elif self._log is not None:
            self._log.close()
        self._log = None

    def _stopped(self) -> None:
        self._drain()
        self.process.popen, self._id = None, None
        self._become(PartState.STOPPED)

    def _become(self, state: PartState) -> None:
        self.state = state
        self._since = time.time()
        self._silent_since = 0.0
        if self._watch is not None:
            self._watch.end()
            self._watch = None


def exit_text(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
