"""`arborcast up` and `down`."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from arborcast.core.errors import ConfigError
from arborcast.core.telemetry import log_format
from arborcast.core.threads import start_thread
from arborcast.engine.embedded import engine, questions, state
from arborcast.engine.embedded.engine import Tools
from arborcast.engine.embedded.home import Home, ensure_keys, keep_private
from arborcast.engine.embedded.state import EngineStatus
from arborcast.engine.embedded.status import SUPERVISOR, stack_settings
from arborcast.engine.embedded.supervisor import Supervisor
from arborcast.engine.install.java import check_files, check_user
from arborcast.engine.monitoring.endpoint import Endpoint
from arborcast.engine.monitoring.history import MetricsHistory
from arborcast.engine.monitoring.stack_monitor import StackMonitor
from arborcast.engine.processes import logfiles, processes
from arborcast.engine.processes.errors import PartFailed
from arborcast.engine.processes.processes import Deadline, ProcessId, Signals
from arborcast.engine.settings import checks
from arborcast.engine.settings.loading import Settings, level_of
from arborcast.engine.settings.outbound import describe
from arborcast.engine.terminal import print_error
from arborcast.ingest.access.settings import AccessSettings
from arborcast.ingest.http.listening import raise_open_files

Report = Callable[[str], None]

# Lines that wait for a terminal, and the maximum wait for it at the end.
_WAITING_LINES = 1_000
_LAST_LINES_S = 2.0


@dataclass(frozen=True)
class UpOptions:
    """Options of `up`. `detach`: continue in the background and return when ready. `on_ready` gets the engine's
    addresses by name. `companion`: a command that runs in this terminal from readiness until the stop."""

    detach: bool = False
    companion: Sequence[str] = ()
    report: Report = print_error
    on_ready: Callable[[dict[str, str]], None] = lambda _addresses: None


def up(settings: Settings, options: UpOptions | None = None) -> None:
    """Start the engine. In the foreground returns after a signal; detached, when it is ready to deliver.

    Raises a StackError with the action to take if it does not start, ConfigError for contradictions; all processes have
    then ended.
    """
    options = options or UpOptions()
    checks.check_gateway(settings)
    checks.check_files(settings)
    home = Home(settings.home)
    keep_private(settings.stack.home_access)
    note = home.create(settings.stack.min_free_disk_mb, settings.stack.home_access)
    with home.locked() as lock:
        if note:
            options.report(note)
        sweep(home, options.report)
        if lost := ensure_keys(settings.secrets.key_file, home.path):
            options.report(lost)
        settings = engine.effective(settings)
        check_users(settings.access, options.report)
        raise_open_files()  # for all parts
        if "embedded" in (settings.stack.job, settings.stack.broker):
            check_files()
        if settings.stack.job == "embedded":
            check_user()
        if settings.stack.broker == "external" and (unreachable := questions.unreachable_reason(settings.kafka)):
            # It may be starting, so this waits for it, and reports the reason.
            options.report(
                f"Kafka cannot be reached yet: {unreachable}. Is it up, and is kafka.bootstrap_servers right?"
            )
        options.report(f"pushes may go to {describe(settings.outbound)}")
        tools = engine.find_tools()
        if tools.classes.keys() < {*engine.JVMS}:
            options.report("Kafka or Spark start slowly: `arborcast fetch` makes archives of their classes, once")
        engine.write_settings(settings, home)
        home.state_file.unlink(missing_ok=True)
        if options.detach:
            _detach(settings, home, lock, options)
        else:
            supervise(settings, tools, home, options)


def check_users(access: AccessSettings, report: Report) -> None:
    """With passwords and a users file: raises ConfigError if the file is missing, and reports if no user has a
    password. The gateway would report it only after Kafka's start."""
    if access.users != "file" or not {"basic", "token"} & set(access.chosen()):
        return
    from arborcast.ingest.access.users_file import ADD_ONE, load_users, no_users

    path = Path(access.users_file)
    try:
        users = load_users(path)
    except FileNotFoundError:
        raise ConfigError(no_users(path)) from None
    if not any(user.password for user in users.values()):
        report(f"no user can sign in with a password yet: {path} has no user with one; {ADD_ONE}")


def supervise(settings: Settings, tools: Tools, home: Home, options: UpOptions) -> None:
    """Run the engine in this process until a signal stops it. Expects effective settings and the lock."""
    log_format.configure(settings.logging.format, SUPERVISOR, level_of(settings))
    addresses = engine.addresses(settings)
    companion = _Companion(options.companion)

    def ready() -> None:
        report(f"ready: {addresses['notification_broker']} (Kafka at {addresses['kafka']})")
        if "console" in addresses:
            report(f"console: {addresses['console']}")
        options.on_ready(addresses)
        companion.start()

    with _displayed(options.report) as display, Signals().installed() as signals:
        report = _also_logged(home, settings, display)
        supervisor = Supervisor(engine.parts(settings, tools, home), settings.stack, home, addresses, report, signals)
        history = MetricsHistory(home.metrics, settings.metrics.history_hours * 3600)
        monitor = StackMonitor(
            lambda: supervisor.status, engine.metrics_urls(settings), history, settings.metrics.sample_s
        )
        endpoint = Endpoint(settings.metrics.host, settings.metrics.port, monitor.pages(), "monitor-http")
        monitor.start()
        try:
            supervisor.run(ready, companion.stop)
        finally:
            monitor.stop()
            endpoint.close()
            companion.stop()


def down(path: Path, report: Report = print_error) -> bool:
    """Stop the engine of a data directory and return when all its processes have ended; False without one."""
    home = Home(path)
    if home.owner() is None:
        if home.run.is_dir():
            with home.locked():
                sweep(home, report)
        return False
    limit = Deadline(stack_settings(home).stop_timeout_s + 5.0)
    log = logfiles.LogTail(home.log(SUPERVISOR))
    signalled = 0
    while (pid := home.owner()) is not None:
        # The holder of the lock writes its pid, and `up --detach` passes the lock on.
        if pid != signalled:
            signalled = pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)  # a stopped process would not see the other signal
        _forward(log, report)
        if limit.passed():
            report(f"the supervisor (pid {pid}) does not stop; killing it and its parts")
            if supervisor := ProcessId.of(pid) if pid else None:
                processes.kill_all([p for p in [supervisor.process()] if p])
            break
        time.sleep(0.05)
    _forward(log, report)
    with home.locked():
        sweep(home, report)
    return True


def sweep(home: Home, report: Report) -> None:
    """Kill the processes left by a killed supervisor: those that it recorded, if they are still the same. Expects the
    lock, which proves that no supervisor runs here: one that runs is that of the directory from which this was
    copied."""
    known = state.read(home.state_file)
    if known is not None and known.supervisor.process() is not None:
        return
    for name, part in known.parts.items() if known else ():
        if part.process is not None and (left := _left_behind(part.process, home)):
            report(f"{name}: pid {left[0].pid} was left by an engine that was killed; ending it")
            processes.kill_all(left)


def _left_behind(first: ProcessId, home: Home) -> list[psutil.Process]:
    """The processes of a part's session. If the session's first process has ended, the others must name this data
    directory. None after a restart of the machine, or in the session of this command: the id was reused."""
    if not first.is_of_this_boot or first.pid == os.getsid(0):
        return []
    members = processes.session(first.pid)
    if first.process() is not None:
        return members
    return (
        members if any(str(home.path) in argument for member in members for argument in processes.words(member)) else []
    )


def _detach(settings: Settings, home: Home, lock: int, options: UpOptions) -> None:
    log = home.log(SUPERVISOR)
    logfiles.rotate(log, settings.stack.log_bytes)
    follower = logfiles.LogTail(log)
    with log.open("ab") as output:
        # The daemon inherits the lock, so no other `up` can start in between.
        daemon = subprocess.Popen(
            [sys.executable, "-m", "arborcast.engine.embedded.daemon", str(lock), str(home.path)],
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
    """Forward the daemon's reports until all parts are ready. No timeout: the daemon has one per part."""
    while True:
        code = daemon.poll()
        _forward(log, report)
        known = state.read(home.state_file)
        if code is not None:
            problem = (known.problem if known else "") or (
                f"the supervisor ended with code {code}; see {home.log(SUPERVISOR)}. If it has no reason, {home.path} "
                "cannot be written: make room on its disk or permit writes"
            )
            raise PartFailed(problem, SUPERVISOR)
        if known is not None and known.ready:
            return known
        time.sleep(0.05)


def _forward(log: logfiles.LogTail, report: Report) -> None:
    for line in log.new_lines():
        # Other text is the daemon's last output, which its status repeats as the problem.
        message = log_format.message_of(line)
        if message is not None:
            report(message)


class _Companion:
    """A command in the supervisor's terminal."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._command:
            self._process = subprocess.Popen(processes.killed_with_parent(self._command))

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


@contextlib.contextmanager
def _displayed(report: Report) -> Iterator[Report]:
    """The report in another thread: a terminal without output for a while (Ctrl-S, a full pipe) must not stop the
    supervisor. Lines beyond a limit are only logged."""
    lines: queue.Queue[str | None] = queue.Queue(_WAITING_LINES)

    def write() -> None:
        while (line := lines.get()) is not None:
            with contextlib.suppress(OSError):  # a terminal or a pipe that was closed
                report(line)

    def put(line: str | None) -> None:
        with contextlib.suppress(queue.Full):
            lines.put_nowait(line)

    thread = start_thread("display", write)
    try:
        yield put
    finally:
        put(None)
        thread.join(_LAST_LINES_S)


def _also_logged(home: Home, settings: Settings, report: Report) -> Report:
    log = home.log(SUPERVISOR)

    def report_and_log(line: str) -> None:
        report(line)
        with contextlib.suppress(OSError):  # a full disk must not stop the engine
            logfiles.rotate(log, settings.stack.log_bytes)
            log.parent.mkdir(exist_ok=True)
            with log.open("a", encoding="utf-8") as file:
                file.write(log_format.write(settings.logging.format, time.time(), "info", SUPERVISOR, line) + "\n")

    return report_and_log
