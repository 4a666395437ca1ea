"""The visible part of the trees: by level, in pages, and the results of a search. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from arborcast.admin.topics import matching
from arborcast.directory.entries.dn import format_dn, parse_dn
from arborcast.directory.entries.mapping import write_rdn
from arborcast.topic_model.topics import TopicPath, ancestors, last_step, parent_of, split_path
from arborcast.topic_model.tree.tree import TopicTree

AT_ONCE = 200
"""Nodes of one level that are shown; a page stays small however large the tree is."""


@dataclass
class Level:
    """A part of a node's children. `more` is the child after which the next part begins, empty at the end; `earlier`:
    there are some before."""

    above: str
    nodes: list[ShownNode] = field(default_factory=list)
    more: str = ""
    earlier: bool = False


@dataclass
class ShownNode:
    """A node for display. `namespace` is empty if it is that of the parent."""

    path: TopicPath
    name: str
    namespace: str
    is_topic: bool
    code: str
    has_children: bool
    selected: bool = False
    below: Level | None = None


def level(tree: TopicTree, above: str, *, after: str = "", holding: str = "") -> Level:
    """The nodes right below `above` (empty: the virtual root) that come after `after`; or where `holding` would not be
    among the first, from that one on."""
    children: Iterable[TopicPath] = tree.children(TopicPath(above)) if above else tree.roots()
    everything = list(children)
    first = heapq.nsmallest(AT_ONCE + 1, (each for each in everything if each > after))
    earlier = bool(after)
    if holding and holding not in first[:AT_ONCE]:
        first = heapq.nsmallest(AT_ONCE + 1, (each for each in everything if each >= holding))
        earlier = True
    shown = first[:AT_ONCE]
    return Level(above, [_node(tree, each) for each in shown], shown[-1] if len(first) > AT_ONCE else "", earlier)


def unfolded(tree: TopicTree, at: str, after: str = "") -> Level:
    """The trees, unfolded down to one node and its children, or those of them that come after `after`."""
    chain = [*reversed([*ancestors(TopicPath(at))]), at] if at else []
    top = current = level(tree, "", holding=chain[0] if chain else "", after="" if chain else after)
    for number, path in enumerate(chain):
        node = next((each for each in current.nodes if each.path == path), None)
        if node is None:
            break  # it is not there any more
        node.selected = path == at
        if not node.has_children:
            break
        following = chain[number + 1] if number + 1 < len(chain) else ""
        current = node.below = level(tree, path, holding=following, after="" if following else after)
    return top


def found(tree: TopicTree, text: str) -> Level:
    """The results of a search: topics with the text in path or code, or those selected by a topic expression. Raises
    ExpressionError for an invalid one."""
    text = text.strip()
    paths: Iterator[TopicPath]
    if any(sign in text for sign in ("//", "*", "|")):
        paths = iter(matching(tree, text, {}))
    else:
        small = text.lower()
        coded = tree.paths_with_code(text)
        paths = (path for path in tree.paths() if small in path.lower() and path not in coded)
        paths = iter([*coded, *heapq.nsmallest(AT_ONCE + 1, paths, key=lambda path: (len(path), path))])
    shown = list(islice(paths, AT_ONCE + 1))
    nodes = [_node(tree, path) for path in shown[:AT_ONCE]]
    for node in nodes:
        node.has_children = False  # a list, and not a tree
    return Level("", nodes, "more" if len(shown) > AT_ONCE else "")


def dn_of(path: TopicPath, base: str) -> str:
    """The DN that the engine gives the topic's entry in the directory."""
    steps = [path, *ancestors(path)]
    return format_dn((*(write_rdn(each) for each in steps), *parse_dn(base)))


def names_of(path: TopicPath) -> tuple[str, str]:
    """(namespace, name) of the last step."""
    *_, last = split_path(path)
    return last


def trail(path: TopicPath) -> list[tuple[TopicPath, str]]:
    """The nodes above, from the top, with their names."""
    return [(each, names_of(each)[1]) for each in reversed([*ancestors(path)])]


def _node(tree: TopicTree, path: TopicPath) -> ShownNode:
    record = tree.get(path)
    written, _, name = last_step(path).rpartition("}")
    return ShownNode(
        path, name, written.lstrip("{"), record is not None, record.code if record else "", tree.has_children(path)
    )


def same_level(path: TopicPath, name: str) -> str:
    """The path with another name in the place of its last step, which keeps its namespace."""
    above = parent_of(path)
    namespace = last_step(path).rpartition("}")[0]
    step = name if name.startswith("{") or not namespace else f"{namespace}}}{name}"
    return step if above is None else f"{above}/{step}"
