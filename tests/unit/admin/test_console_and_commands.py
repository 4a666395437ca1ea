"""What an operator can do on the command line he can do in the console, and the other way round, or docs/console.md
says why not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Not questions or actions, but the ways to the logs, and times and names as people write them.
HELPERS = {"control_log", "connection", "documents", "filters", "moments", "times"}

# Functions (or whole modules) of admin that only commands call, by the words of the list that says why.
ONLY_COMMANDS = {
    "`arborcast backup`, `restore`": ("backup", "data_directory"),
    "`bundle`": ("bundle",),
    "`arborcast cameras add`, `remove`, `pause`, `resume`": (
        *("cameras.add", "cameras.pause", "cameras.resume", "cameras.remove"),
    ),
    "`init`": ("configuration.example",),
    "`arborcast config`": ("configuration.in_force",),
    "`arborcast doctor`": ("doctor",),
    "`arborcast federation topology`": ("federation.groups",),
    "`federation key`": ("keys.new_federation_secret",),
    "`arborcast keys`": ("keys.key_file", "keys.new", "keys.read", "operations.recorded_file", "resealing"),
    "`triggers add`": ("operations.recorded", "triggers.one"),
    "`arborcast subscriptions link`": ("receiver_page.link",),
    "`arborcast topics import --from-ldap`": ("topic_units",),
    "`users`, `access check`": ("users",),
    # The screen Topics does these on the trees that it holds.
    "each command of `arborcast topics` changes the log at once": (
        *("topic_documents.import_topics", "topics.add", "topics.move", "topics.remove", "topics.rename"),
    ),
    "the trees that it shows": ("topics.listed", "topics.nodes", "topics.one_topic", "topics.with_code"),
}

# Functions that only the console calls.
ONLY_CONSOLE = {
    "*busiest topics*": ("messages.busiest",),
    "*Last attempts*": ("messages.last_attempts",),
    "*Recent messages*": ("messages.last_messages",),
    "*Recent notifications*": ("messages.recent",),
    "*Messages*": ("messages.search",),
    "[page of a receiver]": ("receiver_page.receiver_of", "receiver_page.linked", "receiver_page.send_test"),
    "*Attempts by hour*": ("slo.attempts",),
    "*Pause*": ("subscriptions.changes",),
    "messages in a pull point": ("subscriptions.pull_point",),
    "*Pending* and *Dead letters* of each subscription": ("waiting.counts",),
    "changes that are staged and saved together": ("topic_documents.plan_import",),
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
    ("reasons", "only"),
    [(ONLY_COMMANDS, BY_COMMANDS - BY_CONSOLE), (ONLY_CONSOLE, BY_CONSOLE - BY_COMMANDS)],
    ids=["commands", "console"],
)
def test_a_function_of_one_alone_has_a_reason_in_the_documents(
    reasons: dict[str, tuple[str, ...]], only: set[str]
) -> None:
    named = {each for functions in reasons.values() for each in functions}
    only &= SERVICES
    missing = {each for each in only - COUNTERPARTS.keys() if not {each, each.partition(".")[0]} & named}
    assert not missing, "add it to the console or the command line, or a reason in docs/console.md"
    assert named <= only | {each.partition(".")[0] for each in only}, "listed, although both have it"
    page = (ROOT / "docs" / "console.md").read_text(encoding="utf-8")
    section = " ".join(page.partition("\n## Console and command line\n")[2].split())
    for words in reasons:
        assert words in section, words
    assert all(re.search(r"\w", row.rsplit("|", 2)[1]) for row in page.splitlines() if row.startswith("| `arborcast"))


def test_counterparts_exist() -> None:
    assert COUNTERPARTS.keys() <= BY_COMMANDS ^ BY_CONSOLE
    assert {*COUNTERPARTS.values()} <= SERVICES
