"""Planned changes of the tree, and routing policies of topics."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import TopicError
from arborcast.topic_model.records.control import ControlRecord, Tombstone, TopicPolicy, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import MAX_DEPTH, TopicPath, make_path
from arborcast.topic_model.tree.distribution import check_routing, goes_to
from arborcast.topic_model.tree.plans import plan_create, plan_move, plan_remove, plan_rename, plan_update
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.routing import topic_steps, tree_of


def _record(path: str, code: str = "", *, final: bool = False) -> TopicRecord:
    return TopicRecord(TopicPath(path), code, final=final)


def _apply(tree: TopicTree, plan: Iterable[ControlRecord]) -> set[str]:
    for record in plan:
        tree.apply(record)
    return set(tree.paths())


def test_create_and_update() -> None:
    assert plan_create(tree_of("a"), _record("a/b/c", "C")) == [_record("a/b/c", "C")]
    assert plan_create(tree_of("a/b"), _record("a")) == [_record("a")], "the node becomes a topic"
    tree = tree_of(_record("a", "A"), "a/b")
    assert plan_update(tree, _record("a", "B")) == [_record("a", "B")]
    assert plan_update(tree, _record("a", "A")) == []


def _b(routing: str = "", types: tuple[str, ...] = ()) -> TopicRecord:
    return TopicRecord(TopicPath("b"), policy=TopicPolicy(routing=routing), message_types=types)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (_record("a"), "exists already"),
        (_record("f/b"), "the topic f is final"),
        (_record("f/b/c"), "the topic f is final"),
        (_record("n", final=True), "cannot be final"),
        (_record("b", "A"), "belongs to a already"),
        (_record(""), "at least one name"),
        (_record("a//b"), "not a canonical topic path"),
        (_record("1a"), "not a canonical topic path"),
        (_record("{urn:t}x/{urn:t}y"), "the canonical form of .* is {urn:t}x/y"),
        (_record("/".join(["d"] * (MAX_DEPTH + 1))), "64 levels"),
        (_record("b", "x" * 257), "256 characters"),
        (_record("b", "x\x07"), "control character"),
        (_b("\x00"), "control character"),
        (_b("reliable far"), "unknown routing word 'far': the known"),
        (_b("to:G1,"), "'to:G1,' has no valid groups"),
        (_b("local group"), "only one of local and group"),
        (_b(types=("\ud800",)), "control character"),
        (_b(types=("x",) * 257), "256 message types"),
        (_b(types=("x" * 65_536,)), "65536 bytes of properties"),
    ],
)
def test_refused_creation(record: TopicRecord, why: str) -> None:
    tree = tree_of(_record("a", "A"), _record("f", final=True), "n/below")
    with pytest.raises(TopicError, match=why):
        plan_create(tree, record)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (_record("a", final=True), "cannot be final"),
        (_record("a/b", "A"), "belongs to a already"),
        (_record("b"), "no topic b"),
        (_record("n"), "no topic n"),
    ],
)
def test_refused_update(record: TopicRecord, why: str) -> None:
    with pytest.raises(TopicError, match=why):
        plan_update(tree_of(_record("a", "A"), "a/b", "n/below"), record)


def test_remove() -> None:
    assert plan_remove(tree_of("a", "b"), TopicPath("a")) == [TopicRemoved(TopicPath("a")), Tombstone("topic:a")]
    plan = plan_remove(tree_of("a", "a/b", "a/b/c", "ab"), TopicPath("a"), recursive=True)
    assert plan[:3] == [TopicRemoved(TopicPath(path)) for path in ("a/b/c", "a/b", "a")], "the deepest first"
    assert plan[3:] == [Tombstone(f"topic:{path}") for path in ("a/b/c", "a/b", "a")]


@pytest.mark.parametrize(("path", "why"), [("a", "topics below a"), ("c", "no topic c"), ("a/b/c", "no topic a/b/c")])
def test_refused_removal(path: str, why: str) -> None:
    with pytest.raises(TopicError, match=why):
        plan_remove(tree_of("a", "a/b"), TopicPath(path))


def test_move_puts_new_before_old_and_parents_before_children() -> None:
    tree = tree_of(_record("a", "A"), "a/b", "x")
    plan = plan_move(tree, TopicPath("a"), TopicPath("x/y"))
    assert plan == [
        *(_record("x/y", "A"), _record("x/y/b")),
        *(TopicRemoved(TopicPath(path)) for path in ("a/b", "a")),
        *(Tombstone(f"topic:{path}") for path in ("a/b", "a")),
    ]
    assert _apply(tree, plan) == {"x", "x/y", "x/y/b"}
    assert tree.paths_with_code("A") == ("x/y",)


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        ("a", "a", "to itself"),
        ("a", "a/b/c", "below itself"),
        ("a", "x", "at x already"),
        ("a", "n", "at n already, or below it"),
        ("a", "f/a", "f is final"),
        ("z", "y", "no topic z"),
        ("a", "a b", "not a canonical topic path"),
        ("a", "/".join(["d"] * MAX_DEPTH), "64 levels"),
        ("c", "{urn:t}c", "both become {urn:t}c/d"),
    ],
)
def test_refused_move(source: str, target: str, why: str) -> None:
    tree = tree_of("a", "a/b", "x", "n/below", _record("f", final=True), "c/d", "c/{urn:t}d")
    with pytest.raises(TopicError, match=why):
        plan_move(tree, TopicPath(source), TopicPath(target))


@pytest.mark.parametrize(
    ("path", "name", "renamed"),
    [
        ("{http://h/t}a", "b", "{http://h/t}b"),
        ("{http://h/t}a/c", "d", "{http://h/t}a/d"),
        ("{http://h/t}a/{http://h/x}e", "f", "{http://h/t}a/{http://h/x}f"),
        ("{http://h/t}a/{http://h/x}e", "{urn:y}f", "{http://h/t}a/{urn:y}f"),
        ("{http://h/t}a/{http://h/x}e", "{http://h/t}f", "{http://h/t}a/f"),
        ("n", "m", "m"),
    ],
)
def test_rename(path: str, name: str, renamed: str) -> None:
    tree = tree_of("{http://h/t}a", "{http://h/t}a/c", "{http://h/t}a/{http://h/x}e", "n")
    plan = plan_rename(tree, TopicPath(path), name)
    assert _record(renamed) in plan
    assert TopicRemoved(TopicPath(path)) in plan


@pytest.mark.parametrize(
    ("name", "why"), [("b/d", "is a path, not a name"), ("x y", "canonical"), ("", "canonical|name"), ("b", "already")]
)
def test_refused_rename(name: str, why: str) -> None:
    with pytest.raises(TopicError, match=why):
        plan_rename(tree_of("a", "b", "b/c"), TopicPath("a"), name)


_paths = topic_steps("abc", ["", "urn:t"], 4).map(make_path)


@given(st.sets(_paths, min_size=1, max_size=12), _paths, _paths)
def test_a_move_loses_no_topic(paths: set[TopicPath], source: TopicPath, target: TopicPath) -> None:
    tree = tree_of(*paths)
    try:
        plan = plan_move(tree, source, target)
    except TopicError:
        return
    moved = {path for path in paths if path == source or path.startswith(f"{source}/")}
    after = _apply(tree, plan)
    assert after >= paths - moved
    assert len(after) == len(paths)
    assert not tree.is_node(source)
    assert tree.is_node(target)


# Routing policies.
@pytest.mark.parametrize(
    "routing",
    ["", "local", " group  reliable", "everywhere split", "to:G1,g-2_x reliable split", "group fast", "fast split"],
)
def test_words_of_a_routing_policy(routing: str) -> None:
    check_routing(routing)


@pytest.mark.parametrize("routing", ["fast reliable", "local fast", "reliable group fast"])
def test_contradicting_words_are_refused(routing: str) -> None:
    with pytest.raises(TopicError, match="a topic cannot be fast and"):
        check_routing(routing)


@pytest.mark.parametrize(
    ("word", "goes"), [("", True), ("group", False), ("local", False), ("to:X,G", True), ("to:X", False)]
)
def test_words_for_other_groups(word: str, goes: bool) -> None:
    assert goes_to(word, "G") is goes


def _routed(**routings: str) -> TopicTree:
    paths = {TopicPath(path.replace("_", "/")): routing for path, routing in routings.items()}
    return tree_of(*(TopicRecord(path, policy=TopicPolicy(routing=routing)) for path, routing in paths.items()))


def test_the_nearest_word_counts() -> None:
    tree = _routed(a="local", a_b="reliable", a_b_c="to:G1", a_b_c_d="split")
    found = [tree.distribution(TopicPath(each)) for each in ("a", "a/b", "a/b/x", "a/b/c/d/e", "z")]
    assert found == ["local", "local", "local", "to:G1", ""]
    tree = _routed(a="local reliable", a_b="")
    assert [tree.policy(TopicPath(each)).reliable for each in ("a", "a/b")] == [True, False], "not passed down"


def test_fast_applies_to_topics_below_except_reliable_ones() -> None:
    tree = _routed(a="group fast", a_b="everywhere", a_b_c="reliable")
    found = [tree.is_fast(TopicPath(each), otherwise=False) for each in ("a", "a/b", "a/new", "a/b/c", "a/b/c/d", "z")]
    assert found == [True, True, True, False, False, False]
    assert tree.is_fast(TopicPath("z"), otherwise=True)
    assert not tree.is_fast(TopicPath("a/b/c/d"), otherwise=True)
