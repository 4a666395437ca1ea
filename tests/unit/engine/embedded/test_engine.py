"""Settings and start of the parts, and the class archive (its job is a shell script here)."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from arborcast.core.errors import ConfigError
from arborcast.engine.embedded import engine
from arborcast.engine.embedded.engine import Tools
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.parts import PartSpec
from arborcast.engine.install import class_archive
from arborcast.engine.install.java import JavaRuntime
from arborcast.engine.monitoring.endpoint import Endpoint, Page
from arborcast.engine.monitoring.stack_monitor import get
from arborcast.engine.processes.errors import PortInUse
from arborcast.engine.settings.loading import Settings, load_settings
from tests.support.held_port import HeldPort


@pytest.fixture
def tools() -> Tools:
    java = JavaRuntime(Path("/opt/jdk/bin/java"), "17", "the test")
    return Tools(java, java.home, [Path("/jars/connector.jar")], [Path("/jars/kafka.jar")])


@pytest.fixture
def busy() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def settings(home: Home, **overrides: str | int) -> Settings:
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_settings(home=home.path, overrides={"gateway.port": 0, "stack.kafka_port": 0, **given}, environ={})


def test_port_0_is_replaced_by_a_free_port(home: Home) -> None:
    chosen = engine.effective(settings(home))
    assert chosen.gateway.port != 0
    assert chosen.kafka.bootstrap_servers == f"127.0.0.1:{chosen.stack.kafka_port}"
    assert engine.addresses(chosen) == {
        "gateway": f"http://127.0.0.1:{chosen.gateway.port}",
        "notification_broker": f"http://127.0.0.1:{chosen.gateway.port}/wsn/NotificationBroker",
        "kafka": chosen.kafka.bootstrap_servers,
        "metrics": f"http://127.0.0.1:{chosen.metrics.port}",
        "console": f"http://127.0.0.1:{chosen.console.port}",
    }
    assert engine.metrics_urls(chosen)["dispatch"] == f"http://127.0.0.1:{chosen.metrics.job_port}"


@pytest.mark.parametrize("host", ["::1", "::"])
def test_addresses_of_ipv6(home: Home, host: str) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
            port = server.getsockname()[1]
    except OSError:
        pytest.skip("this machine has no IPv6")
    hosts: dict[str, str | int] = {"gateway.host": host, "metrics.host": "::1", "console.host": "::1", "framed.port": 1}
    chosen = engine.effective(settings(home, **hosts, **{"gateway.port": port, "access.open_network": True}))
    reached = "127.0.0.1" if host == "::" else "[::1]"
    assert engine.addresses(chosen) | {"kafka": ""} == {
        "gateway": f"http://{reached}:{port}",
        "notification_broker": f"http://{reached}:{port}/wsn/NotificationBroker",
        "framed": f"framed://{reached}:1",
        "kafka": "",
        "metrics": f"http://[::1]:{chosen.metrics.port}",
        "console": f"http://[::1]:{chosen.console.port}",
    }
    assert engine.metrics_urls(chosen) == {
        "gateway": f"http://{reached}:{port}",
        "dispatch": f"http://[::1]:{chosen.metrics.job_port}",
    }
    endpoint = Endpoint(chosen.metrics.host, chosen.metrics.port, {"/": Page("text/plain", lambda: b"ok")}, "metrics")
    try:
        assert get(engine.addresses(chosen)["metrics"] + "/") == b"ok"
    finally:
        endpoint.close()


@pytest.mark.parametrize("name", ["gateway.port", "metrics.port", "stack.kafka_port", "console.port"])
def test_a_busy_port_names_its_option(home: Home, busy: int, name: str) -> None:
    with pytest.raises(PortInUse, match="--" + name.removeprefix("stack.").replace(".", "-").replace("_", "-")):
        engine.effective(settings(home, **{name: busy}))


def test_a_busy_port_of_the_usual_console_stops_no_start(home: Home, busy: int) -> None:
    held = HeldPort()
    held.for_life_of(home)
    given = settings(home, gateway__port=held.number)
    usual = dataclasses.replace(given, console=dataclasses.replace(given.console, port=busy))
    assert engine.effective(usual).console.port not in (0, busy)


def test_external_parts_are_neither_started_nor_probed(home: Home, tools: Tools, busy: int) -> None:
    def parts(chosen: Settings) -> set[str]:
        return {part.name for part in engine.parts(chosen, tools, home, {})}

    with pytest.raises(ConfigError, match=r"kafka\.bootstrap_servers = 'kafka\.example:9092'.*stack\.broker"):
        engine.effective(settings(home, kafka__bootstrap_servers="kafka.example:9092"))
    given = settings(home, kafka__bootstrap_servers="kafka.example:9092", stack__broker="external", console__port=0)
    with pytest.raises(ConfigError, match=r"kafka\.max_record_bytes = 104857600 .* at most 104792064"):
        engine.effective(settings(home, kafka__max_record_bytes=104_857_600))
    with pytest.raises(ConfigError, match=r"stack\.kafka_heap_mb = 96 .* set it to 200 or more"):
        engine.effective(settings(home, kafka__max_record_bytes=104_792_064, stack__kafka_heap_mb=96))
    chosen = engine.effective(given)
    assert chosen.kafka.bootstrap_servers == "kafka.example:9092"
    assert parts(chosen) == {"dispatch", "gateway"}
    assert not {"kafka", "console"} & engine.questions_of(chosen, home).keys()
    assert "console" not in engine.addresses(chosen)
    # The job's port for metrics belongs to the job: it may run already.
    chosen = engine.effective(settings(home, stack__job="external", metrics__job_port=busy))
    assert parts(chosen) == engine.questions_of(chosen, home).keys() == {"kafka", "gateway", "console"}
    assert set(engine.metrics_urls(chosen)) == {"gateway", "dispatch"}
    assert set(engine.metrics_urls(engine.effective(settings(home, stack__job="external")))) == {"gateway"}


def test_edges_exist_if_the_settings_open_them(home: Home, tools: Tools) -> None:
    chosen = engine.effective(settings(home, zmq__enabled=True))
    assert chosen.framed.port, "the ZeroMQ edges use the framed edge"
    assert engine.addresses(chosen)["framed"] == f"framed://127.0.0.1:{chosen.framed.port}"
    (edge,) = (part for part in engine.parts(chosen, tools, home, {}) if part.name == "zmq")
    assert edge.after == ("gateway",)
    assert "framed" not in engine.addresses(engine.effective(settings(home)))


def test_the_parts_read_the_effective_settings_alone(home: Home) -> None:
    chosen = engine.effective(settings(home))
    chosen = dataclasses.replace(chosen, kafka=dataclasses.replace(chosen.kafka, sasl_password="x7"))  # noqa: S106
    home.settings_file.touch(0o644)
    engine.write_settings(chosen, home)
    assert stat.S_IMODE(home.settings_file.stat().st_mode) == 0o600
    assert load_settings(home.settings_file, environ={}) == chosen


def test_how_parts_are_started_and_in_which_order_they_stop(home: Home, tools: Tools) -> None:
    tools = dataclasses.replace(tools, classes={part: Path(f"/cache/{part}.jsa") for part in engine.JVMS})
    environ = {"LC_ALL": "C", "LANG": "en_US.UTF-8"}
    made = engine.parts(engine.effective(settings(home)), tools, home, environ)
    in_order = sorted(made, key=lambda part: part.stop_share)
    assert [part.name for part in in_order] == ["gateway", "console", "dispatch", "kafka"]
    parts = {part.name: part for part in made}
    dispatch = parts["dispatch"]
    if sys.platform == "linux":  # elsewhere Java ignores the locale for names of folders
        assert parts["kafka"].environ["LC_ALL"] == dispatch.environ["LC_ALL"] == "C.UTF-8"
    home.ready_file.touch()
    dispatch.prepare()
    assert not dispatch.is_ready(), "files of an earlier run are ignored"
    submit, _, properties, *_ = dispatch.command
    assert (submit.endswith("/bin/spark-submit"), dispatch.environ["JAVA_HOME"]) == (True, "/opt/jdk")
    text = Path(properties).read_text()
    assert "-XX:SharedArchiveFile=/cache/dispatch.jsa" in text
    assert "-XX:SharedArchiveFile=/cache/kafka.jsa" in parts["kafka"].command
    assert "spark.driver.extraClassPath /jars/connector.jar\n" in text


# Writes the archive at SIGTERM, as Java does.
_JVM = """
trap 'printf classes > "$1"; exit 0' TERM
touch "$2"
while :; do sleep 0.05; done
"""


def simulate(monkeypatch: pytest.MonkeyPatch, job: str, kafka: str = _JVM) -> None:
    def parts(settings: Settings, tools: Tools, home: Home, environ: Mapping[str, str] | None = None) -> list[PartSpec]:
        def spec(name: str, script: str) -> PartSpec:
            ready = home.run / name
            command = ("/bin/sh", "-c", script, name, str(tools.archives_to[name]), str(ready))
            return PartSpec(name, command, {"PATH": "/usr/bin:/bin"}, home.run, home.log(name), ready.exists)

        return [spec("dispatch", job), spec("kafka", kafka)]

    monkeypatch.setattr(engine, "parts", parts)


def archives(tools: Tools, cache: Path) -> dict[str, Path]:
    return {part: made for part in engine.JVMS if (made := engine.class_archive(tools, cache, part)) is not None}


def test_times_in_the_log_of_kafka_have_the_whole_offset_of_their_zone(home: Home, tools: Tools) -> None:
    """SimpleDateFormat writes the offset of Asia/Kolkata as +05 for X, as +05:30 for XXX."""
    kafka = next(part for part in engine.parts(engine.effective(settings(home)), tools, home) if part.name == "kafka")
    assert "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX" in kafka.command


def test_class_archives_are_made_once(monkeypatch: pytest.MonkeyPatch, tools: Tools, tmp_path: Path) -> None:
    simulate(monkeypatch, _JVM)
    lines: list[str] = []
    assert class_archive.make(tools, tmp_path, lines.append)
    made = archives(tools, tmp_path)
    assert {each.read_text() for each in made.values()} == {"classes"}
    assert {*(tmp_path / "java").iterdir()} == {*made.values()}, "temporary files are removed"
    assert len(made) == len(engine.JVMS)
    assert class_archive.make(dataclasses.replace(tools, classes=made), tmp_path, lines.append)
    assert "exist" in lines[-1]


def test_archives_are_made_without_the_settings_of_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tools: Tools, tmp_path: Path, busy: int
) -> None:
    """The job that writes the archive would replace the rows of the engine's tables."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arborcast.toml").write_text(
        f'[stack]\nbroker = "external"\n[tables]\npath = "s3://tables"\n[console]\nport = {busy}\n'
    )
    used: list[Settings] = []

    def parts(effective: Settings, *_: object) -> list[PartSpec]:
        used.append(effective)
        raise PortInUse("not started")

    monkeypatch.setattr(engine, "parts", parts)
    class_archive.make(tools, tmp_path / "cache", lambda _line: None)
    ((stack, folder),) = ((each.stack, each.tables.path) for each in used)
    assert stack.broker == "embedded"
    assert Path(folder).is_relative_to(tmp_path / "cache")


def test_unused_archives_are_deleted(monkeypatch: pytest.MonkeyPatch, tools: Tools, tmp_path: Path) -> None:
    simulate(monkeypatch, _JVM)
    (tmp_path / "java").mkdir()
    unused, recent = (tmp_path / "java" / f"classes-{name}-7.jsa" for name in ("a", "b"))
    for each, days in ((unused, 31), (recent, 29)):
        each.write_text("earlier")
        os.utime(each, (0, time.time() - days * 86_400))
    own = engine.class_archive_name(tools, tmp_path, "dispatch", 5)
    own.write_text("known")
    os.utime(own, (0, 0))
    assert engine.class_archive(tools, tmp_path, "dispatch") == own, "which marks it as used"
    assert class_archive.make(dataclasses.replace(tools, java_home=Path("/opt/newer")), tmp_path, lambda _line: None)
    assert {own, recent} < {*(tmp_path / "java").iterdir()}
    assert not unused.exists()


def test_folders_of_killed_runs_are_deleted(monkeypatch: pytest.MonkeyPatch, tools: Tools, tmp_path: Path) -> None:
    simulate(monkeypatch, _JVM)
    left, current = (tmp_path / "java" / f".classes-{name}" for name in ("left", "current"))
    for each, minutes in ((left, 60), (current, 40)):
        (each / "home" / "kafka").mkdir(parents=True)
        os.utime(each, (0, time.time() - minutes * 60))
    assert class_archive.make(tools, tmp_path, lambda _line: None)
    assert (left.exists(), current.exists()) == (False, True)


@pytest.mark.parametrize(
    ("job", "kafka", "why"),
    [
        ("echo no Java here; exit 3", _JVM, "ended with code 3.*no Java here"),
        # Its log is deleted with the folder.
        ("echo no Java here; seq 10; exit 3", _JVM, "no Java here"),
        (_JVM, 'touch "$2"; exec sleep 600', "has not written that of kafka"),
    ],
)
def test_a_failure_to_make_archives_is_reported(
    monkeypatch: pytest.MonkeyPatch, tools: Tools, tmp_path: Path, job: str, kafka: str, why: str
) -> None:
    simulate(monkeypatch, job, kafka)
    lines: list[str] = []

    assert not class_archive.make(tools, tmp_path, lines.append)
    assert re.search(why, lines[-1]), lines
    assert archives(tools, tmp_path).keys() <= {"dispatch"}


@pytest.mark.parametrize(("part", "of_jars"), [("dispatch", "spark_jars"), ("kafka", "broker_jars")])
def test_an_archive_is_used_if_complete_and_of_these_classes(
    tools: Tools, tmp_path: Path, part: str, of_jars: str
) -> None:
    """Java crashes with a truncated archive."""
    place = engine.class_archive_name(tools, tmp_path, part, 4)
    place.parent.mkdir()
    assert not archives(tools, tmp_path)
    place.write_bytes(b"clas")
    assert archives(tools, tmp_path) == {part: place}
    newer_jars: dict[str, Any] = {of_jars: [Path("/jars/newer.jar")]}
    assert not archives(dataclasses.replace(tools, **newer_jars), tmp_path)
    assert not archives(dataclasses.replace(tools, java=dataclasses.replace(tools.java, version="21")), tmp_path)
    place.write_bytes(b"cla")
    assert not archives(tools, tmp_path)
