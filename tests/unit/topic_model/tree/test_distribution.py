"""Routing policies: what a topic's words mean, and whose words count for it."""

from __future__ import annotations

import pytest

from arborcast.core.errors import TopicError
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.distribution import check_routing, goes_to
from arborcast.topic_model.tree.tree import TopicTree


def _tree(**routings: str) -> TopicTree:
    tree = TopicTree()
    for path, routing in routings.items():
        tree.put(TopicRecord(TopicPath(path.replace("_", "/")), policy=TopicPolicy(routing=routing)))
    return tree


@pytest.mark.parametrize(
    "routing",
    ["", "local", " group  reliable", "everywhere split", "to:G1,g-2_x reliable split", "group fast", "fast split"],
)
def test_words_that_are_taken(routing: str) -> None:
    check_routing(routing)


def test_the_nearest_word_counts() -> None:
    tree = _tree(a="local", a_b="reliable", a_b_c="to:G1", a_b_c_d="split")
    assert [tree.distribution(TopicPath(each)) for each in ("a", "a/b", "a/b/x", "a/b/c/d/e", "z")] == [
        "local",
        "local",
        "local",
        "to:G1",
        "",
    ]


def test_only_the_way_is_passed_down() -> None:
    """What else a routing policy says is about the topic itself, as it always was."""
    tree = _tree(a="local reliable", a_b="")
    assert tree.policy(TopicPath("a")).reliable
    assert not tree.policy(TopicPath("a/b")).reliable


@pytest.mark.parametrize(
    ("word", "goes"),
    [("", True), ("group", False), ("local", False), ("to:X,G", True), ("to:X", False)],
)
def test_where_a_word_leads(word: str, goes: bool) -> None:
    assert goes_to(word, "G") is goes


@pytest.mark.parametrize("routing", ["fast reliable", "local fast", "reliable group fast"])
def test_what_nobody_could_follow_is_refused(routing: str) -> None:
    with pytest.raises(TopicError, match="a topic cannot be fast and"):
        check_routing(routing)


def test_fast_holds_for_the_topics_below_up_to_one_that_is_reliable() -> None:
    tree = _tree(a="group fast", a_b="everywhere", a_b_c="reliable")
    found = [tree.is_fast(TopicPath(each), otherwise=False) for each in ("a", "a/b", "a/new", "a/b/c", "a/b/c/d", "z")]
    assert found == [True, True, True, False, False, False]
    assert tree.is_fast(TopicPath("z"), otherwise=True)
    assert not tree.is_fast(TopicPath("a/b/c/d"), otherwise=True)
