"""The command line: what a person gets for a good and for a bad command, without an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import Engine

pytestmark = pytest.mark.slow


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path / "home")


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["upp"], 2, "No such command 'upp'"),
        (["--home", "x", "status"], 2, "--home belongs after the command, for instance: arborcast status --home"),
        (["--config=x", "up"], 2, "--config belongs after the command"),
        (["up", "--detach", "--demo"], 2, "choose one"),
        (["up", "--kafka-port", "x"], 2, "valid integer"),
        (["up", "--kafka-port", "70000"], 2, "stack.kafka_port = 70000"),
        (["publish", "a//.", "-", "--url", "http://127.0.0.1:9"], 2, "selects several topics"),
        (
            ["publish", "a", "-", "--valid-until", "soon", "--url", "http://127.0.0.1:9"],
            2,
            "--valid-until is a time",
        ),
        (["users", "remove", "nope"], 1, "there is no user nope"),
        (["publish", "a", "/nowhere/file.xml"], 1, "/nowhere/file.xml cannot be read"),
        (["publish", "a", "<x/>"], 1, "a file is meant here, or - for standard input"),
        (["publish", "a", "-", "-n", "p"], 2, "a prefix and a URI are needed"),
        (["listen", "a||b", "--url", "http://127.0.0.1:9"], 2, "position"),
        (["unsubscribe", "http://127.0.0.1:9/x"], 1, "no process listens there"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(engine: Engine, arguments: list[str], status: int, told: str) -> None:
    done = engine.run_here(*arguments, input="<x/>", check=False)
    assert done.returncode == status, done.stderr
    assert told in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert not engine.home.exists(), "a refused command leaves nothing behind"


def test_ctrl_c_while_modules_are_loaded_prints_no_stack_trace(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    command = [sys.executable, "-c", "from arborcast.cli import main; main()"]
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (130, "")


def test_config_show_tells_values_and_origins_and_hides_secrets(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "arborcast.toml"
    file.write_text('[kafka]\nsasl_password = "hunter2"\n')
    done = engine.run_here("config", "show", "--config", str(file), "--json", env={"ARBORCAST_GATEWAY_PORT": "1234"})
    document = json.loads(done.stdout)
    assert document["gateway.port"] == {"value": 1234, "origin": "$ARBORCAST_GATEWAY_PORT"}
    assert document["kafka.sasl_password"] == {"value": "********", "origin": str(file)}
    assert document["home"] == {"value": str(engine.home), "origin": "$ARBORCAST_HOME"}
    assert "hunter2" not in done.stdout + engine.run_here("config", "show", "--config", str(file)).stdout


def test_config_schema_is_a_json_schema(engine: Engine) -> None:
    schema = json.loads(engine.run_here("config", "schema").stdout)
    assert schema["$defs"]["kafka"]["properties"]["partitions"]["maximum"] == 10_000


def test_status_of_no_engine_is_not_a_failure_of_the_command(engine: Engine) -> None:
    done = engine.run_here("status", "--json", check=False)
    assert done.returncode == 3
    assert json.loads(done.stdout)["running"] is False
    assert engine.run_here("down").returncode == 0


def test_spark_properties_can_be_printed(engine: Engine) -> None:
    text = engine.run_here("config", "spark", "--master", "local[2,4]").stdout
    properties = dict(line.split(" ", 1) for line in text.splitlines())
    assert properties["spark.master"] == "local[2,4]"
    assert "delta-spark" in properties["spark.jars"]
