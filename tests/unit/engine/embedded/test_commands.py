"""`down` and `status` where no engine runs, and clearing away after one that was killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from arborcast.engine.embedded import commands, state
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.state import EngineStatus, PartState, PartStatus
from arborcast.engine.embedded.status import status
from arborcast.engine.processes import processes
from arborcast.engine.processes.processes import ProcessId
from tests.support.engine import gone


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "data")
    home.create()
    return home


@pytest.fixture
def orphan() -> Iterator[ProcessId]:
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as process:
        found = ProcessId.of(process.pid)
        assert found is not None
        yield found
        process.kill()


def write_state(home: Home, process: ProcessId | None, part: PartState = PartState.READY) -> None:
    dead = ProcessId(2**22 + 1, 0.0)  # above Linux's largest process id
    state.write(home.state_file, EngineStatus(dead, 0.0, {}, {"kafka": PartStatus(part, 0.0, process)}, "no room"))


def test_why_it_failed_is_still_known_afterwards(home: Home) -> None:
    write_state(home, None, PartState.FAILED)
    document = status(home.path)
    assert document["parts"]["kafka"]["state"] == "failed"
    assert document["problem"] == "no room"


def test_down_ends_what_a_killed_supervisor_left_behind(home: Home, orphan: ProcessId) -> None:
    write_state(home, orphan)
    said: list[str] = []
    assert commands.down(home.path, said.append) is False
    assert gone(orphan.pid)
    assert said == [f"kafka: pid {orphan.pid} was left by an engine that was killed; ending it"]


def test_down_finds_what_outlived_the_first_process_of_its_part(home: Home) -> None:
    # The shell is the recorded process, and gone; its child names the data directory in its command line.
    script = f"/bin/sh -c 'sleep 600; : {home.path}' & echo $!"
    shell = subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    child = int(shell.stdout.readline())
    shell.wait()
    shell.stdout.close()
    write_state(home, ProcessId(shell.pid, 0.0))
    commands.down(home.path, lambda _line: None)
    assert gone(child)


def test_a_stranger_with_the_same_process_id_is_spared(home: Home, orphan: ProcessId) -> None:
    write_state(home, ProcessId(orphan.pid, orphan.created - 3600))
    commands.down(home.path, lambda _line: None)
    assert not gone(orphan.pid)


def test_status_adds_up_what_a_part_uses(home: Home, orphan: ProcessId) -> None:
    write_state(home, orphan)
    with home.locked():
        document = status(home.path)
    kafka = document["parts"]["kafka"]
    assert (kafka["state"], kafka["pid"], kafka["processes"]) == ("ready", orphan.pid, 1)
    assert kafka["memory_bytes"] > 0
    assert kafka["since"] == "1970-01-01T00:00:00.000Z"
    assert document["memory_kind"] == processes.memory_kind()


def test_a_part_whose_end_could_not_be_written_down_is_not_said_to_be_ready(home: Home, orphan: ProcessId) -> None:
    write_state(home, ProcessId(orphan.pid, orphan.created - 3600))
    with home.locked():
        document = status(home.path)
    assert (document["ready"], document["parts"]["kafka"]["state"]) == (False, "restarting")


def test_status_says_what_is_full(home: Home) -> None:
    assert status(home.path)["disk"] == ""
    home.settings_file.write_text(f"[stack]\nmin_free_disk_mb = {10**9}\n")
    said = status(home.path)["disk"]
    assert f"MiB are free on the disk of {home.path}" in said
    assert "make room" in said
