"""What the supervisor writes about itself can be read by others at any time."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from arborcast.engine.embedded import state
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.state import EngineStatus, PartState, PartStatus
from arborcast.engine.processes.processes import ProcessId
from arborcast.jobs import dispatch_stream

STATUS = EngineStatus(
    supervisor=ProcessId(10, 1.5),
    since=2.5,
    addresses={"gateway": "http://127.0.0.1:8080"},
    parts={
        "kafka": PartStatus(PartState.READY, 3.5, ProcessId(11, 1.75), restarts=2, last_exit="was killed by SIGKILL"),
        "gateway": PartStatus(PartState.RESTARTING, 4.5, hangs=1, silent_since=5.5),
    },
    problem="",
)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"parts": {"kafka": {}}}', "\x00"])
def test_what_cannot_be_understood_is_no_state(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    assert state.read(tmp_path / "state.json") is None


def test_the_engine_is_ready_when_every_part_is() -> None:
    ready = PartStatus(PartState.READY, 0.0)
    starting = PartStatus(PartState.STARTING, 0.0)
    nobody = ProcessId(1, 0.0)
    assert EngineStatus(nobody, 0.0, {}, {"a": ready, "b": ready}).ready
    assert not EngineStatus(nobody, 0.0, {}, {"a": ready, "b": starting}).ready
    assert not EngineStatus(nobody, 0.0, {}, {"a": ready, "b": replace(ready, silent_since=1.0)}).ready
    assert not EngineStatus(nobody, 0.0, {}, {}).ready


def test_a_process_is_known_by_its_start_too() -> None:
    me = ProcessId.of_this()
    assert me.pid == os.getpid()
    assert me.process() is not None
    assert ProcessId(me.pid, me.created - 60).process() is None


@pytest.mark.parametrize(
    ("lines", "environment", "kafka"),
    [
        ("", {}, "127.0.0.1:9680"),
        ("", {"ARBORCAST_READY_FILE": "ready"}, "127.0.0.1:9092"),
        ('[kafka]\nbootstrap_servers = "127.0.0.1:7"\n', {}, "127.0.0.1:7"),
    ],
    ids=["alone", "started by the supervisor", "with a Kafka of its own"],
)
def test_a_job_finds_the_kafka_of_the_engine_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, environment: dict[str, str], kafka: str
) -> None:
    file = Home(tmp_path).state_file
    file.parent.mkdir(parents=True, exist_ok=True)
    state.write(file, replace(STATUS, addresses={"kafka": "127.0.0.1:9680"}))
    monkeypatch.setattr(Home, "owner", lambda _: 10)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "arborcast.toml"
    config.write_text(lines)
    assert dispatch_stream._settings(config, tmp_path).kafka.bootstrap_servers == kafka
