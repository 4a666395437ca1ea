"""A part that hangs: found, said, killed and started again; and commands that wait for nobody who is stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import typer

from arborcast.cli.engine import status as print_status
from arborcast.engine.embedded import commands, state
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.parts import Part, PartSpec
from arborcast.engine.embedded.state import EngineStatus, PartState, PartStatus
from arborcast.engine.embedded.status import status
from arborcast.engine.processes.processes import ProcessId
from arborcast.engine.settings.stack import StackSettings
from tests.support.engine import BEATS, SLEEP, fake_engine, gone
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

# Enough for a machine on which a beat comes ten times later than it should.
HANG_S = 4.0


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def test_a_stopped_part_is_found_and_started_again(tmp_path: Path) -> None:
    parts = [("a", BEATS), ("b", BEATS), ("c", SLEEP)]
    with fake_engine(tmp_path, parts, hang_timeout_s=HANG_S, restart_first_s=0.1) as engine:
        engine.wait_ready()
        before = {name: engine.pid(name) for name in "abc"}
        stop(before["a"])
        wait_until(lambda: engine.status().parts["a"].silent_since)
        assert not engine.status().ready
        engine.wait_for("a", PartState.READY, restarts=1)
        after = engine.status()
        assert engine.pid("a") != before["a"]
        assert gone(before["a"])
        assert (after.parts["a"].hangs, after.parts["a"].silent_since) == (1, 0.0)
        said = after.parts["a"].last_exit
        assert said.startswith("did not answer for ")
        assert f"(pid {before['a']}) is stopped) and was killed" in said
        assert [after.parts[name].restarts for name in "bc"] == [0, 0], "of one it is asked, of the other it is not"
        _, lines, _ = engine.end(signal.SIGTERM)
    assert any(line.startswith("a: no heartbeat within 1 s; killed when that lasts for 4 s") for line in lines)
    assert any(line.startswith("a: did not answer for ") and "restart 1 in 0.1 s" in line for line in lines)


@contextmanager
def part(folder: Path, lives: Callable[[float], str]) -> Iterator[Part]:
    sleeps = (sys.executable, "-c", "import time; time.sleep(600)")
    spec = PartSpec("a", sleeps, {}, folder, folder / "a.log", lambda: True, lives=lives, hang_timeout_s=0.6)
    made = Part(spec, StackSettings(), lambda _words: None)
    made.step(0.0)
    made.step(0.0)
    assert made.state is PartState.READY
    try:
        yield made
    finally:
        made.kill()


def state_of(it: Part) -> PartState:
    return it.state


def test_while_the_supervisor_does_not_run_nobody_hangs(tmp_path: Path) -> None:
    """The lid of the laptop was closed: whatever had no answer meanwhile, in its own time a moment has passed."""
    asked = threading.Semaphore(0)

    def silent(deadline_s: float) -> str:
        asked.release()
        return "no answer"

    with part(tmp_path, silent) as it:
        it.watch(100.0)
        for _ in range(5):
            asked.acquire()
        it.watch(100.5)
        assert state_of(it) is PartState.READY
        assert it.status.silent_since
        it.watch(100.7)
        assert state_of(it) is PartState.RESTARTING
        assert it.status.hangs == it.restarts == 1


def test_questions_have_a_deadline_and_three_of_them_fit(tmp_path: Path) -> None:
    deadlines: list[float] = []
    hold = threading.Event()

    def slow(deadline_s: float) -> str:
        deadlines.append(deadline_s)
        hold.wait()
        return "no answer"

    with part(tmp_path, slow) as it:
        it.watch(100.0)
        wait_until(lambda: deadlines)
        # One question that is not over says nothing, however late it is.
        it.watch(1_000.0)
        assert state_of(it) is PartState.READY
        assert not it.status.silent_since
        hold.set()
        wait_until(lambda: len(deadlines) > 3)
        it.watch(1_000.0)
        assert state_of(it) is PartState.RESTARTING
    assert deadlines[0] == pytest.approx(0.15)


def test_a_question_that_cannot_be_put_says_nothing_of_the_part(tmp_path: Path) -> None:
    asked = threading.Semaphore(0)

    def broken(deadline_s: float) -> str:
        asked.release()
        raise RuntimeError("too many open files")

    with part(tmp_path, broken) as it:
        it.watch(0.0)
        for _ in range(4):
            asked.acquire()
        it.watch(1_000.0)
        assert it.state is PartState.READY


def test_down_ends_stopped_parts_and_a_stopped_supervisor(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("a", BEATS), ("b", SLEEP)]) as engine:
        engine.wait_ready()
        pids = [engine.pid("a"), engine.pid("b")]
        for pid in (*pids, engine.process.pid):
            stop(pid)
        assert commands.down(tmp_path, lambda _line: None)
        assert all(gone(pid) for pid in pids)
        assert engine.process.wait(120) == 0, "it went on, and stopped in order"
        assert [one.last_exit for one in engine.status().parts.values()] == ["", ""]
        assert {one.state for one in engine.status().parts.values()} == {PartState.STOPPED}


def test_a_stopped_supervisor_is_seen_in_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.engine.embedded.status.BEAT_S", 0.1)
    with fake_engine(tmp_path, [("a", SLEEP)]) as engine:
        engine.wait_ready()
        document = status(tmp_path)
        assert (document["ready"], document["supervisor"]["silent_s"]) == (True, 0.0)
        stop(engine.process.pid)
        long_ago = time.time() - 100
        os.utime(engine.home.state_file, (long_ago, long_ago))
        document = status(tmp_path)
        assert document["running"]
        assert not document["ready"]
        assert document["supervisor"]["silent_s"] >= 100
        # Once it comes round again, that is seen too.
        os.kill(engine.process.pid, signal.SIGCONT)
        wait_until(lambda: status(tmp_path)["ready"])


def test_the_status_says_what_has_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path)
    home.create()
    me = ProcessId.of_this()
    parts = {
        "kafka": PartStatus(PartState.READY, 0.0, me, 2, "did not answer for 30 s (no answer within 7.5 s)", 1),
        "gateway": PartStatus(PartState.READY, 0.0, me, silent_since=time.time() - 12),
        "dispatch": PartStatus(PartState.READY, 0.0, me),
    }
    state.write(home.state_file, EngineStatus(me, 0.0, {}, parts))
    with home.locked(), pytest.raises(typer.Exit):
        print_status(home=tmp_path)
    said = capsys.readouterr().out
    assert "kafka was restarted 2 times; last time it did not answer for 30 s (no answer within 7.5 s)" in said
    assert "gateway has not answered for 12 s; it is restarted when that goes on" in said
    assert "silent 12 s" in said
    assert "dispatch was" not in said
