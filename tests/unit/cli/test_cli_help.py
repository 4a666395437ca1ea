"""What the commands' help texts look like to those who read them."""

from __future__ import annotations

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


def _texts(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every help text of a command and of those below it, with where it stands."""
    yield path, command.help or ""
    for parameter in command.params:
        yield f"{path} {parameter.name}", getattr(parameter, "help", None) or ""
    for name, below in getattr(command, "commands", {}).items():
        yield from _texts(below, f"{path} {name}")


def test_help_is_shown_as_it_is_written() -> None:
    """The formatter takes `:b:` for the name of an emoji and `[x]` for a style."""
    texts = dict(_texts(typer.main.get_command(app), "arborcast"))
    assert {"arborcast subscribe topic", "arborcast topics export", "arborcast top"} <= texts.keys()
    assert {where for where, text in texts.items() if Text.from_markup(text).plain != text} == set()


# They change something and have nothing to say, or what they print is a document already.
NO_JSON = {"down", "fetch", "init", "unsubscribe", "config schema", "config spark", "topics export"}
NO_JSON |= {"cameras add", "cameras pause", "cameras remove", "cameras resume"}
NO_JSON |= {
    "waiting probe",
    "triggers remove",
    "users add",
    "users remove",
    "keys new",
    "keys remove",
    "federation key",
}


def _commands(command: Any, path: str = "") -> Iterator[tuple[str, set[str]]]:
    """Every command that people can call, and its parameters."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, {parameter.name for parameter in command.params}
    for name, each in (below or {}).items():
        if not each.hidden:
            yield from _commands(each, f"{path} {name}".strip())


def test_what_lists_or_reports_something_does_so_in_json_too() -> None:
    commands = dict(_commands(typer.main.get_command(app)))
    assert {name for name, parameters in commands.items() if "json" not in parameters} == NO_JSON


def test_bash_completes_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(line: str) -> set[str]:
        """What bash is told when Tab is pressed at the end."""
        words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_ARBORCAST_COMPLETE": "complete_bash"}
        return set(CliRunner().invoke(app, [], prog_name="arborcast", env=words).output.split())

    assert completed("arborcast subs") == {"subscribe", "subscriptions"}
    assert completed("arborcast dead-letters l") == {"list"}
    assert completed("arborcast status --js") == {"--json"}
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")  # whatever the tests are run from
    assert "complete -o default -F" in CliRunner().invoke(app, ["--show-completion"]).output


SPARK = {"deltalake", "numpy", "pandas", "pyarrow", "pyspark"}


NETWORK = {"kafka", "lxml", "pycurl", "requests", "ssl", "uvloop"}


@pytest.mark.parametrize(
    ("command", "heavy", "most"),
    [
        ("--help", SPARK | NETWORK | {"psutil"}, 42),
        ("status", SPARK | NETWORK, 77),
        ("keys list", SPARK | NETWORK | {"psutil"}, 71),
        ("trace n1", SPARK - {"deltalake"} | NETWORK - {"kafka", "lxml", "ssl"}, 170),
        ("publish a -", SPARK | {"kafka", "pycurl", "requests", "urllib3", "uvloop"}, 132),
    ],
)
def test_a_command_loads_nothing_that_it_does_not_need(
    command: str, heavy: set[str], most: int, tmp_path: Path
) -> None:
    """All that it has loaded when it is done: what is imported at the top, and what a function imports. Of our modules
    their number: each takes a millisecond."""
    code = (
        "import sys\nfrom arborcast.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sum(each.startswith('arborcast') for each in sys.modules))\n"
        f"print('loaded:', *sorted({heavy!r} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command.split()],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "ARBORCAST_HOME": str(tmp_path), "ARBORCAST_GATEWAY_PORT": "9"},
    )
    *_, count, loaded = done.stdout.splitlines()
    assert loaded.split() == ["loaded:"]
    assert int(count) <= most
