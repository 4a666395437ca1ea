"""What `arborcast init` writes is read, with and without each #."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arborcast.admin import configuration
from arborcast.cli import app
from arborcast.engine.settings.loading import SECTIONS, declarations, load_settings

TEXT = configuration.example()
COMMENTED = re.findall(r"^#([a-z0-9_]+ = .*)$", TEXT, re.MULTILINE)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # where the data directory is by default
    return tmp_path / "arborcast.toml"


def test_as_it_is_it_changes_nothing(file: Path) -> None:
    file.write_text(TEXT, encoding="utf-8")

    assert load_settings(file, environ={}) == load_settings(environ={})


def test_each_line_may_be_uncommented(file: Path) -> None:
    usual = load_settings(environ={})
    for line in COMMENTED:
        changed = TEXT.replace(f"\n#{line}\n", f"\n{line}\n")
        assert changed != TEXT
        file.write_text(changed, encoding="utf-8")
        assert load_settings(file, environ={}) == usual, line


def test_all_of_them_too(file: Path) -> None:
    file.write_text(re.sub(r"^#([a-z0-9_]+ = )", r"\1", TEXT, flags=re.MULTILINE), encoding="utf-8")

    assert load_settings(file, environ={}) == load_settings(environ={})


def test_every_section_is_there_and_every_setting_has_a_sentence() -> None:
    assert re.findall(r"^\[(.*)\]$", TEXT, re.MULTILINE) == list(SECTIONS)
    for line in COMMENTED:
        above = TEXT.partition(f"\n#{line}\n")[0].splitlines()[-1]
        assert re.match(r"# \S", above), line
    assert all(len(line) <= 120 for line in TEXT.splitlines())


def test_what_is_chosen_is_there() -> None:
    known = {each.key for each in declarations()}
    for section, names in configuration._MOST_USED.items():
        assert {f"{section}.{name}" for name in names} <= known


def test_the_command_overwrites_nothing(file: Path) -> None:
    run = CliRunner()

    assert run.invoke(app, ["init"]).exit_code == 0
    assert file.read_text(encoding="utf-8") == TEXT
    file.write_text("mine", encoding="utf-8")
    again = run.invoke(app, ["init"])
    assert again.exit_code != 0
    assert "--force" in str(again.exception)
    assert file.read_text(encoding="utf-8") == "mine"
    assert run.invoke(app, ["init", "--force"]).exit_code == 0
    assert file.read_text(encoding="utf-8") == TEXT
    assert run.invoke(app, ["init", "--stdout"]).stdout == TEXT
    assert run.invoke(app, ["init", str(file.parent / "nowhere" / "a.toml")]).exit_code != 0
