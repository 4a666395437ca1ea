"""Help texts, shared options, modules that commands load, and printed settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from arborcast.cli import app
from tests.support.command import Engine
from tests.support.table_rows import attempt, record


def _commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All visible commands and groups, with their names."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _commands(below, f"{path} {name}".strip())


COMMANDS = dict(_commands(typer.main.get_command(app)))


def test_help_texts_are_printed_unchanged() -> None:
    """The formatter replaces `:b:` by an emoji and takes `[x]` as a style."""
    assert {"subscribe", "topics export", "top"} <= COMMANDS.keys()
    for name, command in COMMANDS.items():
        for each in (command, *command.params):
            text = getattr(each, "help", None) or ""
            assert Text.from_markup(text).plain == text, (name, each.name)


def test_bash_completes_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for line, words in (
        ("arborcast subs", {"subscribe", "subscriptions"}),
        ("arborcast dead-letters l", {"list"}),
        ("arborcast status --js", {"--json"}),
    ):
        env = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_ARBORCAST_COMPLETE": "complete_bash"}
        assert set(CliRunner().invoke(app, [], prog_name="arborcast", env=env).output.split()) == words
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")  # for any parent of the tests
    assert "complete -o default -F" in CliRunner().invoke(app, ["--show-completion"]).output


SPARK = {"deltalake", "numpy", "pandas", "pyarrow", "pyspark"}

NETWORK = {"kafka", "lxml", "pycurl", "requests", "ssl", "uvloop"}


@pytest.mark.parametrize(
    ("command", "heavy", "most"),
    [
        ("status", SPARK | NETWORK, 77),
        ("keys list", SPARK | NETWORK | {"psutil"}, 71),
        ("trace n1", SPARK - {"deltalake"} | NETWORK - {"kafka", "lxml", "ssl"}, 173),
        ("publish a -", SPARK | {"kafka", "pycurl", "requests", "urllib3", "uvloop"}, 132),
    ],
)
def test_a_command_loads_few_modules(command: str, heavy: set[str], most: int, tmp_path: Path) -> None:
    """At the top of modules and in functions. For Arborcast's modules their number: each takes a millisecond."""
    code = (
        "import sys\nfrom arborcast.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sum(each.startswith('arborcast') for each in sys.modules))\n"
        f"print('loaded:', *sorted({heavy!r} & sys.modules.keys()))"
    )
    if command.startswith("trace"):
        record(tmp_path, attempt("n1", "good", "delivered", 40))
    env = {**os.environ, "ARBORCAST_HOME": str(tmp_path), "ARBORCAST_GATEWAY_PORT": "9"}
    words = [sys.executable, "-c", code, *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL, env=env)
    assert ("attempt 1" in done.stdout) == command.startswith("trace")
    *_, count, loaded = done.stdout.splitlines()
    assert loaded.split() == ["loaded:"]
    assert int(count) <= most


def test_ctrl_c_while_modules_are_loaded_prints_no_stack_trace(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    words = [sys.executable, "-c", "from arborcast.cli import main; main()"]
    ended = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_settings_and_status_without_an_engine(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "home")
    file = tmp_path / "arborcast.toml"
    file.write_text('[kafka]\nsasl_password = "hunter2"\n')
    words = ("config", "show", "--config", str(file), "--json")
    shown = json.loads(engine.run_here(*words, env={"ARBORCAST_GATEWAY_PORT": "1234"}).stdout)
    assert shown["gateway.port"] == {"value": 1234, "origin": "$ARBORCAST_GATEWAY_PORT"}
    assert shown["kafka.sasl_password"] == {"value": "********", "origin": str(file)}
    assert shown["home"] == {"value": str(engine.home), "origin": "$ARBORCAST_HOME"}
    schema = json.loads(engine.run_here("config", "schema").stdout)
    assert schema["$defs"]["kafka"]["properties"]["partitions"]["maximum"] == 10_000
    text = engine.run_here("config", "spark", "--master", "local[2,4]").stdout
    properties = dict(line.split(" ", 1) for line in text.splitlines())
    assert properties["spark.master"] == "local[2,4]"
    assert "delta-spark" in properties["spark.jars"]
    status = engine.run_here("status", "--json", check=False)
    assert (status.returncode, json.loads(status.stdout)["running"]) == (3, False)
    assert engine.run_here("down").returncode == 0
