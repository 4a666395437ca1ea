"""Findings of `doctor`, and their advice."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path

import pytest

from arborcast.admin import doctor
from arborcast.admin.doctor import Check
from arborcast.core.security.keyring import add_key
from arborcast.engine.embedded import state
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.state import EngineStatus, PartState, PartStatus
from arborcast.engine.embedded.status import status
from arborcast.engine.install import java
from arborcast.engine.processes.processes import ProcessId
from arborcast.engine.settings.loading import load_settings

pytestmark = pytest.mark.slow


def findings(home: Path, **overrides: str | int) -> dict[str, Check]:
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    settings = load_settings(home=home, overrides={"gateway.port": 0, "stack.kafka_port": 0, **given}, environ={})
    return {check.name: check for check in doctor.doctor(settings)}


def test_checks_write_nothing_and_name_a_missing_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(tmp_path / "new")
    assert (found["data directory"].level, found["python"].level) == ("ok", "ok")
    assert found["pyspark"].finding == "4.2.0, and so are its jars"
    assert not (tmp_path / "new").exists()
    monkeypatch.setenv("ARBORCAST_JAVA", "/no/such/java")
    java = findings(tmp_path)["java"]
    assert (java.level, "make setup JAVA=wheel" in java.advice) == ("fail", True)
    assert java.finding.startswith("ARBORCAST_JAVA = /no/such/java is neither")


def test_a_mode_with_too_few_slots(tmp_path: Path) -> None:
    assert findings(tmp_path)["mode"].finding == "auto; on a Spark cluster its executors need 4 cores"
    few = {"kafka__partitions": 6, "dispatch__task_slots": 4}
    found = findings(tmp_path, **few)["mode"]
    assert found.level == "warn"
    assert found.advice.startswith("Set dispatch.task_slots to 6, or dispatch.mode to batch.")
    assert findings(tmp_path, **few, dispatch__mode="batch")["mode"] == Check("mode", "ok", "batch")


def test_the_mqtt_bridge_and_busy_ports(tmp_path: Path) -> None:
    assert {"mqtt", "settings"}.isdisjoint(findings(tmp_path))
    assert "mqtt.url requires mqtt.rules_file" in findings(tmp_path, mqtt__url="mqtt://127.0.0.1")["settings"].finding
    assert "'/no/a' cannot be read" in findings(tmp_path, tls__certificate_file="/no/a")["settings"].finding
    file = tmp_path / "rules.toml"
    file.write_text('[in.a]\nmqtt = "a"\ntopic = "1"\n')
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        given = {"mqtt__url": f"mqtt://127.0.0.1:{port}", "mqtt__rules_file": str(file)}
        assert "[in.a]" in findings(tmp_path, **given)["mqtt"].finding
        file.write_text('[in.a]\nmqtt = "a"\ntopic = "a"\n')
        found = findings(tmp_path, **given, gateway__port=port, stack__kafka_port=port)
        assert found["mqtt"].finding == f"{given['mqtt__url']} accepts connections; rules: 1 in, 0 out"
        assert (found["mqtt"].level, found["gateway port"].level, found["kafka port"].level) == ("ok", "fail", "fail")
        assert "--gateway-port PORT" in found["gateway port"].advice
        assert "--kafka-port PORT" in found["kafka port"].advice
    # The server is closed.
    kafka = {"stack__broker": "external", "kafka__bootstrap_servers": f"127.0.0.1:{port}"}
    directory = {"directory__kind": "ldap", "directory__url": f"ldap://127.0.0.1:{port}"}
    found = findings(tmp_path, **given, **kafka, **directory)
    assert [found[name].level for name in ("mqtt", "broker", "directory")] == ["fail"] * 3
    assert f"127.0.0.1:{port} does not answer" in found["broker"].finding


def test_tables_on_another_disk_and_a_pod_without_a_users_file(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    elsewhere = str(tmp_path / "disk" / "tables")
    assert findings(tmp_path / "home", tables__path=elsewhere)["tables"].level == "ok"
    assert findings(tmp_path / "home", tables__path=elsewhere, stack__min_free_disk_mb=10**9)["tables"].level == "warn"
    users = {"access__methods": "basic", "access__users_file": str(tmp_path / "users.toml")}
    found = findings(tmp_path / "home", tables__path="s3://bucket/tables", **users)
    assert "tables" not in found
    assert not any("users.toml" in check.finding + check.advice for check in found.values())


def test_a_missing_damaged_or_readable_key_file(tmp_path: Path) -> None:
    file = tmp_path / "common.keys"
    assert "arborcast keys new" in findings(tmp_path, secrets__key_file=str(file))["keys"].advice
    file.write_text("k1 nothing\n")
    assert findings(tmp_path, secrets__key_file=str(file))["keys"].level == "fail"
    file.unlink()
    add_key(file, "k1")
    assert findings(tmp_path, secrets__key_file=str(file))["keys"].level == "ok"
    file.chmod(0o644)
    assert findings(tmp_path, secrets__key_file=str(file))["keys"].advice == f"chmod 600 {file}"
    assert "keys" not in findings(tmp_path / "embedded"), "the embedded engine creates its keys"


def running(home: Home, *names: str) -> None:
    """A state file in which these parts are ready."""
    me = ProcessId.of_this()
    parts = {name: PartStatus(PartState.READY, 0.0, me) for name in names}
    state.write(home.state_file, EngineStatus(me, 0.0, {"kafka": "127.0.0.1:1"}, parts))


def test_parts_that_do_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports are open and a file marks the job as ready, but no process runs."""
    monkeypatch.setattr(doctor, "_PATIENCE_S", 0.2)
    home = Home(tmp_path)
    home.create()
    home.ready_file.touch()
    running(home, "kafka", "gateway", "dispatch")
    with socket.create_server(("127.0.0.1", 0)) as server, home.locked():
        port = server.getsockname()[1]
        home.settings_file.write_text(f"[gateway]\nport = {port}\n[stack]\nkafka_port = {port}\n")
        found = findings(tmp_path)
    assert found["engine"].level == "ok"
    for name, finding in {
        "kafka": "does not answer: no answer within 0.2 s",
        "gateway": "does not answer: no answer within 0.2 s",
        "dispatch": "does not answer: no heartbeat within 0.2 s",
    }.items():
        assert (found[name].level, found[name].finding) == ("fail", finding)
        assert f"{name}.log" in found[name].advice
        assert ("stack.job_hang_timeout_s" in found[name].advice) is (name == "dispatch")


def test_a_supervisor_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arborcast.engine.embedded.status.BEAT_S", 0.1)
    home = Home(tmp_path)
    home.create()
    running(home)
    os.utime(home.state_file, (time.time() - 100, time.time() - 100))
    with home.locked():
        assert not status(tmp_path)["ready"]
        engine = findings(tmp_path)["engine"]
    assert engine.level == "fail"
    assert f"its supervisor (pid {os.getpid()}) has made no progress for 1" in engine.finding
    assert f"kill -CONT {os.getpid()}" in engine.advice


def test_every_finding_has_an_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARBORCAST_JAVA", "/no/such/java")
    monkeypatch.setenv("ARBORCAST_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_MEMORY_MB", 10**9)
    monkeypatch.setattr(doctor, "_FILES", 10**9)
    monkeypatch.setattr(java, "FEWEST_FILES", 10**9)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = findings(
            tmp_path / "home",
            gateway__port=port,
            metrics__port=port,
            stack__broker="external",
            stack__min_free_disk_mb=10**9,
            tables__path=str(tmp_path),
            kafka__bootstrap_servers="127.0.0.1:1",
            directory__kind="ldap",
            directory__url="ldap://127.0.0.1:1",
        )
    wrong = [check for check in found.values() if check.level != "ok"]
    assert {"java", "jars (spark)", "bash", "data directory", "tables", "keys", "memory", "broker"} <= {
        check.name for check in wrong
    }
    assert found["open files"].level in ("fail", "ok"), "ok where the limit is infinite"
    for check in wrong:
        assert re.match("[A-Z`]|chmod|ulimit", check.advice), check
