"""What an operator can do on the command line he can do in the console, and the other way round, or docs/console.md
says why not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Not questions or actions, but the ways to the logs, and times and names as people write them.
HELPERS = {"control_log", "connection", "documents", "filters", "moments", "times"}

# Functions (or whole modules) of admin that only commands call, with the words of the list that says why.
ONLY_COMMANDS = {
    "backup": "`arborcast backup`, `restore`",
    "bundle": "`bundle`",
    "cameras.add": "`arborcast cameras add`",
    "cameras.pause": "`arborcast cameras add`, `remove`, `pause`",
    "cameras.resume": "`arborcast cameras add`, `remove`, `pause`, `resume`",
    "cameras.remove": "`arborcast cameras add`, `remove`",
    "configuration.example": "`init`",
    "configuration.in_force": "`arborcast config`",
    "data_directory": "`arborcast backup`, `restore`",
    "doctor": "`arborcast doctor`",
    "federation.groups": "`arborcast federation topology`",
    "keys.key_file": "`arborcast keys`",
    "keys.new": "`arborcast keys`",
    "keys.new_federation_secret": "`federation key`",
    "keys.read": "`arborcast keys`",
    "operations.recorded": "`triggers add`",
    "operations.recorded_file": "`arborcast keys`",
    "receiver_page.link": "`arborcast subscriptions link`",
    "resealing": "`arborcast keys`",
    "topic_units": "`arborcast topics import --from-ldap`",
    "triggers.one": "`triggers add`",
    "users": "`users`, `access check`",
    # The screen Topics does these on the trees that it holds.
    "topic_documents.import_topics": "each command of `arborcast topics` changes the log at once",
    "topics.add": "each command of `arborcast topics` changes the log at once",
    "topics.listed": "the trees that it shows",
    "topics.move": "each command of `arborcast topics` changes the log at once",
    "topics.nodes": "the trees that it shows",
    "topics.one_topic": "the trees that it shows",
    "topics.remove": "each command of `arborcast topics` changes the log at once",
    "topics.rename": "each command of `arborcast topics` changes the log at once",
    "topics.with_code": "the trees that it shows",
}

# Functions that only the console calls.
ONLY_CONSOLE = {
    "messages.busiest": "*busiest topics*",
    "messages.last_attempts": "*Last attempts*",
    "messages.last_messages": "*Recent messages*",
    "messages.recent": "*Recent notifications*",
    "messages.search": "*Messages*",
    "receiver_page.receiver_of": "[page of a receiver]",
    "receiver_page.linked": "[page of a receiver]",
    "receiver_page.send_test": "[page of a receiver]",
    "slo.attempts": "*Attempts by hour*",
    "subscriptions.changes": "*Pause*",
    "subscriptions.pull_point": "messages in a pull point",
    "waiting.counts": "*Pending* and *Dead letters* of each subscription",
    "topic_documents.plan_import": "changes that are staged and saved together",
}

# A function that one of both calls, and the function by which the other does the same.
COUNTERPARTS = {
    "dead_letters.following": "dead_letters.listed",
    "dead_letters.redrivable": "dead_letters.count",
    "dead_letters.whole": "dead_letters.first_whole",
    "subscriptions.all_suspended": "subscriptions.changes",
    "subscriptions.conditions_of": "subscriptions.recipients",
    "subscriptions.end_suspensions": "subscriptions.changes",
    "subscriptions.one": "subscriptions.listed",
    "subscriptions.ordered": "subscriptions.listed",
    "subscriptions.suspended": "subscriptions.changes",
    "dead_letters.first_whole": "dead_letters.whole",
    "replay.run": "replay.plan",
    "waiting.following": "waiting.oldest",
}


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def functions() -> Iterator[str]:
    """The public functions of admin, as module.function."""
    for file in sorted((ROOT / "admin").glob("*.py")):
        for node in tree_of(file).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield f"{file.stem}.{node.name}"


def called_by(package: str) -> set[str]:
    """The names of admin that a package imports, or takes from a module of admin that it imports."""
    found: set[str] = set()
    for file in (ROOT / package).rglob("*.py"):
        modules: dict[str, str] = {}
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ImportFrom) and node.module == "arborcast.admin":
                modules |= {alias.asname or alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("arborcast.admin."):
                found |= {f"{(node.module or '').rpartition('.')[2]}.{alias.name}" for alias in node.names}
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                found.add(f"{modules[node.value.id]}.{node.attr}")
    return found


SERVICES = [each for each in functions() if each.partition(".")[0] not in HELPERS]
BY_COMMANDS, BY_CONSOLE = called_by("cli"), called_by("console")


def listed(named: dict[str, str], function: str) -> str | None:
    """The words for a function, or for its module."""
    return named.get(function) or named.get(function.partition(".")[0])


@pytest.mark.parametrize("function", SERVICES)
def test_it_is_there_in_both_or_the_list_says_why_not(function: str) -> None:
    by_commands, by_console = function in BY_COMMANDS, function in BY_CONSOLE
    if by_commands != by_console and function not in COUNTERPARTS:
        named, where = (ONLY_COMMANDS, "console") if by_commands else (ONLY_CONSOLE, "command line")
        words = listed(named, function)
        assert words, f"admin.{function} is not in the {where}: add it, or a reason in docs/console.md"


def test_nothing_is_listed_that_is_there_in_both() -> None:
    only_commands = {each for each in SERVICES if each in BY_COMMANDS - BY_CONSOLE}
    only_console = {each for each in SERVICES if each in BY_CONSOLE - BY_COMMANDS}
    for named, only in ((ONLY_COMMANDS, only_commands), (ONLY_CONSOLE, only_console)):
        for each in named:
            assert any(each in (name, name.partition(".")[0]) for name in only), each
    for one, other in COUNTERPARTS.items():
        assert one in only_commands | only_console
        assert other in SERVICES


def test_the_list_has_every_reason() -> None:
    page = (ROOT / "docs" / "console.md").read_text(encoding="utf-8")
    section = " ".join(page.partition("\n## Console and command line\n")[2].split())
    for words in {**ONLY_COMMANDS, **ONLY_CONSOLE}.values():
        assert words in section, words
    # A row without a reason is none.
    assert all(re.search(r"\w", row.rsplit("|", 2)[1]) for row in page.splitlines() if row.startswith("| `arborcast"))
