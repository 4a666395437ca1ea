"""What operators change is recorded; and each change there is has a record."""

from __future__ import annotations

import ast
import getpass
import os
import platform
import pwd
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from arborcast.admin import operations
from arborcast.admin.operations import OperationFilter
from arborcast.cli import app
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
from tests.support.console import console_parts, settings_in
from tests.support.listed_logs import ListedLogs
from tests.support.waiting import TIMEOUT_S
from tests.support.written_operations import WrittenOperations

ROOT = Path(__file__).parents[3]

KAFKA = KafkaSettings()

# Commands that change nothing of an engine, or what clients do through a gateway.
UNRECORDED = {
    *("up", "down", "status", "doctor"),  # processes; their logs have it
    *("init", "fetch", "federation key"),  # make files that belong to no engine yet
    *("backup", "bundle", "topics export"),  # write a copy
    *("publish", "listen", "subscribe", "unsubscribe", "rotate-secret"),  # what any client may do
    "subscriptions link",  # signs an address
    # Questions.
    *("audit", "trace", "why", "slo", "erasures", "top", "report", "operations"),
    *("config show", "config schema", "config spark"),
    *("topics list", "topics tree", "topics find", "topics match", "topics who", "topics problems"),
    *("subscriptions list", "cameras list", "triggers list", "waiting list", "queues list", "queues show", "keys list"),
    *("dead-letters list", "dead-letters show", "users list", "users check"),
    *("federation members", "federation topology", "federation links"),
}

# The names of operations that commands and forms make, where they differ from those of the commands.
RECORDED = {
    "access check": "access check --end",
    "/topics/save": "topics save",
    "/subscriptions/act": "subscriptions {action}",
    "/deliveries/dead/act": "dead-letters redrive",
    "/deliveries/waiting/act": "waiting retry",
    "/deliveries/erasures": "erase",
    "/subscriptions/replay": "replay",
}

# The buttons of the page of a receiver.
RECEIVER = {
    "test": "subscriptions test",
    "redrive": "dead-letters redrive",
    "pause": "subscriptions {change}",
    "resume": "subscriptions {change}",
    "rotate": "subscriptions rotate-secret",
}

# Forms that change a draft, which `/topics/save` applies, or the visitor's own session.
DRAFTS = {"/topics/put", "/topics/move", "/topics/remove", "/topics/drop", "/topics/keep", "/topics/discard"}
UNRECORDED_FORMS = {*DRAFTS, "/topics/import", "/try", "/try/who"}


def test_an_operation_is_recorded_before_it_is_made_and_with_its_result(written_operations: WrittenOperations) -> None:
    with operations.recorded(KAFKA, "dead-letters purge", [change("all")], Operator("console", "anna")) as said:
        (begun,) = written_operations.records
        said.append("3 deleted")
    assert isinstance(begun, OperationBegun)
    assert (begun.door, begun.who, begun.what) == ("console", "anna", "dead-letters purge")
    assert begun.changes == (RecordedChange("all"),)
    with pytest.raises(ValueError, match="no such key"), operations.recorded(KAFKA, "x", []):
        raise ValueError("no such key")
    _, ended, _, failed = written_operations.records
    assert ended == OperationEnded(begun.id, "3 deleted", 1)
    assert isinstance(failed, OperationEnded)
    assert failed.result == "failed: no such key"


def test_an_operation_without_its_record_is_not_made_and_without_its_result_is(
    written_operations: WrittenOperations,
) -> None:
    away = InfrastructureError("Kafka is away")
    with operations.recorded(KAFKA, "x", []):
        written_operations.error = away
    assert len(written_operations.records) == 1
    with pytest.raises(InfrastructureError, match="Kafka is away"), operations.recorded(KAFKA, "x", []):
        pytest.fail("it was done")


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
    assert operations.this_user() == Operator("command", "uid 10042@host"), "a container's user has no name"


def test_operations_without_a_broker_are_recorded_by_the_next_gateway(tmp_path: Path) -> None:
    settings = settings_in(tmp_path / "home")  # an embedded engine that does not run
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
                storing[0].join(1)  # until it is stored, or waits for the lock
            super().append(record)

    store("anna")
    log = SlowLog()
    append_pending(settings.home, log)
    storing[0].join(TIMEOUT_S)
    append_pending(settings.home, log)
    assert log.made() == [("users add", ["anna"]), ("users add", ["bert"])]


def commands(group: Any, before: str = "") -> Iterator[str]:
    """All commands, as they are typed."""
    for name, each in group.commands.items():
        yield from commands(each, f"{before}{name} ") if hasattr(each, "commands") else (f"{before}{name}",)


def calls(node: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


FUNCTIONS = [
    (file, node)
    for package in ("admin", "cli", "console")
    for file in (ROOT / package).rglob("*.py")
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
]

# The names of operations in calls that record.
RECORDED_NAMES = {
    ast.unparse(argument).removeprefix("f").strip("'\"")
    for _, node in FUNCTIONS
    for call in calls(node)
    if ast.unparse(call.func).endswith(
        ("recorded", "recorded_file", "recorded_control", "_change", "write_import", ".commit")
    )
    for argument in call.args
    if isinstance(argument, ast.Constant | ast.JoinedStr)
}


def test_each_command_form_and_button_is_recorded_or_changes_nothing(tmp_path: Path) -> None:
    names = set(commands(get_command(app)))
    assert names >= UNRECORDED, "the list names commands that do not exist"
    missing = {each for each in names - UNRECORDED if RECORDED.get(each, each) not in RECORDED_NAMES}
    assert not missing, "record what they change with admin.operations, or say above why they change nothing"
    console = console_parts(tmp_path).console
    routes = [route for screen in console.screens for route in screen.routes(console)]
    forms = {route.path for route in routes if "POST" in (route.methods or ())}
    assert set(RECORDED) - {"access check"} <= forms
    missing = {each for each in forms - UNRECORDED_FORMS if RECORDED.get(each, each) not in RECORDED_NAMES}
    assert not missing, "use VisitorChanges.commit, or say above why it changes nothing"
    template = (ROOT / "console" / "templates" / "receiver.html").read_text(encoding="utf-8")
    assert set(re.findall(r"\bbutton\('([^']*)'", template)) == set(RECEIVER)
    assert set(RECEIVER.values()) <= RECORDED_NAMES


def test_records_of_the_control_log_are_appended_by_recorded_functions_only() -> None:
    """Functions of admin and the console that append, write files of an engine, or move deliveries."""
    writing = (
        *("control_log.append", "ControlLog", "desk.redrive", "desk.purge", "replay.send", "_fill"),
        *("request_attempts", "keyring.remove_key", "_log.commit"),
    )
    bare = {
        f"{file.stem}.{node.name}"
        for file, node in FUNCTIONS
        if (ROOT / "cli") not in file.parents
        and file.name != "control_log.py"
        and any(ast.unparse(call.func).endswith(writing) for call in calls(node))
        and not re.search(r"recorded\(|recorded_control\(|_record,", ast.unparse(node))
    }
    # The caller of `_reseal` records; a process of the console is made with its log.
    assert bare == {"resealing._reseal", "process.__init__"}, "surround it with admin.operations.recorded"
