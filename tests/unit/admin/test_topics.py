"""The topics that an operator names."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from arborcast.admin import control_log
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
from arborcast.core.errors import ExpressionError, TopicError
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.records.control import ControlRecord
from tests.support.directory import topic, tree_of


def test_one_topic_and_no_more() -> None:
    for text, path in (
        ("a/b", "a/b"),
        ("a:b:c", "a/b/c"),
        ("{urn:t}a", "{urn:t}a"),
        ("p:a", "{urn:p}a"),
        ("Größe", "Größe"),
    ):
        assert one_topic(text, {"p": "urn:p"}) == path
    for text in ("a/*", "a//.", "a|b", "//.", "//b"):
        with pytest.raises(TopicError, match="more than one"):
            one_topic(text, {})
    with pytest.raises(ExpressionError):
        one_topic("a//", {})


def test_matching() -> None:
    tree = tree_of(topic("a"), topic("a/b"), topic("a/b/c"), topic("x/b"))
    assert matching(tree, "a//.", {}) == ["a", "a/b", "a/b/c"]
    assert matching(tree, "//b", {}) == ["a/b", "x/b"]
    assert matching(tree, "a/*[c]", {}, xpath=True) == ["a/b"]


def test_topics_are_listed_with_their_facts_and_found_by_code() -> None:
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

    def append(_: KafkaSettings, records: Sequence[ControlRecord]) -> None:
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
