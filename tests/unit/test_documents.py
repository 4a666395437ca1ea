"""References in the documents exist: files, sections, settings, tests, modules, make targets, commands and options."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from typer.main import get_command

from arborcast.cli import app
from arborcast.cli.reference import PAGES, error_classes
from arborcast.dispatch.logs.attempts import ErrorClass
from arborcast.engine.settings.loading import SECTIONS, declarations
from tests.support.wheels import PACKAGES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

# Files of the data directory with names like settings.
FILES = {"dispatch.log", "gateway.log", "secrets.keys", "topics.ldif"}

FOLDERS = ("tests", "benchmarks", "docs", *PACKAGES)
made_command = cache(get_command)

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)


@cache
def files_there() -> set[str]:
    found = {str(file.relative_to(ROOT)) for folder in FOLDERS for file in (ROOT / folder).rglob("*.*")}
    return found | {file.name for file in ROOT.glob("*.*")}


@cache
def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def code_in(document: Path) -> Iterator[str]:
    """Each line of a block of code, and each span."""
    pieces = re.split(r"^```.*$", text_of(document), flags=re.MULTILINE)
    for block in pieces[1::2]:
        yield from block.splitlines()
    for prose in pieces[::2]:
        yield from re.findall(r"`([^`\n]+)`", prose)


def anchors_of(document: Path) -> set[str]:
    """The anchors of its headings, by GitHub's rules."""
    headings = re.findall(r"^#+ (.*)$", text_of(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@every_document
def test_links(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(document)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), f"no file {name}"
        assert not anchor or anchor in anchors_of(target), f"{target.name} has no section {anchor}"


@every_document
def test_settings(document: Path) -> None:
    known = {each.key for each in declarations()}
    named = set(re.findall(rf"`({'|'.join(SECTIONS)})\.([a-z0-9_]+)[` ]", text_of(document)))
    assert {f"{section}.{name}" for section, name in named} <= known | FILES
    # In the examples, below the name of their section.
    for block in re.findall(r"```toml\n(.*?)```", text_of(document), re.DOTALL):
        section = ""
        for line in block.splitlines():
            if header := re.fullmatch(r"\[([a-z_]+)\]", line.strip()):
                section = header[1]
            elif section in SECTIONS and (assigned := re.match(r"([a-z0-9_]+) *=", line)):
                assert f"{section}.{assigned[1]}" in known


@every_document
def test_tests_and_files(document: Path) -> None:
    for named in re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|md))`", text_of(document)):
        assert any(file.endswith(f"/{named}") or file == named for file in files_there()), named
    # Folders, files of other kinds and those in commands: from the top of the tree, or from the folder of its tests.
    tops = "|".join((*FOLDERS, "deploy", "src", "notebooks", "client"))
    for line in code_in(document):
        for path in re.findall(rf"(?<![\w./:$-])(?:{tops})/[\w./*-]*", line):
            named = path.rstrip("./")
            assert any(ROOT.glob(named)) or any(file.endswith(f"/{named}") for file in files_there()), path


@every_document
def test_modules(document: Path) -> None:
    ours = rf"(?:(?:tests|benchmarks)\.\w+|arborcast\.(?:{'|'.join(PACKAGES)}))(?:\.\w+)*"
    for before, module in re.findall(rf"(-m\s|`)({ours})(?![\w.])", text_of(document)):
        path = ROOT.joinpath(*module.removeprefix("arborcast.").split("."))
        package = path / ("__init__.py" if before == "`" else "__main__.py")
        assert path.with_suffix(".py").exists() or package.exists(), module
    for module, names in re.findall(r"^from (arborcast\S*) import ([\w, ]+)", text_of(document), re.MULTILINE):
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name.split(" as ")[0]), f"{module}.{name}"


@every_document
def test_targets_of_make(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    assert {found[1] for line in code_in(document) if (found := re.match(r"\s*make ([a-z-]+)", line))} <= targets


@every_document
def test_commands_and_their_options(document: Path) -> None:
    found = re.findall(r"(?:`|^)arborcast ((?:[a-z][a-z-]* ?)*)((?:.*?--[a-z-]+)*)", text_of(document), re.MULTILINE)
    for words, rest in found:
        command = made_command(app)
        for word in words.split():
            known = getattr(command, "commands", None)
            if known is None:
                break
            assert word in known, f"arborcast {words}"
            command = known[word]
        options = {"--help"} | {option for parameter in command.params for option in parameter.opts}
        for option in re.findall(r"--[a-z-]+", rest.partition("`")[0].partition("#")[0]):
            assert option in options, f"arborcast {words} {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_generated_page_is_that_of_the_code(page: Path) -> None:
    assert text_of(page) == PAGES[page](), "run `make docs`"


def test_every_class_of_error_is_explained() -> None:
    assert {"", *error_classes()} == set(get_args(ErrorClass))


def test_the_regular_expressions_of_these_tests_match() -> None:
    security, contributing = ROOT / "docs" / "security.md", ROOT / "CONTRIBUTING.md"
    assert len(re.findall(rf"`(?:{'|'.join(SECTIONS)})\.[a-z0-9_]+[` ]", text_of(security))) >= 3
    assert any(line.startswith("arborcast ") for line in code_in(security))
    assert any(line.startswith("make ") for line in code_in(contributing))
    assert "the-house" in anchors_of(contributing)
