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

import pytest

from arborcast.core.errors import ConfigError
from arborcast.engine.embedded import engine
from arborcast.engine.embedded.engine import Tools
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.parts import PartSpec
from arborcast.engine.install import class_archive
from arborcast.engine.install.java import JavaRuntime
from arborcast.engine.processes.errors import PortInUse
from arborcast.engine.settings.loading import Settings, load_settings
from tests.support.held_port import HeldPort


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "data")
    home.create()
    return home


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
    chosen = engine.effective(given)
    assert chosen.kafka.bootstrap_servers == "kafka.example:9092"
    assert parts(chosen) == {"dispatch", "gateway"}
    assert not {"kafka", "console"} & engine.questions_of(chosen, home).keys()
    assert "console" not in engine.addresses(chosen)
    # The job's port for metrics belongs to the job: it may run already.
    chosen = engine.effective(settings(home, stack__job="external", metrics__job_port=busy))
    assert parts(chosen) == engine.questions_of(chosen, home).keys() == {"kafka", "gateway", "console"}
    assert set(engine.metrics_urls(chosen)) == {"gateway", "dispatch"}
    nowhere = engine.effective(settings(home, stack__job="external"))
    assert set(engine.metrics_urls(nowhere)) == {"gateway"}


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
    engine.write_settings(chosen, home)
    assert stat.S_IMODE(home.settings_file.stat().st_mode) == 0o600
    assert load_settings(home.settings_file, environ={}) == chosen


def test_the_commands_of_parts_and_the_order_of_their_stop(home: Home, tools: Tools) -> None:
    tools = dataclasses.replace(tools, classes=Path("/cache/classes.jsa"))
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
    assert "-XX:SharedArchiveFile=/cache/classes.jsa" in text
    assert "spark.driver.extraClassPath /jars/connector.jar\n" in text


# Writes the archive at SIGTERM, as Java does.
_JOB = """
trap 'printf classes > "$1"; exit 0' TERM
touch "$2"
while :; do sleep 0.05; done
"""


def played(monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    def parts(settings: Settings, tools: Tools, home: Home, environ: Mapping[str, str] | None = None) -> list[PartSpec]:
        def spec(name: str, script: str) -> PartSpec:
            ready = home.run / name
            command = ("/bin/sh", "-c", script, name, str(tools.archive_to), str(ready))
            return PartSpec(name, command, {"PATH": "/usr/bin:/bin"}, home.run, home.log(name), ready.exists)

        return [spec("dispatch", job), spec("kafka", 'touch "$2"; exec sleep 600')]

    monkeypatch.setattr(engine, "parts", parts)


def test_a_class_archive_is_made_once_and_found_by_its_inputs(
    monkeypatch: pytest.MonkeyPatch, tools: Tools, tmp_path: Path
) -> None:
    played(monkeypatch, _JOB)
    said: list[str] = []
    assert class_archive.make(tools, tmp_path, said.append)
    made = engine.class_archive(tools, tmp_path)
    assert made is not None
    assert made.read_text() == "classes"
    assert list(made.parent.iterdir()) == [made], "no other file is left"
    assert class_archive.make(dataclasses.replace(tools, classes=made), tmp_path, said.append)
    assert "there" in said[-1]


def test_archives_of_earlier_versions_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch, tools: Tools, tmp_path: Path
) -> None:
    played(monkeypatch, _JOB)
    (tmp_path / "java").mkdir()
    unused, recent = (tmp_path / "java" / f"classes-{name}-7.jsa" for name in ("a", "b"))
    for each, days in ((unused, 31), (recent, 29)):
        each.write_text("earlier")
        os.utime(each, (0, time.time() - days * 86_400))
    own = engine.class_archive_name(tools, tmp_path, 5)
    own.write_text("known")
    os.utime(own, (0, 0))
    assert engine.class_archive(tools, tmp_path) == own, "it is marked as used"
    newer = dataclasses.replace(tools, java_home=Path("/opt/newer"))
    assert class_archive.make(newer, tmp_path, lambda _line: None)
    assert {own, recent} < {*(tmp_path / "java").iterdir()}
    assert not unused.exists()


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ("echo no Java here; exit 3", "ended with code 3.*no Java here"),
        ('touch "$2"; exec sleep 600', "has not written it"),
    ],
)
def test_a_missing_class_archive_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tools: Tools, tmp_path: Path, job: str, why: str
) -> None:
    played(monkeypatch, job)
    said: list[str] = []

    assert not class_archive.make(tools, tmp_path, said.append)
    assert re.search(why, said[-1]), said
    assert engine.class_archive(tools, tmp_path) is None
    assert list((tmp_path / "java").iterdir()) == []


def test_a_complete_archive_of_these_classes_is_used(tools: Tools, tmp_path: Path) -> None:
    """Java crashes if the file is shorter than its header declares."""
    place = engine.class_archive_name(tools, tmp_path, 4)
    place.parent.mkdir()
    assert engine.class_archive(tools, tmp_path) is None
    place.write_bytes(b"clas")
    assert engine.class_archive(tools, tmp_path) == place
    assert engine.class_archive(dataclasses.replace(tools, spark_jars=[Path("/jars/newer.jar")]), tmp_path) is None
    newer = dataclasses.replace(tools.java, version="21")
    assert engine.class_archive(dataclasses.replace(tools, java=newer), tmp_path) is None
    place.write_bytes(b"cla")
    assert engine.class_archive(tools, tmp_path) is None
