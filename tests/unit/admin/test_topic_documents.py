"""Topic trees as documents, and imports of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.admin.topic_documents import format_of, plan_import, read_document, write_document
from arborcast.core.errors import ConfigError, TopicError
from arborcast.topic_model.records.control import Tombstone, TopicRemoved
from tests.support.directory import topic, tree_of

BASE = "ou=topics,dc=arborcast"


@pytest.mark.parametrize("form", ["ldif", "topicset", "json"])
def test_documents_of_every_format_read_back_and_are_recognised(form: str) -> None:
    topics = (
        topic("a", code="1", priority=3),
        topic("a/{urn:x}b", final=True, publishers=("cn=p",)),
        topic("{urn:t}Größe/c", message_types=("{urn:t}m",), retain=True, routing="group"),
    )
    data = write_document(topics, form, BASE)  # type: ignore[arg-type]
    assert format_of(None, None, data) == form
    assert read_document(data, form, BASE) == (topics, ())


def test_the_ldif_begins_with_the_base_and_names_parents_first() -> None:
    lines = write_document([topic("b/c"), topic("a")], "ldif", BASE).decode().splitlines()
    assert [line for line in lines if line.startswith("dn:")] == [
        "dn: ou=topics,dc=arborcast",
        "dn: topicName=a,ou=topics,dc=arborcast",
        "dn: topicName=b,ou=topics,dc=arborcast",
        "dn: topicName=c,topicName=b,ou=topics,dc=arborcast",
    ]


def test_the_format_is_said_or_told_by_the_name_and_an_ldif_has_the_base_of_the_settings() -> None:
    assert format_of(Path("x.xml"), "json") == "json"
    assert format_of(Path("x.XML"), None) == "topicset"
    with pytest.raises(ConfigError, match="--format"):
        format_of(None, None)
    with pytest.raises(ConfigError, match="--base-dn"):
        read_document(write_document([topic("a")], "ldif", "ou=elsewhere,dc=x"), "ldif", BASE)


def test_an_import_adds_changes_and_leaves_the_rest() -> None:
    tree = tree_of(topic("a"), topic("b", code="B"), topic("same"))
    result = plan_import(tree, [topic("new/x"), topic("b", code="C"), topic("same")])
    assert result.records == (topic("b", code="C"), topic("new/x"))
    assert (result.added, result.changed, result.removed) == (1, 1, 0)


def test_an_import_that_replaces_removes_the_rest_first_so_that_its_codes_are_free() -> None:
    tree = tree_of(topic("a", code="K"), topic("a/b"))
    result = plan_import(tree, [topic("a/b"), topic("z", code="K")], replace=True)
    assert result.records == (TopicRemoved(topic("a").path), Tombstone("topic:a"), topic("z", code="K"))
    assert (result.added, result.changed, result.removed) == (1, 0, 1)


def test_an_import_is_all_or_nothing_and_names_what_cannot_be() -> None:
    tree = tree_of(topic("a", code="K"))
    with pytest.raises(TopicError, match=r"2 topics cannot be: .*'K'.*final"):
        plan_import(tree, [topic("b", code="K"), topic("ok"), topic("x", final=True), topic("x/y")])
