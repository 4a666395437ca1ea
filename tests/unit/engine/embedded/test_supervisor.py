"""The supervisor over small real processes: what it starts, starts again, kills, and leaves behind (nothing)."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from arborcast.engine.embedded import commands
from arborcast.engine.embedded.state import PartState
from arborcast.engine.embedded.status import status
from tests.support.engine import BEATS, DEAF, DIES, NEVER_READY, SLEEP, SLOW_TO_STOP, WITH_CHILD, fake_engine, gone
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

# Enough for a machine on which a beat comes ten times later than it should.
HANG_S = 4.0


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def test_a_killed_part_is_started_again_and_its_state_written_once_it_can_be(tmp_path: Path) -> None:
    # The second part dies if it is started before the first one is ready.
    second = "Path('a.ready').exists() or sys.exit(1); touch(); sleep(600)"
    parts = [("b", second, ["a"], 0.9), ("a", f"sleep(0.5); {WITH_CHILD}", [], 0.9)]
    with fake_engine(tmp_path, parts, restart_first_s=0.1) as engine:
        engine.wait_ready()
        before, other = engine.pid("a"), engine.pid("b")
        [child] = psutil.Process(before).children()
        # Where the supervisor's main thread makes its draft.
        in_the_way = engine.home.state_file.with_name(f".state.json.{os.uname().nodename}.{engine.process.pid}")
        in_the_way.mkdir()
        os.kill(before, signal.SIGKILL)
        engine.wait_for_line_with("state.json cannot be written")
        assert engine.status().parts["a"].restarts == 0
        in_the_way.rmdir()
        engine.wait_for("a", PartState.READY, restarts=1)
        assert engine.pid("a") != before
        assert gone(child.pid), "it is killed before its part starts again"
        assert engine.status().parts["a"].last_exit == "was killed by SIGKILL"
        assert (engine.pid("b"), engine.status().parts["b"].restarts) == (other, 0)
        os.kill(engine.pid("a"), signal.SIGKILL)
        engine.wait_for("a", PartState.READY, restarts=2)
        _, lines, _ = engine.end(signal.SIGINT)
    assert any(line.startswith("a: was killed by SIGKILL") and "restart 2 in 0.2 s" in line for line in lines)
    assert not [line for line in lines if "cannot be written" in line], "it is reported once"


def test_a_part_that_never_starts_ends_the_start_with_its_output(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("good", SLEEP), ("bad", DIES)], restart_first_s=0.05) as engine:
        output, _ = engine.process.communicate(timeout=60)
    assert engine.process.returncode == 1
    assert "failed: bad ended with code 3, 2 times in a row" in output
    assert "no such setting: colour" in output
    found = engine.status()
    assert (found.parts["bad"].state, found.parts["good"].state) == (PartState.FAILED, PartState.STOPPED)
    assert "colour" in found.problem


def test_parts_stop_in_order_or_are_killed_at_their_share_of_the_deadline(tmp_path: Path) -> None:
    shares = {"last": (SLOW_TO_STOP, 0.97), "first": (SLOW_TO_STOP, 0.2), "b": (DEAF, 0.6), "a": (DEAF, 0.4)}
    parts = [(name, code, list[str](), share) for name, (code, share) in shares.items()]
    with fake_engine(tmp_path, parts, stop_timeout_s=4) as engine:
        engine.wait_ready()
        pids = [engine.pid(name) for name in shares]
        code, lines, _ = engine.end(signal.SIGTERM)
    assert code == 0
    ended = engine.status().parts
    assert sorted(ended, key=lambda name: ended[name].since) == ["first", "a", "b", "last"]
    assert "a: still running, killing it" in lines
    assert [line for line in lines if line in ("first: stopped", "last: stopped")] == [
        "first: stopped",
        "last: stopped",
    ]
    assert all(gone(pid) for pid in pids)


def test_a_second_signal_forces_also_while_it_starts(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("a", DEAF), ("b", NEVER_READY)], stop_timeout_s=3_000) as engine:
        engine.wait_for("a", PartState.READY)
        pids = [engine.pid("a"), engine.pid("b")]
        engine.process.send_signal(signal.SIGINT)
        engine.wait_for_line("stopping")
        code, lines, _ = engine.end(signal.SIGINT)
    assert code == 0
    assert "ready" not in lines
    assert all(gone(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_killed_supervisor_leaves_no_child(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("a", DEAF), ("b", DEAF)]) as engine:
        engine.wait_ready()
        pids = [engine.pid("a"), engine.pid("b")]
        engine.process.kill()
        wait_until(lambda: all(gone(pid) for pid in pids))
        assert engine.home.owner() is None


def test_a_stopped_part_is_started_again_and_down_waits_for_no_stopped_process(tmp_path: Path) -> None:
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
        assert gone(before)
        assert (after["a"].hangs, after["a"].silent_since) == (1, 0.0)
        assert after["a"].last_exit.startswith("did not answer for ")
        assert f"(pid {before}) is stopped) and was killed" in after["a"].last_exit
        assert [after[name].restarts for name in "bc"] == [0, 0]
        engine.wait_for_line("a: no heartbeat within 1 s; killed when that lasts for 4 s")
        assert "restart 1 in 0.1 s" in engine.wait_for_line_with("a: did not answer for ")
        pids = [engine.pid(name) for name in "abc"]
        for pid in (*pids, engine.process.pid):
            stop(pid)
        assert commands.down(tmp_path, lambda _line: None)
        assert all(gone(pid) for pid in pids)
        assert engine.process.wait(120) == 0, "it went on, and stopped in order"
        assert {one.state for one in engine.status().parts.values()} == {PartState.STOPPED}


def test_a_stopped_supervisor_shows_in_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.engine.embedded.status.BEAT_S", 0.1)
    with fake_engine(tmp_path, [("a", SLEEP)]) as engine:
        engine.wait_ready()
        document = status(tmp_path)
        assert (document["ready"], document["supervisor"]["silent_s"]) == (True, 0.0)
        stop(engine.process.pid)
        long_ago = time.time() - 100
        os.utime(engine.home.state_file, (long_ago, long_ago))
        document = status(tmp_path)
        assert (document["running"], document["ready"]) == (True, False)
        assert document["supervisor"]["silent_s"] >= 100
        os.kill(engine.process.pid, signal.SIGCONT)
        wait_until(lambda: status(tmp_path)["ready"])
