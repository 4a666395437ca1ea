"""The tree as a fold, compared with a dictionary, and its indexes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records.control import SubscriptionEnded, TopicPolicy, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath, ancestors, make_path, parent_of
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.routing import topic_steps, tree_of


def test_queues_and_versions() -> None:
    tree, queue = tree_of("a", "a/b"), TopicPolicy(queue=True)
    assert list(tree.queues()) == []
    for path in ("a", "q", "r"):
        tree.put(TopicRecord(TopicPath(path), policy=queue))
    assert sorted(tree.queues()) == ["a", "q", "r"]
    tree.put(TopicRecord(TopicPath("a")))
    assert tree.remove(TopicPath("q"))
    assert list(tree.queues()) == ["r"]

    before = tree.version
    tree.remove(TopicPath("none"))
    tree.apply(SubscriptionEnded("s", "gone", 1))
    assert tree.version == before
    tree.apply(TopicRemoved(TopicPath("a")))
    assert tree.version > before


_paths = topic_steps("abcd", ["", "", "urn:t", "http://h/p"], 4).map(make_path)
_records = st.builds(TopicRecord, _paths, st.sampled_from(["", "x", "y"]))
_changes = st.lists(st.one_of(_records, _records, st.builds(TopicRemoved, _paths)), max_size=40)


@given(_changes)
def test_the_tree_against_a_dictionary(changes: list[TopicRecord | TopicRemoved]) -> None:
    tree = TopicTree()
    model: dict[TopicPath, TopicRecord] = {}
    for change in changes:
        if isinstance(change, TopicRecord):
            tree.apply(change)
            model[change.path] = change
        else:
            assert tree.remove(change.path) == (model.pop(change.path, None) is not None)
    assert {record.path: record for record in tree.records()} == model
    assert len(tree) == len(model)
    nodes = {node for path in model for node in (path, *ancestors(path))}
    for node in nodes:
        assert tree.is_node(node)
        assert (node in tree, tree.get(node)) == (node in model, model.get(node))
        assert set(tree.children(node)) == {other for other in nodes if parent_of(other) == node}
        assert set(tree.descendants(node)) == {path for path in model if path.startswith(f"{node}/")}
    assert not any(map(tree.is_node, {change.path for change in changes} - nodes))
    assert set(tree.roots()) == {node for node in nodes if parent_of(node) is None}
    for code in ("x", "y"):
        assert tree.paths_with_code(code) == tuple(sorted(path for path, r in model.items() if r.code == code))
    assert tree_of(*model.values()) == tree


_normals = st.sampled_from(
    [
        *("a", "a/b", "a/*", "a//.", "a//*", "a//b", "*", "{}*", "{urn:t}//.", "{}//b", "//b", "//{urn:t}c"),
        *("a/*/b", "*/b", "//.", "a/*/*", "{http://h/p}d//.|a/b", "a/*|*", "{}*/*//b//."),
    ]
)


@given(st.sets(_paths, max_size=20), _normals)
def test_select_returns_each_match_once(paths: set[TopicPath], normal: str) -> None:
    pattern = parse_normal(normal)
    assert sorted(tree_of(*paths).select(pattern)) == sorted(path for path in paths if pattern.matches(path))
