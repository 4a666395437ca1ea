"""The gateway's program in a fork of a process that has its modules loaded, which are half of the cost of its start."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

from arborcast.engine.gateway.__main__ import main
from tests.support.waiting import wait_until

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


class ForkedGateway:
    """A gateway that runs, with what `subprocess.Popen` has of it."""

    def __init__(self, config: Path, log: Path) -> None:
        self._process = _context.Process(target=_run, args=(str(config), str(log), dict(os.environ)), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        wait_until(lambda: os.getpgid(self.pid) == self.pid, every_s=0.005)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("the gateway", timeout)
        return self._process.exitcode


def _run(config: str, log: str, environment: dict[str, str]) -> None:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    os.environ.clear()
    os.environ.update(environment)
    status = main(["--config", config])
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)  # as the program does
