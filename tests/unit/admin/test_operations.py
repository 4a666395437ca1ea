"""Changes by operators are recorded. The console and the command line have the same functions, or docs/console.md has
the reason."""

from __future__ import annotations

import ast
import getpass
import os
import platform
import pwd
import re
import threading
from pathlib import Path

import pytest

from arborcast.admin import operations
from arborcast.admin.operations import OperationFilter
from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.topics import OPERATIONS_LOG
from arborcast.core.settings import KafkaSettings
from arborcast.engine.embedded.pending_operations import PENDING, append_pending
from arborcast.topic_model.records import operations as records
from arborcast.topic_model.records.operations import (
    OperationBegun,
    OperationEnded,
    Operator,
    RecordedChange,
    change,
    encode,
    pieces_of,
)
from tests.support.console import settings_in
from tests.support.listed_logs import ListedLogs
from tests.support.waiting import TIMEOUT_S
from tests.support.written_operations import WrittenOperations

ROOT = Path(__file__).parents[3]

KAFKA = KafkaSettings()


def test_an_operation_is_recorded_before_and_after_it(written_operations: WrittenOperations) -> None:
    with operations.recorded(KAFKA, "dead-letters purge", [change("all")], Operator("console", "anna")) as said:
        (begun,) = written_operations.records
        said.append("3 deleted")
    assert isinstance(begun, OperationBegun)
    assert (begun.interface, begun.actor, begun.action) == ("console", "anna", "dead-letters purge")
    assert begun.changes == (RecordedChange("all"),)
    with pytest.raises(ValueError, match="no such key"), operations.recorded(KAFKA, "x", []):
        raise ValueError("no such key")
    _, ended, _, failed = written_operations.records
    assert ended == OperationEnded(begun.id, "3 deleted", 1)
    assert isinstance(failed, OperationEnded)
    assert failed.result == "failed: no such key"


def test_an_operation_needs_its_first_record_only(written_operations: WrittenOperations) -> None:
    away = InfrastructureError("Kafka is away")
    with operations.recorded(KAFKA, "x", []):
        written_operations.error = away
    assert len(written_operations.records) == 1
    with pytest.raises(InfrastructureError, match="Kafka is away"), operations.recorded(KAFKA, "x", []):
        pytest.fail("the change was made")


def test_parts_of_all_changes_read_each_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = ListedLogs(monkeypatch)
    logs.scanned(monkeypatch, operations)

    def write(record: OperationBegun | OperationEnded, at_ms: int) -> None:
        logs.write(OPERATIONS_LOG, *encode(record), at_ms)

    def make(number: int, *subjects: str) -> None:
        at_ms = number * 1_000_000
        made = OperationBegun(str(number), at_ms, "console", "anna", "x", tuple(map(RecordedChange, subjects)))
        for each in pieces_of(made):
            write(each, at_ms)
        write(OperationEnded(made.id, f"done {number}", 2), at_ms)

    monkeypatch.setattr(records, "_CHANGES_PER_RECORD", 2)
    for number in range(1, 5):
        if number == 3:
            logs.write(OPERATIONS_LOG, b"damaged", b"\xc1", 3_000_000)
        make(number, *(f"{number}{letter}" for letter in "abc"))
    everything = OperationFilter(since_ms=2_000_000)
    found, place = operations.earlier(KAFKA, everything, 2)
    assert place is not None
    make(5)
    logs.write(OPERATIONS_LOG, b"damaged", b"\xc1")
    assert operations.listed(KAFKA, OperationFilter(), 1)[0][0].result == "done 5", "an operation without changes"
    sizes = [2]
    while place is not None:
        before = place.end
        part, place = operations.earlier(KAFKA, everything, 2, place)
        sizes.append(before - (place.end if place else 3))
        found += part
    assert [each.subject for each in found] == [f"{number}{letter}" for number in (4, 3, 2) for letter in "cba"]
    assert {each.result for each in found} == {"done 2", "done 3", "done 4"}
    assert sum(sizes) == 10


def test_the_user_of_a_command_and_the_one_behind_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "root")
    monkeypatch.setattr(platform, "node", lambda: "host")
    monkeypatch.delenv("SUDO_USER", raising=False)
    assert operations.this_user() == Operator("command", "root@host")
    monkeypatch.setenv("SUDO_USER", "anna")
    assert operations.this_user() == Operator("command", "root@host (sudo of anna)")
    monkeypatch.delenv("SUDO_USER")
    monkeypatch.setattr(getpass, "getuser", lambda: pwd.getpwuid(-2))
    monkeypatch.setattr(os, "getuid", lambda: 10_042)
    assert operations.this_user() == Operator("command", "uid 10042@host"), "the user of a container without a name"


def test_operations_without_a_broker_are_recorded_by_the_next_gateway(tmp_path: Path) -> None:
    settings = settings_in(tmp_path / "home")  # a stopped embedded engine
    for name in ("anna", "bert"):
        with operations.recorded_file(settings, "users add", change(name)):
            assert not (settings.home / PENDING).exists() or name == "bert"
    with pytest.raises(ValueError, match="refused"), operations.recorded_file(settings, "users add", change("carl")):
        raise ValueError("refused")
    file = settings.home / PENDING
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"damaged\n" + file.read_bytes())
    log = WrittenOperations(InfrastructureError("Kafka is away"))
    with pytest.raises(InfrastructureError):
        append_pending(settings.home, log)
    assert file.exists()
    log.error = None
    append_pending(settings.home, log)
    append_pending(settings.home, log)
    assert log.made() == [("users add", ["anna"]), ("users add", ["bert"])]
    assert [each.result for each in log.records if isinstance(each, OperationEnded)] == ["done", "done"]
    assert not file.read_bytes()


def test_a_record_that_a_full_disk_has_cut_off_does_not_damage_the_next_one(tmp_path: Path) -> None:
    settings, log = settings_in(tmp_path / "home"), WrittenOperations()
    for name in ("anna", "bert"):
        with operations.recorded_file(settings, "users add", change(name)):
            pass
        if name == "anna":
            file = settings.home / PENDING
            os.truncate(file, file.stat().st_size - 9)
    append_pending(settings.home, log)
    assert log.made() == [("users add", ["anna"]), ("users add", ["bert"])]


def test_a_record_stored_while_a_gateway_appends_others_stays(tmp_path: Path) -> None:
    settings = settings_in(tmp_path / "home")
    storing: list[threading.Thread] = []

    def store(name: str) -> None:
        with operations.recorded_file(settings, "users add", change(name)):
            pass

    class SlowLog(WrittenOperations):
        def append(self, record: OperationBegun | OperationEnded) -> None:
            if not storing:
                storing.append(threading.Thread(target=store, args=("bert",)))
                storing[0].start()
                storing[0].join(1)  # stored, or waiting for the lock
            super().append(record)

    store("anna")
    log = SlowLog()
    append_pending(settings.home, log)
    storing[0].join(TIMEOUT_S)
    append_pending(settings.home, log)
    assert log.made() == [("users add", ["anna"]), ("users add", ["bert"])]


def calls(node: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


Trees = dict[Path, ast.Module]


@pytest.fixture(scope="module")
def trees() -> Trees:
    """The modules that change something or show it."""
    return {
        file: ast.parse(file.read_text(encoding="utf-8"))
        for package in ("admin", "cli", "console")
        for file in (ROOT / package).rglob("*.py")
    }


def test_every_change_is_inside_a_recorded_function(trees: Trees) -> None:
    """Functions that append to logs, write files of an engine, or move deliveries."""
    writing = (
        *("control_log.append", "ControlLog", "desk.redrive", "desk.purge", "replay.send", "_fill"),
        *("request_attempts", "keyring.remove_key", "_log.commit", "DurableWriter"),
        *("users.add", "users.remove", "keys.new"),  # by commands
    )
    bare = {
        f"{file.stem}.{node.name}"
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and file.name != "control_log.py"
        and any(ast.unparse(call.func).endswith(writing) for call in calls(node))
        and not re.search(r"recorded\(|recorded_file\(|_record,", ast.unparse(node))
    }
    # The caller of `_reseal` records; a process of the console is created with its log.
    assert bare == {"resealing._reseal", "process.__init__"}, "use admin.operations.recorded"


# Modules without questions or actions: connections to the logs, and notations of times and names.
HELPERS = {"control_log", "connection", "documents", "filters", "times"}

# Functions (or whole modules) of admin that only commands call. The list in docs/console.md has the reasons.
ONLY_COMMANDS = {
    *("backup", "bundle", "configuration.example", "configuration.in_force", "data_directory", "doctor"),
    *("cameras.add", "cameras.remove", "cameras.set_paused", "federation.groups"),
    *("keys.new", "keys.new_federation_secret", "keys.read", "operations.recorded_file", "resealing"),
    *("operations.recorded", "triggers.one", "receiver_page.link", "topic_units", "users"),
    # The screen Topics does these on its trees.
    *("topic_documents.import_topics", "topics.add", "topics.move", "topics.remove", "topics.rename"),
    *("topics.listed", "topics.nodes", "topics.one_topic", "topics.with_code"),
}
ONLY_CONSOLE = {
    *("messages.busiest", "messages.last_attempts", "messages.last_messages", "messages.recent", "messages.search"),
    *("receiver_page.linked", "receiver_page.receiver_of", "receiver_page.send_test", "slo.attempts"),
    *("subscriptions.changes", "subscriptions.pull_point", "topic_documents.plan_import", "waiting.counts"),
}

# Functions that one of both calls, and the function with which the other does the same.
COUNTERPARTS = {
    "dead_letters.following": "dead_letters.listed",
    "dead_letters.redrivable": "dead_letters.count",
    "dead_letters.whole": "dead_letters.first_whole",
    "operations.earlier": "operations.listed",
    "subscriptions.all_suspended": "subscriptions.changes",
    "subscriptions.conditions_of": "subscriptions.recipients",
    "subscriptions.expression_of": "subscriptions.listed",
    "subscriptions.end_suspensions": "subscriptions.changes",
    "subscriptions.one": "subscriptions.listed",
    "subscriptions.ordered": "subscriptions.listed",
    "subscriptions.suspended": "subscriptions.changes",
    "dead_letters.first_whole": "dead_letters.whole",
    "replay.run": "replay.plan",
    "waiting.following": "waiting.oldest",
}


def called_by(package: str, trees: Trees) -> set[str]:
    """The names of admin that a package imports, or takes from a module of admin that it imports."""
    found: set[str] = set()
    for tree in (tree for file, tree in trees.items() if ROOT / package in file.parents):
        modules: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "arborcast.admin":
                modules |= {alias.asname or alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("arborcast.admin."):
                found |= {f"{(node.module or '').rpartition('.')[2]}.{alias.name}" for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                found.add(f"{modules[node.value.id]}.{node.attr}")
    return found


def test_functions_that_commands_or_the_console_alone_call_are_listed(trees: Trees) -> None:
    services = {
        f"{file.stem}.{node.name}"
        for file, tree in trees.items()
        for node in tree.body
        if ROOT / "admin" in file.parents
        and isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and file.stem not in HELPERS
    }
    by_commands, by_console = called_by("cli", trees), called_by("console", trees)
    for listed, only in ((ONLY_COMMANDS, by_commands - by_console), (ONLY_CONSOLE, by_console - by_commands)):
        found = {each if each in listed else each.partition(".")[0] for each in only & services - COUNTERPARTS.keys()}
        assert found == listed, "add it to the console or the command line, or a reason to docs/console.md, and here"
    assert COUNTERPARTS.keys() <= by_commands ^ by_console
    assert {*COUNTERPARTS.values()} <= services
