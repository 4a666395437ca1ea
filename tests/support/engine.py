"""A supervisor over parts that are small Python programs, run as a process of its own so that signals are real."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil

from arborcast.engine.embedded import state
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.state import EngineStatus, PartState
from tests.support.waiting import wait_until

T = TypeVar("T")

FullPart = tuple[str, str, list[str], float]
"""Name, program, names of the parts it comes after, stop share."""

# What a part does. `touch` is how it says that it is ready, the last line is how it spends its life.
SLEEP = "touch(); sleep(600)"
BEATS = "while True: touch(); sleep(0.05)"
"""The one whose life is asked for: each touch is a heartbeat."""
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); touch(); sleep(600)"
NEVER_READY = "sleep(600)"
DIES = "print('no such setting: colour', flush=True); sys.exit(3)"
WITH_CHILD = "import subprocess; subprocess.Popen(['sleep', '600'], preexec_fn=os.setpgrp); touch(); sleep(600)"
SLOW_TO_STOP = "signal.signal(signal.SIGTERM, lambda *_: (sleep(0.4), os._exit(0))); touch(); sleep(600)"

_RUNNER = """
import json, sys
from pathlib import Path
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded import questions
from arborcast.engine.embedded.parts import PartSpec
from arborcast.engine.settings.stack import StackSettings
from arborcast.engine.processes.processes import Signals
from arborcast.engine.embedded.supervisor import Supervisor
from arborcast.engine.processes.errors import PartFailed

home = Home(Path(sys.argv[1]))
wanted, settings = json.loads(sys.argv[2]), StackSettings(**json.loads(sys.argv[3]))
home.create()

def spec(name, code, after, share):
    ready = home.run / f"{name}.ready"
    program = (
        "import os, signal, sys\\nfrom time import sleep\\nfrom pathlib import Path\\n"
        f"touch = Path({str(ready)!r}).touch\\n" + code
    )
    return PartSpec(
        name, [sys.executable, "-c", program], {}, home.run, home.log(name), ready.exists,
        prepare=lambda: ready.unlink(missing_ok=True), after=tuple(after), stop_share=share,
        lives=questions.job(ready) if code.startswith("while True: touch()") else None,
        hang_timeout_s=settings.hang_timeout_s,
    )

report = lambda line: print(line, flush=True)
with home.locked(), Signals().installed() as signals:
    try:
        Supervisor([spec(*one) for one in wanted], settings, home, {}, report, signals).run(lambda: report("ready"))
    except PartFailed as failure:
        report(f"failed: {failure}")
        sys.exit(1)
"""


class FakeEngine:
    """The running supervisor, and what can be seen of it."""

    def __init__(self, home: Path, process: subprocess.Popen[str]) -> None:
        self.home = Home(home)
        self.process = process

    def status(self) -> EngineStatus:
        status = state.read(self.home.state_file)
        assert status is not None
        return status

    def pid(self, part: str) -> int:
        process = self.status().parts[part].process
        assert process is not None
        return process.pid

    def wait_for(self, part: str, wanted: PartState, restarts: int = 0) -> None:
        wait_until(
            lambda: (
                (known := state.read(self.home.state_file)) is not None
                and part in known.parts
                and known.parts[part].state is wanted
                and known.parts[part].restarts >= restarts
            )
        )

    def wait_ready(self) -> None:
        wait_until(lambda: (known := state.read(self.home.state_file)) is not None and known.ready)

    def wait_for_line(self, start: str) -> None:
        """Reads what was reported up to a line that starts so."""
        assert self.process.stdout is not None
        while not self.process.stdout.readline().startswith(start):
            assert self.process.poll() is None, f"ended without saying {start!r}"

    def wait_for_line_with(self, text: str) -> str:
        """Reads what was reported up to a line that has this in it; that line."""
        assert self.process.stdout is not None
        while text not in (line := self.process.stdout.readline()):
            assert self.process.poll() is None, f"ended without saying {text!r}"
        return line

    def end(self, number: int) -> tuple[int, list[str], float]:
        """Sends a signal; gives the exit code, the lines reported, and how long it took in seconds."""
        began = time.monotonic()
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=300)
        return self.process.returncode, output.splitlines(), time.monotonic() - began


@contextmanager
def fake_engine(home: Path, parts: Sequence[tuple[str, str] | FullPart], **settings: object) -> Iterator[FakeEngine]:
    """Runs a supervisor over (name, program), or full parts."""
    full = [(*part, [], 0.97)[:4] if len(part) == 2 else part for part in parts]
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_RUNNER), str(home), json.dumps(full), json.dumps(settings)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield FakeEngine(home, process)
    finally:
        process.kill()
        process.communicate()


def gone(pid: int) -> bool:
    """Whether no such process runs."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
