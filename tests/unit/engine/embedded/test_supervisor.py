"""The supervisor with small real processes: starts, restarts, kills, and the cleanup at its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from arborcast.engine.embedded import commands, state
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.state import EngineStatus, PartState
from tests.support.process import has_ended
from tests.support.waiting import wait_until

FullPart = tuple[str, str, list[str], float]
"""Name, program, names of earlier parts, stop share."""

# Programs of parts. `touch` marks the part as ready, the last statement is its run.
SLEEP = "touch(); sleep(600)"
BEATS = "while True: touch(); sleep(0.05)"
"""A part with a heartbeat: each touch is one."""
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
from arborcast.engine.processes.errors import StackError

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
        liveness=questions.job(ready) if code.startswith("while True: touch()") else None,
        hang_timeout_s=settings.hang_timeout_s,
    )

report = lambda line: print(line, flush=True)
with home.locked(), Signals().installed() as signals:
    try:
        Supervisor([spec(*one) for one in wanted], settings, home, {}, report, signals).run(lambda: report("ready"))
    except StackError as failure:
        report(f"failed: {failure}")
        sys.exit(1)
"""


class FakeEngine:
    """A running supervisor, and its visible state."""

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

    def wait_for_line(self, text: str) -> str:
        """Read reports up to a line with this text; returns the line."""
        assert self.process.stdout is not None
        while text not in (line := self.process.stdout.readline()):
            assert self.process.poll() is None, f"ended without the line {text!r}"
        return line

    def end(self, number: int) -> tuple[int, list[str]]:
        """Send a signal; returns the exit code and the reported lines."""
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=300)
        return self.process.returncode, output.splitlines()


@contextmanager
def fake_engine(home: Path, parts: Sequence[tuple[str, str] | FullPart], **settings: object) -> Iterator[FakeEngine]:
    """Run a supervisor over (name, program), or full parts."""
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


pytestmark = pytest.mark.slow

# Enough for a machine with heartbeats ten times later than usual.
HANG_S = 4.0


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def test_a_killed_part_is_restarted_and_its_state_is_written(tmp_path: Path) -> None:
    # The second part exits if it is started before the first one is ready.
    second = "Path('a.ready').exists() or sys.exit(1); touch(); sleep(600)"
    parts = [("b", second, ["a"], 0.9), ("a", f"sleep(0.5); {WITH_CHILD}", [], 0.9)]
    with fake_engine(tmp_path, parts, restart_first_s=0.1) as engine:
        engine.wait_ready()
        before, other = engine.pid("a"), engine.pid("b")
        [child] = psutil.Process(before).children()
        # The path of the supervisor's temporary state file.
        in_the_way = engine.home.state_file.with_name(f".state.json.{os.uname().nodename}.{engine.process.pid}")
        in_the_way.mkdir()
        os.kill(before, signal.SIGKILL)
        engine.wait_for_line("state.json cannot be written")
        assert engine.status().parts["a"].restarts == 0
        in_the_way.rmdir()
        engine.wait_for("a", PartState.READY, restarts=1)
        assert engine.pid("a") != before
        assert has_ended(child.pid), "killed before its part is restarted"
        assert engine.status().parts["a"].last_exit == "was killed by SIGKILL"
        assert (engine.pid("b"), engine.status().parts["b"].restarts) == (other, 0)
        os.kill(engine.pid("a"), signal.SIGKILL)
        engine.wait_for("a", PartState.READY, restarts=2)
        _, lines = engine.end(signal.SIGINT)
    assert any(line.startswith("a: was killed by SIGKILL") and "restart 2 in 0.2 s" in line for line in lines)
    assert not [line for line in lines if "cannot be written" in line], "reported once"


def test_a_part_is_restarted_without_the_folder_of_log_files(tmp_path: Path) -> None:
    """docs/operations.md: on a full disk, when Kafka is restarted again and again, it may be deleted."""
    with fake_engine(tmp_path, [("a", f"print('started', flush=True); {SLEEP}")], restart_first_s=0.1) as engine:
        engine.wait_ready()
        shutil.rmtree(engine.home.logs)
        os.kill(engine.pid("a"), signal.SIGKILL)
        engine.wait_for("a", PartState.READY, restarts=1)
        assert engine.home.log("a").read_text() == "started\n"


def test_the_start_fails_with_the_output_of_a_part(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("good", SLEEP), ("bad", DIES)], restart_first_s=0.05) as engine:
        output, _ = engine.process.communicate(timeout=60)
    assert engine.process.returncode == 1
    assert "failed: bad ended with code 3, 2 times in a row" in output
    assert "no such setting: colour" in output
    found = engine.status()
    assert (found.parts["bad"].state, found.parts["good"].state) == (PartState.FAILED, PartState.STOPPED)
    assert "colour" in found.problem


def test_the_start_fails_if_the_state_cannot_be_written(tmp_path: Path) -> None:
    Home(tmp_path).state_file.mkdir(parents=True)
    with fake_engine(tmp_path, [("a", SLEEP)]) as engine:
        output, _ = engine.process.communicate(timeout=60)
    assert engine.process.returncode == 1
    assert "state.json cannot be written: that is a folder, not a file; make room" in output


def test_parts_stop_in_order_or_are_killed_at_their_deadline(tmp_path: Path) -> None:
    shares = {"last": (SLOW_TO_STOP, 0.97), "first": (SLOW_TO_STOP, 0.2), "b": (DEAF, 0.6), "a": (DEAF, 0.4)}
    parts = [(name, code, list[str](), share) for name, (code, share) in shares.items()]
    with fake_engine(tmp_path, parts, stop_timeout_s=4) as engine:
        engine.wait_ready()
        pids = [engine.pid(name) for name in shares]
        code, lines = engine.end(signal.SIGTERM)
    assert code == 0
    ended = engine.status().parts
    assert sorted(ended, key=lambda name: ended[name].since) == ["first", "a", "b", "last"]
    assert "a: still running, killing it" in lines
    assert [line for line in lines if line in ("first: stopped", "last: stopped")] == [
        "first: stopped",
        "last: stopped",
    ]
    assert all(has_ended(pid) for pid in pids)


def test_a_second_signal_kills_also_during_the_start(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("a", DEAF), ("b", NEVER_READY)], stop_timeout_s=3_000) as engine:
        engine.wait_for("a", PartState.READY)
        pids = [engine.pid("a"), engine.pid("b")]
        engine.process.send_signal(signal.SIGINT)
        engine.wait_for_line("stopping")
        code, lines = engine.end(signal.SIGINT)
    assert code == 0
    assert "ready" not in lines
    assert all(has_ended(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_killed_supervisor_leaves_no_child(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("a", DEAF), ("b", DEAF)]) as engine:
        engine.wait_ready()
        pids = [engine.pid("a"), engine.pid("b")]
        engine.process.kill()
        wait_until(lambda: all(has_ended(pid) for pid in pids))
        assert engine.home.owner() is None


def test_a_suspended_part_is_restarted_and_does_not_delay_down(tmp_path: Path) -> None:
    parts = [("a", BEATS), ("b", BEATS), ("c", SLEEP)]
    with fake_engine(tmp_path, parts, hang_timeout_s=HANG_S, restart_first_s=0.1) as engine:
        engine.wait_ready()
        before = engine.pid("a")
        stop(before)
        wait_until(lambda: engine.status().parts["a"].silent_since)
        assert not engine.status().ready
        engine.wait_for("a", PartState.READY, restarts=1)
        after = engine.status().parts
        assert engine.pid("a") != before
        assert has_ended(before)
        assert (after["a"].hangs, after["a"].silent_since) == (1, 0.0)
        assert after["a"].last_exit.startswith("did not answer for ")
        assert f"(pid {before}) is stopped) and was killed" in after["a"].last_exit
        assert [after[name].restarts for name in "bc"] == [0, 0]
        engine.wait_for_line("a: no heartbeat within 1 s; killed when that lasts for 4 s")
        assert "restart 1 in 0.1 s" in engine.wait_for_line("a: did not answer for ")
        pids = [engine.pid(name) for name in "abc"]
        for pid in (*pids, engine.process.pid):
            stop(pid)
        assert commands.down(tmp_path, lambda _line: None)
        assert all(has_ended(pid) for pid in pids)
        assert engine.process.wait(120) == 0, "resumed, and stopped in order"
        assert {one.state for one in engine.status().parts.values()} == {PartState.STOPPED}
