"""The XPath dialect: location paths over the TopicSet document, in a part of XPath 1.0 whose cost is bounded.

A subscriber's XPath runs in our process, over up to a million topics, again and again. All of XPath 1.0 can be made to
take hours there (node sets are merged and compared in quadratic time), so what is accepted only looks downward:

- unions of location paths of names, `*`, `.`, `/`, `//` with predicates; the context node is the TopicSet element;
- in predicates: child, attribute, self and descendant steps, literals, arithmetic, `and`/`or`, the core functions,
  and comparisons with a literal or a number;
- not: variables, functions of others, absolute paths in predicates, reverse and sibling axes, unions in predicates.

What remains is evaluated by libxml2 one `//` at a time, and costs about the topics it passes times their depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol, cast

import msgspec
from lxml import etree

from core.errors import ExpressionError
from topic_model.expressions.xpath_syntax import Branch, scan_xpath
from topic_model.patterns.grammar import refuse
from topic_model.patterns.patterns import XPATH_SCHEME
from topic_model.topics import TopicPath
from topic_model.tree.tree import TopicTree, path_of, topic_set


class _Normal(msgspec.Struct, frozen=True):
    namespaces: dict[str, str]
    text: str


class _Segment(Protocol):
    """A compiled XPath that selects elements."""

    def __call__(self, context: etree._Element, /) -> list[etree._Element]: ...


_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(_Normal)

_SAMPLE: Final = TopicPath("sample/topic")


@dataclass(frozen=True, slots=True)
class XPathPattern:
    """A checked and compiled XPath over the topic set. Equal when text and declarations are."""

    normal: str
    text: str
    namespaces: tuple[tuple[str, str], ...]
    path_only: bool
    """Whether a topic's own path decides, whatever other topics there are: then `matches` may be asked."""
    _segments: tuple[tuple[_Segment, ...], ...] = field(compare=False, repr=False)

    def select(self, tree: TopicTree) -> frozenset[TopicPath]:
        """The topics of the tree that the expression selects. Builds the topic set, so ask only when it changed."""
        return frozenset(path for path in self._select(tree.paths()) if path in tree)

    def matches(self, path: TopicPath) -> bool:
        """Whether the topic is selected. Only where `path_only`; else ValueError, because the tree must be asked."""
        if not self.path_only:
            raise ValueError(f"{self.text!r} looks at more than a topic's path: use select")
        return path in self._select((path,))

    def _select(self, paths: Iterable[TopicPath]) -> set[TopicPath]:
        root = topic_set(paths)
        selected: set[TopicPath] = set()
        for segments in self._segments:
            try:
                selected.update(path_of(element) for element in _evaluate(segments, root) if element is not root)
            except etree.XPathError:
                # A type error in a branch that the sample at parse time did not reach: such a path selects nothing.
                continue
        return selected


def parse_xpath(text: str, namespaces: Mapping[str, str]) -> XPathPattern:
    """Check and compile an expression with the declarations in scope. Raises ExpressionError."""
    branches, used = scan_xpath(text, namespaces)
    segments = tuple(_compile(branch, used, text) for branch in branches)
    for branch in branches:
        for predicate in branch.predicates:
            _try_predicate(predicate, used, text)
    stripped = text.strip()
    normal = XPATH_SCHEME + _encoder.encode(_Normal(used, stripped)).decode()
    path_only = all(branch.path_only for branch in branches)
    return XPathPattern(normal, stripped, tuple(sorted(used.items())), path_only, segments)


@lru_cache(maxsize=256)
def parse_normal(normal: str) -> XPathPattern:
    """The pattern behind a normal form; the result is shared. Raises ExpressionError."""
    try:
        parts = _decoder.decode(normal.removeprefix(XPATH_SCHEME))
    except msgspec.DecodeError as error:
        raise ExpressionError(f"not the normal form of an XPath: {normal[:100]!r}: {error}", normal[:1000]) from error
    return parse_xpath(parts.text, parts.namespaces)


def _compile(branch: Branch, namespaces: Mapping[str, str], text: str) -> tuple[_Segment, ...]:
    first, *others = branch.segments
    try:
        return (
            _xpath(branch.start + first, namespaces),
            *(_xpath(f".//{segment}", namespaces) for segment in others),
        )
    except (etree.XPathSyntaxError, ValueError) as error:  # ValueError: characters that XML does not have
        refuse(text, branch.position, f"not a legal XPath: {error}")


def _try_predicate(predicate: str, namespaces: Mapping[str, str], text: str) -> None:
    """Wrong types and numbers of arguments show only when a predicate runs: let it run once, on a sample."""
    try:
        for sample in topic_set([_SAMPLE]).iter():
            _xpath(f"self::*[{predicate}]", namespaces)(sample)
    except (etree.XPathError, ValueError) as error:
        refuse(text, max(0, text.find(predicate)), f"not a legal XPath predicate: {error}")


def _xpath(text: str, namespaces: Mapping[str, str]) -> _Segment:
    # regexp: an lxml extension, on by default, which runs patterns of the peer's without a bound.
    compiled = etree.XPath(text, namespaces=dict(namespaces) or None, regexp=False, smart_strings=False)
    # lxml cannot know it, but location paths of child steps select elements and nothing else.
    return cast(_Segment, compiled)


def _evaluate(segments: tuple[_Segment, ...], root: etree._Element) -> list[etree._Element]:
    """The elements that the segments lead to, each reached from the last through one `//`."""
    nodes = [root]
    for number, segment in enumerate(segments):
        found: list[etree._Element] = []
        for node in nodes if number == 0 else _topmost(nodes):
            found.extend(segment(node))
        nodes = found
    return nodes


def _topmost(nodes: list[etree._Element]) -> list[etree._Element]:
    """Those that lie below no other one: `//` from them reaches all that it reaches from all, and nothing twice."""
    if len(nodes) < 2:
        return nodes
    all_nodes = set(nodes)
    return [node for node in nodes if not any(above in all_nodes for above in node.iterancestors())]
