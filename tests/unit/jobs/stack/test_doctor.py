"""What the doctor finds, and the advice that goes with it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from jobs.settings import load_settings
from jobs.stack import doctor
from jobs.stack.doctor import Check


def findings(home: Path, **overrides: str | int) -> dict[str, Check]:
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    settings = load_settings(home=home, overrides={"gateway.port": 0, "stack.kafka_port": 0, **given}, environ={})
    return {check.name: check for check in doctor.doctor(settings)}


def test_looks_without_touching(tmp_path: Path) -> None:
    found = findings(tmp_path / "new")
    assert found["data directory"].level == "ok"
    assert found["python"].level == "ok"
    assert found["pyspark"].finding == "4.2.0, and so are its jars"
    assert not (tmp_path / "new").exists()


def test_a_java_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARBORCAST_JAVA", "/no/such/java")
    java = findings(tmp_path)["java"]
    assert java.level == "fail"
    assert java.finding.startswith("ARBORCAST_JAVA = /no/such/java is neither")
    assert "make setup JAVA=wheel" in java.advice


def test_jars_that_were_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARBORCAST_CACHE", str(tmp_path / "empty"))
    found = findings(tmp_path)
    assert (found["jars (spark)"].level, found["jars (broker)"].level) == ("fail", "fail")
    assert found["jars (broker)"].advice == "Run: arborcast fetch"


def test_busy_ports(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = findings(tmp_path, gateway__port=port, stack__kafka_port=port)
    assert (found["gateway port"].level, found["kafka port"].level) == ("fail", "fail")
    assert "--gateway-port PORT" in found["gateway port"].advice
    assert "--kafka-port PORT" in found["kafka port"].advice


def test_a_broker_and_a_directory_that_do_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()[1]
    found = findings(
        tmp_path,
        stack__broker="external",
        kafka__bootstrap_servers=f"127.0.0.1:{nobody}",
        directory__kind="ldap",
        directory__url=f"ldap://127.0.0.1:{nobody}",
    )
    assert found["broker"].level == "fail"
    assert f"127.0.0.1:{nobody} does not answer" in found["broker"].finding
    assert found["directory"].level == "fail"


def test_something_that_listens_but_is_no_broker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = findings(tmp_path, stack__broker="external", kafka__bootstrap_servers=f"127.0.0.1:{port}")
    assert found["broker"].level == "fail"


def test_too_little_room(tmp_path: Path) -> None:
    found = findings(tmp_path, stack__min_free_disk_mb=10**9)
    assert found["data directory"].level == "fail"
    assert "MiB are free" in found["data directory"].finding
