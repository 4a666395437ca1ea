"""The supervisor over small real processes: what it starts, starts again, and leaves behind (nothing)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from arborcast.engine.embedded.state import PartState
from tests.support.engine import DEAF, DIES, NEVER_READY, SLEEP, SLOW_TO_STOP, WITH_CHILD, FullPart, fake_engine, gone
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def test_a_part_waits_for_those_it_comes_after(tmp_path: Path) -> None:
    first = "sleep(0.5); touch(); sleep(600)"
    # Dies if it is started before the other one is ready.
    second = "Path('a.ready').exists() or sys.exit(1); touch(); sleep(600)"
    with fake_engine(tmp_path, [("b", second, ["a"], 0.9), ("a", first, [], 0.9)]) as engine:
        engine.wait_ready()
        assert engine.status().parts["b"].restarts == 0


def test_a_killed_part_comes_back(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("a", SLEEP), ("b", SLEEP)], restart_first_s=0.1) as engine:
        engine.wait_ready()
        before, other = engine.pid("a"), engine.pid("b")
        os.kill(before, signal.SIGKILL)
        engine.wait_for("a", PartState.READY, restarts=1)
        assert engine.pid("a") != before
        assert engine.pid("b") == other
        assert engine.status().parts["a"].last_exit == "was killed by SIGKILL"
        _, lines, _ = engine.end(signal.SIGINT)
    assert any(line.startswith("a: was killed by SIGKILL") and "restart 1 in 0.1 s" in line for line in lines)


def test_what_could_not_be_written_down_is_written_when_it_can(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("a", SLEEP), ("b", SLEEP)], restart_first_s=0.1) as engine:
        engine.wait_ready()
        # Where the supervisor's main thread makes its draft.
        in_the_way = engine.home.state_file.with_name(f".state.json.{os.uname().nodename}.{engine.process.pid}")
        in_the_way.mkdir()
        before = engine.pid("a")
        os.kill(before, signal.SIGKILL)
        said = [engine.wait_for_line_with("state.json cannot be written")]
        assert engine.status().parts["a"].restarts == 0
        in_the_way.rmdir()
        engine.wait_for("a", PartState.READY, restarts=1)
        _, lines, _ = engine.end(signal.SIGINT)
    assert not [line for line in lines if "cannot be written" in line], f"said once: {said}"


def test_what_a_dead_part_leaves_behind_is_killed_before_it_starts_again(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("a", WITH_CHILD)], restart_first_s=0.1) as engine:
        engine.wait_ready()
        [child] = psutil.Process(engine.pid("a")).children()
        os.kill(engine.pid("a"), signal.SIGKILL)
        engine.wait_for("a", PartState.READY, restarts=1)
        assert gone(child.pid)


def test_a_part_that_never_comes_up_ends_the_start_with_its_last_words(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("good", SLEEP), ("bad", DIES)], restart_first_s=0.05) as engine:
        output, _ = engine.process.communicate(timeout=60)
    assert engine.process.returncode == 1
    assert "failed: bad ended with code 3, 2 times in a row" in output
    assert "no such setting: colour" in output
    status = engine.status()
    assert status.parts["bad"].state is PartState.FAILED
    assert status.parts["good"].state is PartState.STOPPED
    assert "colour" in status.problem


def test_parts_stop_one_after_the_other(tmp_path: Path) -> None:
    parts: list[FullPart] = [
        ("last", SLOW_TO_STOP, [], 0.9),
        ("first", SLOW_TO_STOP, [], 0.3),
        ("middle", SLOW_TO_STOP, [], 0.6),
    ]
    with fake_engine(tmp_path, parts) as engine:
        engine.wait_ready()
        _, lines, _ = engine.end(signal.SIGTERM)
        status = engine.status()
    assert [line for line in lines if ": stopped" in line] == [
        "first: stopped",
        "middle: stopped",
        "last: stopped",
    ]
    assert status.parts["first"].since < status.parts["middle"].since < status.parts["last"].since


def test_parts_that_do_not_stop_are_killed_before_the_one_deadline(tmp_path: Path) -> None:
    parts: list[FullPart] = [("a", DEAF, [], 0.97), ("b", DEAF, [], 0.3), ("c", DEAF, [], 0.6)]
    with fake_engine(tmp_path, parts, stop_timeout_s=4) as engine:
        engine.wait_ready()
        pids = [engine.pid(name) for name in "abc"]
        code, lines, _ = engine.end(signal.SIGTERM)
    assert code == 0
    # Each at its share of the one deadline, not after a time of its own.
    parts_then = engine.status().parts
    assert parts_then["b"].since < parts_then["c"].since < parts_then["a"].since
    assert "a: still running, killing it" in lines
    assert all(gone(pid) for pid in pids)


def test_a_second_signal_forces(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("a", DEAF), ("b", DEAF)], stop_timeout_s=3_000) as engine:
        engine.wait_ready()
        pids = [engine.pid("a"), engine.pid("b")]
        engine.process.send_signal(signal.SIGINT)
        engine.wait_for_line("stopping")
        code, _, _ = engine.end(signal.SIGINT)
    assert code == 0
    assert all(gone(pid) for pid in pids)


def test_stopping_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("a", SLEEP), ("b", NEVER_READY)]) as engine:
        engine.wait_for("a", PartState.READY)
        pids = [engine.pid("a"), engine.pid("b")]
        code, lines, _ = engine.end(signal.SIGINT)
    assert code == 0
    assert "ready" not in lines
    assert all(gone(pid) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children that their parent died")
def test_killing_the_supervisor_leaves_no_child(tmp_path: Path) -> None:
    with fake_engine(tmp_path, [("a", DEAF), ("b", DEAF)]) as engine:
        engine.wait_ready()
        pids = [engine.pid("a"), engine.pid("b")]
        engine.process.kill()
        wait_until(lambda: all(gone(pid) for pid in pids))
        assert engine.home.owner() is None
