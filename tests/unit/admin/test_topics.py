"""Topics by an operator's notation, documents of topics, and differences between the tree and its directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from arborcast.admin import control_log, operations
from arborcast.admin.topic_documents import Format, format_of, import_topics, plan_import, read_document, write_document
from arborcast.admin.topics import (
    TopicNode,
    add,
    listed,
    matching,
    move,
    nodes,
    one_topic,
    remove,
    rename,
    topic_named,
    with_code,
)
from arborcast.cli.topics import documents
from arborcast.core.errors import ConfigError, ExpressionError, InfrastructureError, TopicError
from arborcast.core.settings import KafkaSettings
from arborcast.engine.settings.loading import load_settings
from arborcast.topic_model.records import operations as operation_records
from arborcast.topic_model.records.control import ControlRecord, Tombstone, TopicRemoved
from arborcast.topic_model.records.operations import OperationBegun
from tests.support.directory import topic
from tests.support.listed_logs import ListedLogs
from tests.support.routing import tree_of
from tests.support.written_operations import WrittenOperations

BASE = "ou=topics,dc=arborcast"


def test_exactly_one_topic_is_selected() -> None:
    for text, path in (("a:b:c", "a/b/c"), ("{urn:t}a", "{urn:t}a"), ("p:a", "{urn:p}a"), ("Größe", "Größe")):
        assert one_topic(text, {"p": "urn:p"}) == path
    for text in ("a/*", "a//.", "a|b", "//.", "//b"):
        with pytest.raises(TopicError, match="more than one"):
            one_topic(text, {})
    with pytest.raises(ExpressionError):
        one_topic("a//", {})


def test_topics_are_found_by_expression_and_code() -> None:
    tree = tree_of(topic("a"), topic("a/b"), topic("a/b/c"), topic("x/b"))
    assert matching(tree, "a//.", {}) == ["a", "a/b", "a/b/c"]
    assert matching(tree, "//b", {}) == ["a/b", "x/b"]
    assert matching(tree, "a/*[c]", {}, xpath=True) == ["a/b"]
    tree = tree_of(topic("a", code="A"), topic("a/b", priority=3), topic("x"))
    assert listed(tree, "a//.", {}) == [topic("a", code="A"), topic("a/b", priority=3)]
    assert with_code(tree, "A") == [topic("a", code="A")]
    with pytest.raises(TopicError, match="no topic has the code 'B'"):
        with_code(tree, "B")
    assert topic_named("code:A/b", tree) == topic_named("a:b", tree) == "a/b"


def test_nodes_are_the_tree_down_to_a_level() -> None:
    tree = tree_of(topic("a/b/c"), topic("a/b"), topic("x"))
    c, b = TopicNode(topic("a/b/c").path, True, ()), TopicNode(topic("a/b").path, True, ())
    a, x = TopicNode(topic("a").path, False, ()), TopicNode(topic("x").path, True, ())
    assert nodes(tree, 1) == [a, x]
    whole = msgspec.structs.replace(a, children=(msgspec.structs.replace(b, children=(c,)),))
    assert nodes(tree) == [whole, x]


def test_changes_are_appended_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tree_of(topic("a", code="A"), topic("a/b"))
    written: list[ControlRecord] = []

    def append(_: KafkaSettings, records: Sequence[ControlRecord], *_progress: object) -> None:
        written.extend(records)
        for record in records:
            tree.apply(record)

    monkeypatch.setattr(control_log, "read_tree", lambda _: tree)
    monkeypatch.setattr(control_log, "append", append)
    kafka = KafkaSettings()
    assert add(kafka, topic("c")) == (("c",), ())
    with pytest.raises(TopicError, match="exists already"):
        add(kafka, topic("c", code="C"))
    assert add(kafka, topic("c", code="C"), update=True) == (("c",), ())
    assert add(kafka, topic("c", code="C"), update=True) == ((), ())
    assert move(kafka, topic("a").path, topic("d").path) == (("d", "d/b"), ("a/b", "a"))
    assert rename(kafka, topic("d/b").path, "e") == (("d/e",), ("d/b",))
    with pytest.raises(TopicError, match="recursively"):
        remove(kafka, topic("d").path)
    assert remove(kafka, topic("d").path, recursive=True) == ((), ("d/e", "d"))
    assert sorted(tree.paths()) == ["c"]
    assert topic("c", code="C") in written


def test_a_large_subtree_is_removed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One write of a million records exceeds the timeout."""
    tree, log = tree_of(*(topic(f"a/t{number}") for number in range(5))), Mock()
    monkeypatch.setattr(control_log, "read_tree", lambda _: tree)
    monkeypatch.setattr(control_log, "ControlLog", lambda _: log)
    monkeypatch.setattr(control_log, "_AT_ONCE", 2)
    remove(KafkaSettings(), topic("a").path, recursive=True)
    assert [len(call.args[0]) for call in log.append.call_args_list] == [2] * 5


@pytest.mark.parametrize("appended", range(6))
@pytest.mark.parametrize("result", ["failed: Kafka is away", None, "done"])
def test_an_interrupted_move_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, written_operations: WrittenOperations, appended: int, result: str | None
) -> None:
    tree = tree_of(topic("a", code="A"), topic("a/b"), topic("a/c"))
    logs = ListedLogs(monkeypatch)
    logs.scanned(monkeypatch, operations)

    def append(_: KafkaSettings, records: Sequence[ControlRecord], *_progress: object) -> None:
        for record in records:
            tree.apply(record)

    def interrupted(kafka: KafkaSettings, records: Sequence[ControlRecord], *_progress: object) -> None:
        append(kafka, records[:appended])
        raise InfrastructureError("killed")

    monkeypatch.setattr(control_log, "read_tree", lambda _: tree)
    monkeypatch.setattr(control_log, "append", interrupted)
    with pytest.raises(InfrastructureError):
        move(KafkaSettings(), topic("a").path, topic("d").path)
    begun = written_operations.records[0]
    assert isinstance(begun, OperationBegun)
    logs.write("operations", *operation_records.encode(begun))
    if result is not None:
        logs.write("operations", *operation_records.encode(operation_records.ended(begun, result)))
    monkeypatch.setattr(control_log, "append", append)
    if appended and result == "done":
        with pytest.raises(TopicError, match="at d already"):
            move(KafkaSettings(), topic("a").path, topic("d").path)
        return
    move(KafkaSettings(), topic("a").path, topic("d").path)
    assert sorted(tree.paths()) == ["d", "d/b", "d/c"]
    assert tree.get(topic("d").path) == topic("d", code="A")


def test_the_format_and_the_base_of_a_document() -> None:
    lines = write_document([topic("b/c"), topic("a")], "ldif", BASE).decode().splitlines()
    assert [line for line in lines if line.startswith("dn:")] == [
        f"dn: {above}{BASE}" for above in ("", "topicName=a,", "topicName=b,", "topicName=c,topicName=b,")
    ], "parents first"
    forms: list[Format] = ["ldif", "topicset", "json"]
    assert [format_of(None, None, write_document([topic("a")], form, BASE)) for form in forms] == forms
    assert format_of(Path("x.xml"), "json") == "json"
    assert format_of(Path("x.XML"), None) == "topicset"
    with pytest.raises(ConfigError, match="--format"):
        format_of(None, None)
    with pytest.raises(ConfigError, match="--base-dn"):
        read_document(write_document([topic("a")], "ldif", "ou=elsewhere,dc=x"), "ldif", BASE)
    with pytest.raises(ConfigError, match="not dc=x"):
        write_document([topic("a")], "ldif", "dc=x")


def test_an_export_to_a_full_disk_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "topics.ldif"
    file.write_text("earlier")
    monkeypatch.setattr(documents, "_settings", lambda *_: load_settings(home=tmp_path, environ={}))
    monkeypatch.setattr(control_log, "read_tree", lambda _: tree_of(topic("a")))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    with pytest.raises(OSError, match=rf"No space left on device: '{file}'"):
        documents.export_topics(file)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["earlier"]


def test_imports() -> None:
    tree = tree_of(topic("a"), topic("b", code="B"), topic("same"))
    result = plan_import(tree, [topic("new/x"), topic("b", code="C"), topic("same")])
    assert result.records == (topic("b", code="C"), topic("new/x"))
    assert (result.added, result.changed, result.removed) == (1, 1, 0)
    # A replacing import removes the other topics first, so that their codes are free.
    tree = tree_of(topic("a", code="K"), topic("a/b"))
    result = plan_import(tree, [topic("a/b"), topic("z", code="K")], replace=True)
    assert result.records == (TopicRemoved(topic("a").path), Tombstone("topic:a"), topic("z", code="K"))
    assert (result.added, result.changed, result.removed) == (1, 0, 1)
    # As from standard input, if the export at the other end of the pipe has failed.
    nothing, _ = read_document(b"", "ldif", BASE)
    with pytest.raises(ConfigError, match="would remove all"):
        import_topics(KafkaSettings(), nothing, replace=True)
    # All or nothing.
    with pytest.raises(TopicError, match=r"2 topics cannot be: .*'K'.*final"):
        plan_import(tree, [topic("b", code="K"), topic("ok"), topic("x", final=True), topic("x/y")])
