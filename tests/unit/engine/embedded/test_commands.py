"""State, `status` and `down`, of a running engine, a stopped one, and one that was killed."""

from __future__ import annotations

import os
import pwd
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from typer.testing import CliRunner

from arborcast.cli import app
from arborcast.engine.embedded import commands, state
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.state import EngineStatus, PartState, PartStatus
from arborcast.engine.embedded.status import status
from arborcast.engine.processes import logfiles, processes
from arborcast.engine.processes.errors import PartFailed, StackError
from arborcast.engine.processes.processes import ProcessId
from arborcast.engine.settings.loading import load_settings
from arborcast.jobs import dispatch_stream
from tests.support.process import has_ended

ME = ProcessId.of_this()
DEAD = ProcessId(2**22 + 1, 0.0)  # above Linux's largest process id


@pytest.fixture
def orphan() -> Iterator[ProcessId]:
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as process:
        found = ProcessId.of(process.pid)
        assert found is not None
        yield found
        process.kill()


def write_state(home: Home, process: ProcessId | None, part: PartState = PartState.READY) -> None:
    state.write(home.state_file, EngineStatus(DEAD, 0.0, {}, {"kafka": PartStatus(part, 0.0, process)}, "no room"))


def down(home: Home) -> list[str]:
    said: list[str] = []
    assert commands.down(home.path, said.append) is False
    return said


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"parts": {"kafka": {}}}', "\x00"])
def test_a_damaged_state_file_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    assert state.read(tmp_path / "state.json") is None


def test_an_engine_is_ready_when_every_part_is() -> None:
    ready, starting = (PartStatus(each, 0.0) for each in (PartState.READY, PartState.STARTING))
    for parts, expected in (
        ((ready, ready), True),
        ((ready, starting), False),
        ((ready, replace(ready, silent_since=1.0)), False),
        ((), False),
    ):
        named = {str(number): each for number, each in enumerate(parts)}
        assert EngineStatus(DEAD, 0.0, {}, named).ready is expected, parts


def test_a_process_id_has_its_start_time() -> None:
    assert ME.pid == os.getpid()
    assert ME.process() is not None
    assert replace(ME, created=ME.created - 60).process() is None
    assert replace(ME, boot="of yesterday").process() is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux computes the start from the clock")
def test_a_process_is_the_same_after_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: before - 3600)
    assert ME.process() is not None
    assert ProcessId.of_this() == ME


@pytest.mark.parametrize(
    ("lines", "environment", "kafka"),
    [
        ("", {}, "127.0.0.1:9680"),
        ("", {"ARBORCAST_READY_FILE": "ready"}, "127.0.0.1:9092"),
        ('[kafka]\nbootstrap_servers = "127.0.0.1:7"\n', {}, "127.0.0.1:7"),
    ],
    ids=["alone", "started by the supervisor", "with a private Kafka"],
)
def test_a_job_finds_the_kafka_of_the_running_engine(
    home: Home, monkeypatch: pytest.MonkeyPatch, lines: str, environment: dict[str, str], kafka: str
) -> None:
    state.write(home.state_file, EngineStatus(DEAD, 2.5, {"kafka": "127.0.0.1:9680"}, {}))
    monkeypatch.setattr(Home, "owner", lambda _: DEAD.pid)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = home.path / "arborcast.toml"
    config.write_text(lines)
    assert dispatch_stream._settings(config, home.path).kafka.bootstrap_servers == kafka


def test_down_ends_orphans_of_a_supervisor_and_no_other_process(home: Home, orphan: ProcessId) -> None:
    write_state(home, replace(orphan, created=orphan.created - 3600))
    down(home)
    assert not has_ended(orphan.pid), "another process has the same id"
    write_state(home, orphan)
    assert down(home) == [f"kafka: pid {orphan.pid} was left by an engine that was killed; ending it"]
    assert has_ended(orphan.pid)
    # The shell is the recorded process, which has exited; its child has the data directory in its command line.
    script = f"/bin/sh -c 'sleep 600; : {home.path}' & echo $!"
    shell = subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    child = int(shell.stdout.readline())
    shell.wait()
    shell.stdout.close()
    ended = ProcessId(shell.pid, 0.0, ME.boot)
    write_state(home, replace(ended, boot="of yesterday"))
    assert down(home) == []
    assert not has_ended(child), "the machine was restarted, so another process has the id"
    write_state(home, ended)
    down(home)
    assert has_ended(child)


def test_the_start_fails_for_a_user_without_a_name_as_spark_would(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError))
    monkeypatch.setattr(commands, "keep_private", lambda _: None)
    ports = {"gateway.port": 0, "stack.kafka_port": 0}
    with pytest.raises(StackError, match=f"the user id {os.geteuid()} has no name on this machine"):
        commands.up(load_settings(None, home.path, ports, {}))


def test_the_start_fails_with_too_few_open_files(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = Mock()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 256))
    monkeypatch.setattr(resource, "setrlimit", raised)
    monkeypatch.setattr(commands, "keep_private", lambda _: None)
    with pytest.raises(StackError, match=r"at most 256 open files here, and Kafka and Spark need 1024: raise the hard"):
        commands.up(load_settings(None, home.path, {"gateway.port": 0, "stack.kafka_port": 0}, {}))
    assert raised.call_args.args == (resource.RLIMIT_NOFILE, (256, 256))


def test_parts_of_a_running_engine_survive_a_start_from_a_copy_of_its_directory(home: Home, orphan: ProcessId) -> None:
    state.write(home.state_file, EngineStatus(ME, 0.0, {}, {"kafka": PartStatus(PartState.READY, 0.0, orphan)}))
    assert down(home) == []
    assert not has_ended(orphan.pid)


def test_down_leaves_its_own_session_alone(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(home, ProcessId(os.getsid(0), 0.0, ME.boot))
    monkeypatch.setattr(processes, "session", lambda _: [psutil.Process()])
    monkeypatch.setattr(processes, "kill_all", lambda _: None)
    monkeypatch.setattr(processes, "words", lambda _: ["arborcast", "down", "--home", str(home.path)])
    assert down(home) == []


def test_down_signals_the_process_that_takes_over_the_lock(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    owners, signalled = iter([0, 0, 7, 8, 8, None]), []
    monkeypatch.setattr(Home, "owner", lambda _: next(owners))
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append((pid, number)))
    assert commands.down(home.path, lambda _: None)
    assert signalled == [(pid, number) for pid in (7, 8) for number in (signal.SIGTERM, signal.SIGCONT)]


def test_an_engine_continues_when_its_terminal_is_closed(home: Home) -> None:
    with commands._displayed(Mock(side_effect=BrokenPipeError)) as display:
        commands._also_logged(home, load_settings(None, home.path, environ={}), display)("kafka: ready")
    assert "kafka: ready" in home.log("supervisor").read_text()


def test_an_engine_continues_while_its_terminal_takes_no_output() -> None:
    resumed, shown, lines = threading.Event(), list[str](), [f"line {number}" for number in range(3)]

    def report(line: str) -> None:
        resumed.wait()
        shown.append(line)

    with commands._displayed(report) as display:
        for line in lines:
            display(line)
        assert shown == []
        resumed.set()
    assert shown == lines


def test_the_error_of_a_supervisor_that_could_write_nothing_names_the_disk(home: Home) -> None:
    daemon = subprocess.Popen(["/bin/sh", "-c", "exit 1"])
    daemon.wait()
    log = logfiles.LogTail(home.log("supervisor"))
    with pytest.raises(PartFailed, match=f"ended with code 1; see .* {home.path} cannot be written: make room"):
        commands._wait_for_daemon(daemon, home, log, lambda _line: None)


def printed_status(home: Home) -> str:
    with home.locked():
        result = CliRunner().invoke(app, ["status", "--home", str(home.path)])
    assert result.exit_code == 3
    return result.stdout


def test_the_status_of_an_engine_that_has_written_none_yet(home: Home) -> None:
    assert printed_status(home).startswith(f"an engine is starting in {home.path}")


def test_the_status_of_parts(home: Home, orphan: ProcessId) -> None:
    assert status(home.path)["disk"] == "", "without a state file"
    write_state(home, None, PartState.FAILED)
    document = status(home.path)
    assert (document["parts"]["kafka"]["state"], document["problem"]) == ("failed", "no room")
    write_state(home, orphan)
    with home.locked():
        document = status(home.path)
        kafka = document["parts"]["kafka"]
        assert (kafka["state"], kafka["pid"], kafka["processes"]) == ("ready", orphan.pid, 1)
        assert kafka["memory_bytes"] > 0
        assert kafka["since"] == "1970-01-01T00:00:00.000Z"
        assert document["memory_kind"] == processes.memory_kind()
        # Its exit could not be written.
        write_state(home, replace(orphan, created=orphan.created - 3600))
        document = status(home.path)
        assert (document["ready"], document["parts"]["kafka"]["state"]) == (False, "restarting")
    home.settings_file.write_text(f"[stack]\nmin_free_disk_mb = {10**9}\n")
    said = status(home.path)["disk"]
    assert f"MiB are free on the disk of {home.path}" in said
    assert "make room" in said


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    home = Home(tmp_path / "data[" / "x]")  # as the end of a style on the terminal
    home.create()
    state.write(home.state_file, EngineStatus(ME, 0.0, {}, {}))
    home.settings_file.write_text(f"[stack]\nmin_free_disk_mb = {10**9}\n")
    said = printed_status(home)
    assert said.startswith(f"{home.path} (pid {ME.pid})")
    assert f"on the disk of {home.path} " in said


def test_the_status_tells_of_restarts_and_silence(home: Home) -> None:
    parts = {
        "kafka": PartStatus(PartState.READY, 0.0, ME, 2, "did not answer for 30 s (no answer within 7.5 s)", 1),
        "gateway": PartStatus(PartState.READY, 0.0, ME, silent_since=time.time() - 12),
        "dispatch": PartStatus(PartState.READY, 0.0, ME),
    }
    state.write(home.state_file, EngineStatus(ME, 0.0, {}, parts))
    said = re.sub(r"1\d s", "12 s", printed_status(home))  # more on a busy machine
    for words in (
        "kafka was restarted 2 times; last time it did not answer for 30 s (no answer within 7.5 s)",
        "gateway has not answered for 12 s; it is restarted if that continues",
        "silent 12 s",
    ):
        assert words in said
    assert "dispatch was" not in said
