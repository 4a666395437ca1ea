"""The tree as a fold, against a plain dictionary, and its indexes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records.control import SubscriptionEnded, TopicPolicy, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath, ancestors, parent_of, parse_path
from arborcast.topic_model.tree.tree import TopicTree


def _tree(*paths: str) -> TopicTree:
    tree = TopicTree()
    for path in paths:
        tree.put(TopicRecord(TopicPath(path)))
    return tree


def test_a_node_without_a_record_is_no_topic() -> None:
    tree = _tree("{urn:t}a/b/c")
    assert "{urn:t}a/b/c" in tree
    assert "{urn:t}a/b" not in tree
    assert tree.is_node(TopicPath("{urn:t}a/b"))
    assert tree.get(TopicPath("{urn:t}a")) is None
    assert list(tree.roots()) == ["{urn:t}a"]
    assert list(tree.children(TopicPath("{urn:t}a"))) == ["{urn:t}a/b"]
    assert list(tree.descendants(TopicPath("{urn:t}a"))) == ["{urn:t}a/b/c"]
    assert len(tree) == 1


def test_nodes_go_with_the_last_topic_below_them() -> None:
    tree = _tree("a/b/c", "a/d")
    assert tree.remove(TopicPath("a/b/c"))
    assert not tree.is_node(TopicPath("a/b"))
    assert tree.is_node(TopicPath("a"))
    assert tree.remove(TopicPath("a/d"))
    assert not tree.is_node(TopicPath("a"))
    assert list(tree.roots()) == []
    assert tree == TopicTree()


def test_removing_a_topic_leaves_those_below_it() -> None:
    tree = _tree("a", "a/b")
    assert tree.remove(TopicPath("a"))
    assert tree.is_node(TopicPath("a"))
    assert list(tree.paths()) == ["a/b"]
    assert not tree.remove(TopicPath("a"))


def test_namespaces_with_slashes_make_no_levels() -> None:
    tree = _tree("{http://example.org/t}a/{http://example.org/x/}b/c")
    assert list(tree.roots()) == ["{http://example.org/t}a"]
    assert list(tree.children(TopicPath("{http://example.org/t}a"))) == [
        "{http://example.org/t}a/{http://example.org/x/}b"
    ]


def test_facts_are_kept_and_replaced() -> None:
    tree = TopicTree()
    record = TopicRecord(TopicPath("a"), "A", ("{urn:t}M",), True, TopicPolicy(retain=True, publishers=("p",)))
    tree.put(record)
    assert tree.get(TopicPath("a")) == record
    tree.put(TopicRecord(TopicPath("a")))
    assert tree.get(TopicPath("a")) == TopicRecord(TopicPath("a"))
    assert tree.paths_with_code("A") == ()
    assert list(tree.records()) == [TopicRecord(TopicPath("a"))]


def test_duplicate_codes_are_all_kept_in_the_order_of_their_paths() -> None:
    tree = TopicTree()
    for path in ("b", "c", "a"):
        tree.put(TopicRecord(TopicPath(path), code="X"))
    assert tree.paths_with_code("X") == ("a", "b", "c")
    tree.remove(TopicPath("a"))
    assert tree.paths_with_code("X") == ("b", "c")
    tree.put(TopicRecord(TopicPath("b"), code="Y"))
    assert tree.paths_with_code("X") == ("c",)
    assert tree.paths_with_code("") == ()


def test_queues_are_known_without_a_look_at_other_topics() -> None:
    tree, queue = _tree("a", "a/b"), TopicPolicy(queue=True)
    assert list(tree.queues()) == []
    for path in ("a", "q", "r"):
        tree.put(TopicRecord(TopicPath(path), policy=queue))
    assert sorted(tree.queues()) == ["a", "q", "r"]
    tree.put(TopicRecord(TopicPath("a")))
    assert tree.remove(TopicPath("q"))
    assert list(tree.queues()) == ["r"]


def test_version_grows_with_changes_only() -> None:
    tree = _tree("a")
    before = tree.version
    tree.remove(TopicPath("b"))
    tree.apply(SubscriptionEnded("s", "gone", 1))
    assert tree.version == before
    tree.apply(TopicRemoved(TopicPath("a")))
    assert tree.version > before


_paths = st.lists(st.sampled_from(["a", "b", "{urn:t}c", "{http://h/p}d"]), min_size=1, max_size=4).map(
    lambda steps: parse_path("/".join(steps))
)
_records = st.builds(TopicRecord, _paths, st.sampled_from(["", "x", "y"]))
_changes = st.lists(st.one_of(_records, _records, st.builds(TopicRemoved, _paths)), max_size=40)


@given(_changes)
def test_the_tree_is_what_a_dictionary_would_be(changes: list[TopicRecord | TopicRemoved]) -> None:
    tree = TopicTree()
    model: dict[TopicPath, TopicRecord] = {}
    for change in changes:
        tree.apply(change)
        if isinstance(change, TopicRecord):
            model[change.path] = change
        else:
            model.pop(change.path, None)
    assert {record.path: record for record in tree.records()} == model
    assert len(tree) == len(model)
    nodes = {node for path in model for node in (path, *ancestors(path))}
    for node in nodes:
        assert tree.is_node(node)
        assert set(tree.children(node)) == {other for other in nodes if parent_of(other) == node}
        assert set(tree.descendants(node)) == {path for path in model if path.startswith(f"{node}/")}
    assert set(tree.roots()) == {node for node in nodes if parent_of(node) is None}
    for code in ("x", "y"):
        assert tree.paths_with_code(code) == tuple(sorted(path for path, r in model.items() if r.code == code))
    rebuilt = TopicTree()
    for record in model.values():
        rebuilt.put(record)
    assert rebuilt == tree


_normals = st.sampled_from(
    [
        "a",
        "a/b",
        "a/*",
        "a//.",
        "a//*",
        "a//b",
        "*",
        "{}*",
        "{urn:t}//.",
        "{}//b",
        "//b",
        "//{urn:t}c",
        "a/*/b",
        "*/b",
        "//.",
        "a/*/*",
        "{http://h/p}d//.|a/b",
        "a/*|*",
        "{}*/*//b//.",
    ]
)


@given(st.sets(_paths, max_size=20), _normals)
def test_select_finds_what_matches_and_each_once(paths: set[TopicPath], normal: str) -> None:
    pattern = parse_normal(normal)
    selected = list(_tree(*paths).select(pattern))
    assert sorted(selected) == sorted(path for path in paths if pattern.matches(path))
