"""Planned changes: what is refused, and that applying a plan does what was asked."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.core.errors import TopicError
from arborcast.topic_model.records.control import ControlRecord, Tombstone, TopicPolicy, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import MAX_DEPTH, TopicPath, parse_path
from arborcast.topic_model.tree.plans import plan_create, plan_move, plan_remove, plan_rename, plan_update
from arborcast.topic_model.tree.tree import TopicTree


def _record(path: str, code: str = "", *, final: bool = False) -> TopicRecord:
    return TopicRecord(TopicPath(path), code, final=final)


def _tree(*records: TopicRecord | str) -> TopicTree:
    tree = TopicTree()
    _apply(tree, (_record(record) if isinstance(record, str) else record for record in records))
    return tree


def _apply(tree: TopicTree, plan: Iterable[ControlRecord]) -> set[str]:
    for record in plan:
        tree.apply(record)
    return set(tree.paths())


def _path(text: str) -> TopicPath:
    return TopicPath(text)


def test_create() -> None:
    tree = _tree("a")
    assert plan_create(tree, _record("a/b/c", "C")) == [_record("a/b/c", "C")]


def test_create_makes_a_topic_of_a_node() -> None:
    assert plan_create(_tree("a/b"), _record("a")) == [_record("a")]


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
        (TopicRecord(_path("b"), policy=TopicPolicy(routing="\x00")), "control character"),
        (
            TopicRecord(_path("b"), policy=TopicPolicy(routing="reliable far")),
            "unknown routing word 'far': the known",
        ),
        (TopicRecord(_path("b"), policy=TopicPolicy(routing="to:G1,")), "'to:G1,' has no valid groups"),
        (TopicRecord(_path("b"), policy=TopicPolicy(routing="local group")), "only one of local and group"),
        (TopicRecord(_path("b"), message_types=("\ud800",)), "control character"),
        (TopicRecord(_path("b"), message_types=("x",) * 257), "256 message types"),
    ],
)
def test_refused_creation(record: TopicRecord, why: str) -> None:
    tree = _tree(_record("a", "A"), _record("f", final=True), "n/below")
    with pytest.raises(TopicError, match=why):
        plan_create(tree, record)


def test_update() -> None:
    tree = _tree(_record("a", "A"), "a/b")
    assert plan_update(tree, _record("a", "B")) == [_record("a", "B")]
    assert plan_update(tree, _record("a", "A")) == []


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
        plan_update(_tree(_record("a", "A"), "a/b", "n/below"), record)


def test_remove() -> None:
    tree = _tree("a", "b")
    assert plan_remove(tree, _path("a")) == [TopicRemoved(_path("a")), Tombstone("topic:a")]


def test_remove_recursively_takes_the_deepest_first() -> None:
    plan = plan_remove(_tree("a", "a/b", "a/b/c", "ab"), _path("a"), recursive=True)
    assert plan[:3] == [TopicRemoved(_path(path)) for path in ("a/b/c", "a/b", "a")]
    assert plan[3:] == [Tombstone(f"topic:{path}") for path in ("a/b/c", "a/b", "a")]


@pytest.mark.parametrize(("path", "why"), [("a", "topics below a"), ("c", "no topic c"), ("a/b/c", "no topic a/b/c")])
def test_refused_removal(path: str, why: str) -> None:
    with pytest.raises(TopicError, match=why):
        plan_remove(_tree("a", "a/b"), _path(path))


def test_move_puts_new_before_old_and_parents_before_children() -> None:
    tree = _tree(_record("a", "A"), "a/b", "x")
    plan = plan_move(tree, _path("a"), _path("x/y"))
    assert plan == [
        _record("x/y", "A"),
        _record("x/y/b"),
        TopicRemoved(_path("a/b")),
        TopicRemoved(_path("a")),
        Tombstone("topic:a/b"),
        Tombstone("topic:a"),
    ]
    assert _apply(tree, plan) == {"x", "x/y", "x/y/b"}
    assert tree.paths_with_code("A") == ("x/y",)
    assert tree.get(_path("x/y")) == _record("x/y", "A")


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
    tree = _tree("a", "a/b", "x", "n/below", _record("f", final=True), "c/d", "c/{urn:t}d")
    with pytest.raises(TopicError, match=why):
        plan_move(tree, _path(source), _path(target))


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
    tree = _tree("{http://h/t}a", "{http://h/t}a/c", "{http://h/t}a/{http://h/x}e", "n")
    plan = plan_rename(tree, _path(path), name)
    assert _record(renamed) in plan
    assert TopicRemoved(_path(path)) in plan


@pytest.mark.parametrize(
    ("name", "why"),
    [("b/d", "is a path, not a name"), ("x y", "canonical"), ("", "canonical|name"), ("b", "already")],
)
def test_refused_rename(name: str, why: str) -> None:
    with pytest.raises(TopicError, match=why):
        plan_rename(_tree("a", "b", "b/c"), _path("a"), name)


_paths = st.lists(st.sampled_from(["a", "b", "{urn:t}c"]), min_size=1, max_size=4).map(
    lambda steps: parse_path("/".join(steps))
)


@given(st.sets(_paths, min_size=1, max_size=12), _paths, _paths)
def test_a_plan_can_be_applied_or_is_refused_and_nothing_is_lost(
    paths: set[TopicPath], source: TopicPath, target: TopicPath
) -> None:
    tree = _tree(*paths)
    try:
        plan = plan_move(tree, source, target)
    except TopicError:
        assert set(tree.paths()) == paths
        return
    moved = {path for path in paths if path == source or path.startswith(f"{source}/")}
    after = _apply(tree, plan)
    assert after >= paths - moved
    assert len(after) == len(paths)
    assert not tree.is_node(source)
    assert tree.is_node(target)
