"""A process under test: started in a new session with its output in a file, killed with its children."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, ParamSpec, Protocol, TypeVar

import psutil

from tests.support.waiting import TIMEOUT_S, wait_until

ROOT = Path(__file__).parents[2]


class Started(Protocol):
    """The used interface of `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> int: ...


class Run(Protocol):
    """A process that a test starts."""

    def start(self) -> object: ...

    def kill(self) -> object: ...


_Run = TypeVar("_Run", bound=Run)
_How = ParamSpec("_How")


@contextmanager
def killed(run: _Run) -> Iterator[_Run]:
    """A process, not started, that is killed at the end."""
    try:
        yield run
    finally:
        run.kill()


def running(made: Callable[_How, _Run]) -> Callable[_How, AbstractContextManager[_Run]]:
    """With the parameters of its class: a started process, killed at the end."""

    @contextmanager
    def started(*arguments: _How.args, **named: _How.kwargs) -> Iterator[_Run]:
        with killed(made(*arguments, **named)) as run:
            run.start()
            yield run

    return started


class LoggedProcess:
    """A process that can be started again after its exit; the output is appended."""

    def __init__(
        self, command: Sequence[str], log: Path, *, cwd: Path = ROOT, env: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._command = command
        self._cwd = cwd
        self._env = env
        self._process: Started | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = self._launched(log)

    def _launched(self, log: IO[bytes]) -> Started:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self._cwd,
            env=None if self._env is None else {**os.environ, **self._env},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """The exit status; None while it runs, and before its start."""
        return None if self._process is None else self._process.poll()

    def text(self) -> str:
        """The output up to now."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Poll until the condition holds; fails with the output at the exit of the process or after the time limit."""

        def holds() -> object:
            found = condition()
            assert found or self.ended is None, f"ended with {self.ended} before: {what}\n{self.text()}"
            return found

        wait_until(holds, lambda: f"{what}\n{self.text()}", timeout_s)

    def wait(self, timeout_s: float = 120) -> int:
        """Wait for its exit; returns the exit status."""
        assert self._process is not None, "it was not started"
        return self._process.wait(timeout_s)

    def stop(self) -> int:
        """Send SIGTERM; returns the exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)
        return self._process.wait(120)


def has_ended(pid: int) -> bool:
    """Whether no process with this id runs."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
