"""Each listening socket of an engine has a line in docs/security.md with its protection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from arborcast.core.security.signatures import new_secret
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.kafka_broker import remembered_controller_port
from arborcast.engine.settings.loading import Settings, load_settings
from tests.support.command import Engine
from tests.support.held_port import HeldPort
from tests.support.open_sockets import answers_to_stranger, listening

pytestmark = [pytest.mark.stack, pytest.mark.long]

PAGE = Path(__file__).parents[2] / "docs" / "security.md"

NAMES = ("subscribe", "publish", "pipeline", "requests", "tasks", "results")

ELSEWHERE = {"administrator"}
"""Listeners of processes outside of an engine."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """With all optional listeners."""
    ports = {name: HeldPort() for name in (*NAMES, "metrics", "framed", "datagrams")}
    running = Engine(tmp_path / "home")
    for port in ports.values():
        port.for_life_of(running)
    key = tmp_path / "federation.key"
    key.write_text(new_secret() + "\n")
    key.chmod(0o600)
    file = tmp_path / "all.toml"
    file.write_text(
        # Spark's start is slow on a busy machine.
        "[stack]\nstart_timeout_s = 400\n"
        f"[framed]\nport = {ports['framed'].number}\n"
        f'[federation]\nname = "a"\ngroup = "g"\nadministrator = "http://127.0.0.1:9"\nurl = "http://127.0.0.1:9"\n'
        f'key_file = "{key}"\ndatagram_port = {ports["datagrams"].number}\n'
        f'[zmq]\nenabled = true\nmetrics_port = {ports["metrics"].number}\ntasks_topics = "jobs//."\n'
        + "".join(f'{name} = "tcp://127.0.0.1:{ports[name].number}"\n' for name in NAMES)
    )
    try:
        running.up("--config", str(file))
        yield running
    finally:
        running.down()


def names_of(settings: Settings) -> dict[int, str]:
    """Sockets by their ports, where settings or the broker name these."""
    zmq = {int(getattr(settings.zmq, name).rpartition(":")[2]): f"zmq.{name}" for name in NAMES}
    return zmq | {
        settings.gateway.port: "gateway",
        settings.framed.port: "framed",
        settings.federation.datagram_port: "datagrams",
        settings.console.port: "console",
        settings.metrics.port: "metrics",
        settings.metrics.job_port: "job metrics",
        settings.zmq.metrics_port: "zmq metrics",
        settings.stack.kafka_port: "Kafka",
        remembered_controller_port(settings.home / "kafka"): "Kafka controller",
    }


def name_by_answer(process: psutil.Process, port: int) -> str:
    """The service at an unnamed port: Spark or py4j, if it refuses a client without its secret."""
    to_py4j, to_spark = answers_to_stranger(port)
    if b"Authentication error" in to_py4j:
        return "py4j in the JVM"
    if b"Unknown challenge message" in to_spark:
        return "Spark"
    if process.name().startswith("python") and to_py4j == to_spark == b"":
        return "py4j in Python"
    return f"port {port} of {process.cmdline()[:6]}, which answers {to_py4j[:200]!r} and {to_spark[:200]!r}"


def test_each_socket_has_a_line_with_its_protection(engine: Engine) -> None:
    settings = load_settings(Home(engine.home).settings_file, environ={})
    known = names_of(settings)
    found, hosts = set(), set()
    for process, host, port in listening(engine.processes()):
        found.add(known.get(port) or name_by_answer(process, port))
        hosts.add(host)
    section = PAGE.read_text(encoding="utf-8").partition("## Where the engine listens\n")[2].partition("\n## ")[0]
    lines = dict(re.findall(r"^\| ([^|`]+?) \| [^|]+ \| ([^|]+?) \|$", section, re.MULTILINE))
    described = {name for name, guard in lines.items() if guard} - {"socket"}
    assert found - described == set(), "sockets without a line"
    assert described - found == ELSEWHERE, "lines without a socket"
    assert hosts == {"127.0.0.1"}
