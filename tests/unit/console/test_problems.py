"""Problems of the directory, as a page and as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arborcast.cli import app
from arborcast.directory.entries.mapping import EntryProblem, ProblemKind
from arborcast.directory.sync.problems import FILE, SyncProblems, save_problems
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, console_parts

EVIL = "<img src=x onerror=alert(1)>\u202e"

ROUTING = EntryProblem(
    ProblemKind.BAD_VALUE,
    "topicName=press,ou=topics",
    "topicRoutingPolicy is ignored: unknown routing word 'fast'",
    TopicPath("plant/press"),
)


def listed(home: Path, *found: EntryProblem) -> None:
    save_problems(home / FILE, SyncProblems().now("ldap://u:secret@host/ou=topics", found, 1_767_262_800_000))


def test_a_problem_says_what_and_since_when_and_what_to_do(tmp_path: Path) -> None:
    listed(tmp_path, ROUTING)
    browser = Browser(console_parts(tmp_path).app)
    assert browser.get("/topics/problems").status_code == 200
    for words in (ROUTING.dn, "unknown routing word", "Correct the attribute", "Since 202", "bad value"):
        assert words in browser.text
    assert browser.page.xpath("//dd/a/@href") == ["/topics?at=plant/press"]


def test_the_page_is_bounded_and_what_strangers_wrote_does_nothing(tmp_path: Path) -> None:
    many = [EntryProblem(ProblemKind.FOREIGN, f"cn={number},{EVIL}", EVIL) for number in range(3_000)]
    listed(tmp_path, *many)
    browser = Browser(console_parts(tmp_path).app)
    main = browser.get("/topics/problems").text.partition("<main")[2]
    assert "<img" not in main
    assert "\u202e" not in main
    assert "secret" not in main
    assert "And 2,800 more: arborcast topics problems names the first 1,000" in browser.text
    assert len(main) < 300_000


@pytest.mark.parametrize(
    ("kind", "words"), [("none", "in the control log alone"), ("file", "Directory and topics are in sync")]
)
def test_without_problems_it_says_why(tmp_path: Path, kind: str, words: str) -> None:
    browser = Browser(console_parts(tmp_path, settings={"directory__kind": kind}).app)
    browser.get("/topics/problems")
    assert words in browser.text


def test_the_command_says_the_same(tmp_path: Path) -> None:
    runner = CliRunner()
    said = runner.invoke(app, ["topics", "problems", "--home", str(tmp_path)])
    assert said.exit_code == 0
    assert "are the same" in said.output
    listed(tmp_path, ROUTING)
    said = runner.invoke(app, ["topics", "problems", "--home", str(tmp_path)])
    assert "Correct the attribute" in said.output
    document = json.loads(runner.invoke(app, ["topics", "problems", "--json", "--home", str(tmp_path)]).output)
    assert document["count"] == 1
    assert document["problems"][0]["topic"] == "plant/press"
