"""The loop that keeps the parts running.

Start: every part whose predecessors are ready is started, in parallel where possible. Running: a part that dies is
restarted; one that hangs is killed first. End: the parts stop one after the other, in the order of their share of the
time, before one deadline; the others are killed. No process outlives the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from arborcast.core.liveness import RunningTime
from arborcast.core.reasons import reason_of
from arborcast.engine.embedded import state
from arborcast.engine.embedded.home import DiskWatch, Home
from arborcast.engine.embedded.parts import Part, PartSpec, Report
from arborcast.engine.embedded.state import BEAT_S, EngineStatus, PartState
from arborcast.engine.processes import logfiles
from arborcast.engine.processes.errors import HomeError, PartFailed
from arborcast.engine.processes.processes import Deadline, ProcessId, Signals
from arborcast.engine.settings.stack import StackSettings

# Number of deaths of a part before its first readiness after which the start is given up: a person is waiting, and most
# such deaths are a wrong setting.
_FIRST_ATTEMPTS = 2

_CHECK_S = 0.05  # while a part starts or stops
_REST_S = 1.0  # otherwise: a death wakes the loop at once, and logs may grow for a second


class Supervisor:
    """Runs parts, given in the order of their start. Used once, in the main thread, with the home locked."""

    def __init__(
        self,
        specs: Sequence[PartSpec],
        settings: StackSettings,
        home: Home,
        addresses: dict[str, str],
        report: Report,
        signals: Signals,
    ) -> None:
        self._settings = settings
        self._home = home
        self._report = report
        self._signals = signals
        self._parts = [Part(spec, settings, report) for spec in specs]
        self._addresses = addresses
        self._began = time.time()
        self._problem = ""
        self._written: EngineStatus | None = None
        self._unwritable = ""
        self._rotated = 0.0
        self._beat_at = 0.0
        self._time = RunningTime(2 * _REST_S)
        self._disk = DiskWatch(home.path, settings.min_free_disk_mb, report)

    @property
    def status(self) -> EngineStatus | None:
        """The last written status of the engine; None before the start. Thread-safe."""
        return self._written

    def run(self, on_ready: Callable[[], None] = lambda: None, on_stopping: Callable[[], None] = lambda: None) -> None:
        """Run until a signal. Raises PartFailed for a part that does not start, HomeError if the state cannot be
        written during the start; all processes have ended in each case.

        `on_ready` is called once, when all parts are ready for the first time; `on_stopping` before the first one is
        stopped.
        """
        try:
            self._start(on_ready)
            while not self._signals.stops:
                self._check_parts()
                steady = all(part.state is PartState.READY for part in self._parts)
                self._signals.wait(_REST_S if steady else _CHECK_S)
            on_stopping()
        except PartFailed as failure:
            self._problem = str(failure)
            self._stop()
            next(part for part in self._parts if part.name == failure.part).fail()
            raise
        finally:
            self._stop()
            self._write()

    def _start(self, on_ready: Callable[[], None]) -> None:
        while not self._signals.stops:
            self._check_parts()
            if self._unwritable:
                # `up --detach` waits for the state, and other commands find the engine by it.
                raise HomeError(f"{self._unwritable}; make room on its disk or permit writes, and start again")
            if all(part.state is PartState.READY for part in self._parts):
                on_ready()
                return
            for part in self._parts:
                if not part.was_ready and part.process.failures >= _FIRST_ATTEMPTS:
                    raise PartFailed(
                        f"{part.name} {part.status.last_exit}, {part.process.failures} times in a row. "
                        f"The end of {part.spec.log}:\n{logfiles.tail(part.spec.log)}",
                        part.name,
                    )
            self._signals.wait(_CHECK_S)

    def _check_parts(self) -> None:
        ready = {part.name for part in self._parts if part.was_ready}
        for part in self._parts:
            if ready.issuperset(part.spec.after):
                part.step(time.monotonic())
        own_s = self._time.tick()
        for part in self._parts:
            part.watch(own_s)
        self._write()
        now = time.monotonic()
        if now - self._rotated > _REST_S:
            self._rotated = now
            self._disk.check()
            for part in self._parts:
                part.limit_log()

    def _stop(self) -> None:
        running = sorted((part for part in self._parts if part.running), key=lambda part: part.spec.stop_share)
        if not running:
            return
        self._report("stopping")
        # The first signal does not force; a further one does, even if it has arrived already.
        patience = 0 if self._problem else 1
        deadline = Deadline(self._settings.stop_timeout_s)
        for part in running:
            part.request_stop()
            while not part.has_ended():
                if self._signals.stops > patience or deadline.passed(part.spec.stop_share):
                    self._report(f"{part.name}: still running, killing it")
                    part.kill()
                    break
                self._beat()
                self._signals.wait(_CHECK_S)
            else:
                self._report(f"{part.name}: stopped")
            self._write()

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beat_at > BEAT_S:
            self._beat_at = now
            state.touch(self._home.state_file)

    def _write(self) -> None:
        self._beat()
        me = self._written.supervisor if self._written else ProcessId.of_this()
        parts = {part.name: part.status for part in self._parts}
        status = EngineStatus(me, self._began, self._addresses, parts, self._problem)
        if status == self._written and not self._unwritable:
            return
        self._written = status
        try:
            state.write(self._home.state_file, status)
        except OSError as error:
            # Probably a full disk. The parts continue; the write is retried.
            why = f"{self._home.state_file} cannot be written: {reason_of(error)}"
            if why != self._unwritable:
                self._report(why)
            self._unwritable = why
        else:
            self._unwritable = ""
