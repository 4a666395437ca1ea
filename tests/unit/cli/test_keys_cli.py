"""The key file: made by `up` for itself, by a command for others; what it prints is no key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arborcast.cli import app
from arborcast.core.security.keyring import KeyFile, parse_keys
from arborcast.engine.embedded.home import ensure_keys


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_new_keys_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = run("keys", "new", "--home", "engine")
    run("keys", "new", "--home", "engine", "--id", "second")
    output += run("keys", "list", "--home", "engine")
    first, older = json.loads(run("keys", "list", "--home", "engine", "--json"))
    assert (first, older["seals"]) == ({"id": "second", "seals": True}, False)
    path = tmp_path / "engine" / "secrets.keys"
    keys = parse_keys(path.read_text())
    assert next(iter(keys)) == "second"
    assert len(keys) == 2
    for line in path.read_text().splitlines():
        assert line.split()[1] not in output
    assert KeyFile(path).seal(b"x", "").startswith("second:")


def test_the_embedded_engine_makes_its_own_and_no_other(tmp_path: Path) -> None:
    ensure_keys(str(tmp_path / "elsewhere.keys"), tmp_path)
    assert list(tmp_path.iterdir()) == []
    ensure_keys(str(tmp_path / "secrets.keys"), tmp_path)
    before = (tmp_path / "secrets.keys").read_text()
    ensure_keys(str(tmp_path / "secrets.keys"), tmp_path)
    assert (tmp_path / "secrets.keys").read_text() == before
