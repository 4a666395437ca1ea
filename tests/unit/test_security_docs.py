"""The pages about security say what is there: each setting, command and test that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from jobs.cli import app
from jobs.settings import SECTIONS, declarations

ROOT = Path(__file__).parents[2]
PAGES = ("docs/security.md", "docs/threat-model.md", "SECURITY.md")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_settings(page: str) -> None:
    known = {each.key for each in declarations()}
    text = text_of(page)
    named = set(re.findall(rf"`({'|'.join(SECTIONS)})\.([a-z0-9_]+)[` ]", text))
    assert len(named) >= 3
    assert {f"{section}.{name}" for section, name in named} <= known
    # In the examples, below the name of their section.
    for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
        section = ""
        for line in block.splitlines():
            if header := re.fullmatch(r"\[([a-z_]+)\]", line.strip()):
                section = header[1]
            elif section in SECTIONS and (assigned := re.match(r"([a-z0-9_]+) *=", line)):
                assert f"{section}.{assigned[1]}" in known


@pytest.mark.parametrize("page", PAGES)
def test_tests_and_files(page: str) -> None:
    there = {str(file.relative_to(ROOT)) for folder in ("tests", "docs") for file in (ROOT / folder).rglob("*.*")}
    for named in re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|md))`", text_of(page)):
        assert any(file.endswith(f"/{named}") or file == named for file in there), named


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_options(page: str) -> None:
    found = re.findall(r"(?:`|^)arborcast ((?:[a-z-]+ ?)+)((?:.*?--[a-z-]+)*)", text_of(page), re.MULTILINE)
    assert found
    for words, rest in found:
        command = get_command(app)
        for word in words.split():
            known = getattr(command, "commands", None)
            if known is None:
                break
            assert word in known, f"arborcast {words}"
            command = known[word]
        options = {option for parameter in command.params for option in parameter.opts}
        for option in re.findall(r"--[a-z-]+", rest.partition("`")[0].partition("#")[0]):
            assert option in options, f"arborcast {words} {option}"
