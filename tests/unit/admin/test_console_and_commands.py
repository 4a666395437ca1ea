"""What an operator can do on the command line he can do in the console, and the other way round, or docs/console.md
says why not."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Not questions or actions, but the ways to the logs, and times and names as people write them.
HELPERS = {"control_log", "connection", "documents", "filters", "moments", "times"}

# Functions (or whole modules) of admin that only commands call. docs/console.md has the reason of each, in its list.
ONLY_COMMANDS = {
    *("backup", "bundle", "configuration.example", "configuration.in_force", "data_directory", "doctor"),
    *("cameras.add", "cameras.pause", "cameras.remove", "cameras.resume", "federation.groups"),
    *("keys.key_file", "keys.new", "keys.new_federation_secret", "keys.read", "operations.recorded_file", "resealing"),
    *("operations.recorded", "triggers.one", "receiver_page.link", "topic_units", "users"),
    # The screen Topics does these on the trees that it has.
    *("topic_documents.import_topics", "topics.add", "topics.move", "topics.remove", "topics.rename"),
    *("topics.listed", "topics.nodes", "topics.one_topic", "topics.with_code"),
}
ONLY_CONSOLE = {
    *("messages.busiest", "messages.last_attempts", "messages.last_messages", "messages.recent", "messages.search"),
    *("receiver_page.linked", "receiver_page.receiver_of", "receiver_page.send_test", "slo.attempts"),
    *("subscriptions.changes", "subscriptions.pull_point", "topic_documents.plan_import", "waiting.counts"),
}

# A function that one of both calls, and the function by which the other does the same.
COUNTERPARTS = {
    "dead_letters.following": "dead_letters.listed",
    "dead_letters.redrivable": "dead_letters.count",
    "dead_letters.whole": "dead_letters.first_whole",
    "operations.earlier": "operations.listed",
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


def called_by(package: str) -> set[str]:
    """The names of admin that a package imports, or takes from a module of admin that it imports."""
    found: set[str] = set()
    for file in (ROOT / package).rglob("*.py"):
        if "arborcast.admin" not in file.read_text(encoding="utf-8"):
            continue
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


# The public functions of admin, as module.function.
SERVICES = {
    f"{file.stem}.{node.name}"
    for file in (ROOT / "admin").glob("*.py")
    for node in tree_of(file).body
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and file.stem not in HELPERS
}
BY_COMMANDS, BY_CONSOLE = called_by("cli"), called_by("console")


@pytest.mark.parametrize(
    ("listed", "only"),
    [(ONLY_COMMANDS, BY_COMMANDS - BY_CONSOLE), (ONLY_CONSOLE, BY_CONSOLE - BY_COMMANDS)],
    ids=["commands", "console"],
)
def test_a_function_of_one_alone_is_listed(listed: set[str], only: set[str]) -> None:
    only = {each if each in listed else each.partition(".")[0] for each in only & SERVICES - COUNTERPARTS.keys()}
    assert only == listed, "add it to the console or the command line, or a reason to docs/console.md, and here"


def test_counterparts_exist() -> None:
    assert COUNTERPARTS.keys() <= BY_COMMANDS ^ BY_CONSOLE
    assert {*COUNTERPARTS.values()} <= SERVICES
