"""The topics that an operator names."""

from __future__ import annotations

import pytest

from arborcast.admin.topics import matching, one_topic
from arborcast.core.errors import ExpressionError, TopicError
from tests.support.directory import topic, tree_of


@pytest.mark.parametrize(
    ("text", "path"),
    [("a/b", "a/b"), ("a:b:c", "a/b/c"), ("{urn:t}a/b", "{urn:t}a/b"), ("p:a/b", "{urn:p}a/b"), ("Größe", "Größe")],
)
def test_one_topic(text: str, path: str) -> None:
    assert one_topic(text, {"p": "urn:p"}) == path


@pytest.mark.parametrize("text", ["a/*", "a//.", "a|b", "//.", "//b"])
def test_more_than_one_topic_is_refused(text: str) -> None:
    with pytest.raises(TopicError, match="more than one"):
        one_topic(text, {})


def test_what_is_no_topic_at_all() -> None:
    with pytest.raises(ExpressionError):
        one_topic("a//", {})


def test_matching() -> None:
    tree = tree_of(topic("a"), topic("a/b"), topic("a/b/c"), topic("x/b"))
    assert matching(tree, "a//.", {}) == ["a", "a/b", "a/b/c"]
    assert matching(tree, "//b", {}) == ["a/b", "x/b"]
    assert matching(tree, "a/*[c]", {}, xpath=True) == ["a/b"]
