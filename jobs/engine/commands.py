"""What `arborcast up`, `down` and `status` do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from core.errors import ConfigError
from core.telemetry import log_format
from jobs.monitoring.history import MetricsHistory
from jobs.monitoring.stack_monitor import StackMonitor, serve
from jobs.processes import logfiles, processes
from jobs.processes.errors import PartFailed
from jobs.processes.processes import Deadline, ProcessId, Signals
from jobs.settings.loading import Settings, level_of, load_settings
from jobs.settings.outbound import describe
from jobs.settings.stack import StackSettings
from jobs.stack import engine, state
from jobs.stack.engine import Tools
from jobs.stack.home import Home, ensure_keys, free_mb, keep_private, shortage
from jobs.stack.state import EngineStatus, PartState, PartStatus
from jobs.stack.supervisor import BEAT_S, Supervisor
from jobs.terminal import complain

Report = Callable[[str], None]
SUPERVISOR = "supervisor"

# A supervisor that has not come round for so long is stopped, or hangs. It takes some seconds to end a part that hangs,
# and as long as the start of a JVM to prepare a new broker's folder.
_SILENT_S = 60.0


def to_stderr(line: str) -> None:
    """The report that a person at a terminal reads."""
    complain(line)


@dataclass(frozen=True)
class UpOptions:
    """How to bring the engine up.

    `detach`: go on in the background and return when ready. `on_ready` gets the engine's addresses by name.
    `companion`: a command that is started in this terminal when the engine is ready and ended before it stops.
    """

    detach: bool = False
    companion: Sequence[str] = ()
    report: Report = to_stderr
    on_ready: Callable[[dict[str, str]], None] = lambda _addresses: None


def up(settings: Settings, options: UpOptions | None = None) -> int:
    """Starts the engine. In the foreground returns 0 after a signal stopped it; detached, when it is ready to deliver.

    Raises a StackError saying what to do when it does not come up, ConfigError for contradictions; then nothing is
    left running.
    """
    options = options or UpOptions()
    home = Home(settings.home)
    keep_private(settings.stack.home_access)
    note = home.create(settings.stack.min_free_disk_mb, settings.stack.home_access)
    with home.locked() as lock:
        if note:
            options.report(note)
        sweep(home, options.report)
        ensure_keys(settings.secrets.key_file, home.path)
        settings = engine.effective(settings)
        options.report(f"pushes may go to {describe(settings.outbound)}")
        tools = engine.find_tools()
        engine.write_settings(settings, home)
        home.state_file.unlink(missing_ok=True)
        if options.detach:
            _detach(settings, home, lock, options)
        else:
            supervise(settings, tools, home, options)
    return 0


def supervise(settings: Settings, tools: Tools, home: Home, options: UpOptions) -> None:
    """Runs the engine in this process until a signal stops it. Expects effective settings and the lock."""
    log_format.configure(settings.logging.format, SUPERVISOR, level_of(settings))
    report = _also_logged(home, settings, options.report)
    addresses = engine.addresses(settings)
    companion = _Companion(options.companion)

    def ready() -> None:
        report(f"ready: {addresses['notification_broker']} (Kafka at {addresses['kafka']})")
        options.on_ready(addresses)
        companion.start()

    with Signals().installed() as signals:
        supervisor = Supervisor(engine.parts(settings, tools, home), settings.stack, home, addresses, report, signals)
        history = MetricsHistory(home.metrics, settings.metrics.history_hours * 3600)
        monitor = StackMonitor(
            lambda: supervisor.status, engine.metrics_urls(settings), history, settings.metrics.sample_s
        )
        endpoint = serve(monitor, settings.metrics.host, settings.metrics.port)
        monitor.start()
        try:
            supervisor.run(ready, companion.stop)
        finally:
            monitor.stop()
            endpoint.close()
            companion.stop()


def down(path: Path, report: Report = to_stderr) -> bool:
    """Stops the engine in a data directory and returns when all of it is gone; False when none was running."""
    home = Home(path)
    pid = home.owner()
    if pid is None:
        if home.run.is_dir():
            with home.locked():
                sweep(home, report)
        return False
    limit = Deadline(_stop_timeout(home) + 5.0)
    log = logfiles.LogTail(home.log(SUPERVISOR))
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)  # the holder of the lock wrote this pid, so it is one of ours
            os.kill(pid, signal.SIGCONT)  # when it was stopped, it would not see the other
    while home.owner() is not None:
        _pass_on(log, report)
        if limit.passed():
            report(f"the supervisor (pid {pid}) does not stop; killing it and its parts")
            if supervisor := ProcessId.of(pid) if pid else None:
                processes.kill_all([p for p in [supervisor.process()] if p])
            break
        time.sleep(0.05)
    _pass_on(log, report)
    with home.locked():
        sweep(home, report)
    return True


def status(path: Path) -> dict[str, Any]:
    """How the engine in a data directory is, ready to be printed as JSON.

    `disk` says what is wrong when there is too little room, and is empty otherwise. `silent_s` of a part is how long it
    has not answered the supervisor, that of the supervisor how long it has not come round; 0 when all is well. Times
    are ISO 8601 in UTC, memory is bytes in use now (`memory_kind` says which kind), `cpu_seconds` counts since the
    part's last start.
    """
    home = Home(path)
    running = home.owner() is not None
    silent_s = supervisor_silent_s(home) if running else 0.0
    known = state.read(home.state_file)
    parts = {name: _part_document(home, name, part, running) for name, part in (known.parts if known else {}).items()}
    document: dict[str, Any] = {
        "home": str(home.path),
        "running": running,
        "ready": bool(running and known and known.ready and not silent_s)
        and all(part["state"] == PartState.READY for part in parts.values()),
        "pid": known.supervisor.pid if running and known else None,
        "since": _iso(known.since) if running and known else None,
        "addresses": known.addresses if running and known else {},
        "problem": known.problem if known else "",
        "disk": _shortage(home),
        "parts": parts,
        "memory_kind": processes.memory_kind(),
    }
    if running and known:
        mine = [process for process in [known.supervisor.process()] if process]
        document[SUPERVISOR] = {"silent_s": round(silent_s, 1), **_usage_document(processes.usage(mine))}
    everything = [*parts.values(), *([document[SUPERVISOR]] if SUPERVISOR in document else [])]
    document["memory_bytes"] = sum(one["memory_bytes"] for one in everything)
    document["cpu_seconds"] = round(sum(one["cpu_seconds"] for one in everything), 2)
    return document


def supervisor_silent_s(home: Home) -> float:
    """How long the supervisor of a running engine has not come round, 0 when that is no time to speak of.

    When it looks so, it is given the time to come round once more: the machine may have slept, and woken up just now.
    """
    until = time.monotonic() + 2 * BEAT_S
    while (age_s := state.age_s(home.state_file)) > _SILENT_S:
        if time.monotonic() >= until:
            return age_s
        time.sleep(0.1)
    return 0.0


def sweep(home: Home, report: Report) -> None:
    """Kills what a killed supervisor left behind: processes that it wrote down, if they still are the same.

    Expects the lock, which says that no supervisor is alive.
    """
    known = state.read(home.state_file)
    for name, part in known.parts.items() if known else ():
        if part.process is not None and (left := _left_behind(part.process, home)):
            report(f"{name}: pid {left[0].pid} was left by an engine that was killed; ending it")
            processes.kill_all(left)


def _left_behind(first: ProcessId, home: Home) -> list[psutil.Process]:
    """What still runs in a part's session. When the process that the session is named after is gone, the rest must name
    this data directory to be taken for ours.
    """
    members = processes.session(first.pid)
    if first.process() is not None:
        return members
    return members if any(str(home.path) in word for member in members for word in processes.words(member)) else []


def _detach(settings: Settings, home: Home, lock: int, options: UpOptions) -> None:
    log = home.log(SUPERVISOR)
    logfiles.rotate(log, settings.stack.log_bytes)
    follower = logfiles.LogTail(log)
    with log.open("ab") as output:
        # The daemon inherits the lock itself, so that there is no moment in which another `up` could get in.
        daemon = subprocess.Popen(
            [sys.executable, "-m", "jobs.engine.daemon", str(lock), str(home.path)],
            pass_fds=[lock],
            start_new_session=True,
            cwd=home.run,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        ready = _wait_for_daemon(daemon, home, follower, options.report)
    except BaseException:
        daemon.terminate()
        daemon.wait()
        raise
    options.on_ready(ready.addresses)


def _wait_for_daemon(
    daemon: subprocess.Popen[bytes], home: Home, log: logfiles.LogTail, report: Report
) -> EngineStatus:
    """Passes on what the daemon reports until all parts are ready. Has no time limit: the daemon has one per part."""
    while True:
        code = daemon.poll()
        _pass_on(log, report)
        known = state.read(home.state_file)
        if code is not None:
            problem = known.problem if known else ""
            raise PartFailed(
                problem or f"the supervisor ended with code {code}; see {home.log(SUPERVISOR)}", SUPERVISOR
            )
        if known is not None and known.ready:
            return known
        time.sleep(0.05)


def _pass_on(log: logfiles.LogTail, report: Report) -> None:
    for line in log.new_lines():
        # What is not in our form is the daemon's last word, which its status repeats as the problem.
        message = log_format.message_of(line)
        if message is not None:
            report(message)


class _Companion:
    """A command that shares the terminal with the supervisor."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._command:
            self._process = subprocess.Popen(processes.dying_with_us(self._command))

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def _also_logged(home: Home, settings: Settings, report: Report) -> Report:
    log = home.log(SUPERVISOR)

    def both(line: str) -> None:
        report(line)
        with contextlib.suppress(OSError):  # a full disk must not end the engine
            logfiles.rotate(log, settings.stack.log_bytes)
            with log.open("a", encoding="utf-8") as file:
                file.write(log_format.now_line(settings.logging.format, SUPERVISOR, line) + "\n")

    return both


def _part_document(home: Home, name: str, part: PartStatus, running: bool) -> dict[str, Any]:
    shown = part.state if running or part.state is PartState.FAILED else PartState.STOPPED
    alive = running and part.process is not None
    members = processes.session(part.process.pid) if alive and part.process and part.process.process() else []
    if shown is PartState.READY and not members:
        # Its end was not noticed yet, or could not be written down: the disk is full.
        shown = PartState.RESTARTING
    return {
        "state": str(shown),
        "pid": part.process.pid if members and part.process else None,
        "since": _iso(part.since),
        "restarts": part.restarts,
        "last_exit": part.last_exit or None,
        "hangs": part.hangs,
        "silent_s": round(max(time.time() - part.silent_since, 0.1), 1) if alive and part.silent_since else 0.0,
        "log": str(home.log(name)),
        **_usage_document(processes.usage(members)),
    }


def _usage_document(usage: processes.Usage) -> dict[str, Any]:
    return {**asdict(usage), "cpu_seconds": round(usage.cpu_seconds, 2)}


def _stop_timeout(home: Home) -> float:
    return _stack_settings(home).stop_timeout_s


def _stack_settings(home: Home) -> StackSettings:
    """Those that the engine was started with, or the defaults where they cannot be read."""
    try:
        return load_settings(home.settings_file, environ={}).stack
    except ConfigError:
        return StackSettings()


def _shortage(home: Home) -> str:
    try:
        return shortage(home.path, free_mb(home.path), _stack_settings(home).min_free_disk_mb)
    except OSError:
        return ""


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
