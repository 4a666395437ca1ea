"""Selectors: the combined topic filters of a subscription, and their keys in the table.

A pattern with one alternative and no steps below its anchor is *simple*: one topic, or the children, descendants or
subtree of one node. Its normal form is the anchor followed by the reach, and is used as the key: a table that looks up
`a/b`, `a/b//.`, `a/*`, `a//.`, `a//*`, … finds every simple selector that matches `a/b`, and a subtree costs one key
for any number of topics below. Other selectors are linked to simple keys:

    a | b//.          several alternatives      one key each
    a//. and */b      several filters           the keys of the narrowest one; the others are tested at resolution
    a//b//.           steps below the anchor    in the trie of `rest`
    xpath:…           over the topic set        one key for each selected topic, updated with the set
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from arborcast.topic_model.expressions import XPathPattern, xpath
from arborcast.topic_model.patterns.alternatives import Alternative, Reach, is_virtual, root_anchor
from arborcast.topic_model.patterns.patterns import EVERYTHING, XPATH_SCHEME, Pattern, parse_normal
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import NAMESPACE, NCNAME, TopicPath, parent_of
from arborcast.topic_model.tree.tree import TopicTree

_STEP: Final = rf"(?:\{{[^{{}}\s]*\}})?{NCNAME}"
_PATH: Final = rf"{_STEP}(?:/{_STEP})*"
_topic_step = rf"(?:\{{{NAMESPACE}\}})?{NCNAME}"
_path = re.compile(rf"{_topic_step}(?:/{_topic_step})*")
_simple = re.compile(rf"{_PATH}(?:/\*|//\*|//\.)?|(?:\{{[^{{}}\s]*\}})?(?:\*|//\.)")

SUBTREE: Final = Reach.SUBTREE.value
DESCENDANTS: Final = Reach.DESCENDANTS.value
CHILDREN: Final = Reach.CHILDREN.value


@dataclass(frozen=True, slots=True)
class Selector:
    """A selector that is not simple. `narrowest` is linked, `others` must match as well. With XPath filters `narrowest`
    is None: the topics are taken from the tree, and no further checks are needed."""

    narrowest: Pattern | None
    others: tuple[Pattern, ...] = ()
    xpaths: tuple[XPathPattern, ...] = ()

    def simple_keys(self) -> Iterator[str]:
        """Keys that do not depend on the topics of the tree."""
        for alternative in self.narrowest.alternatives if self.narrowest else ():
            if not alternative.rest:
                yield alternative.normal

    def rest_alternatives(self) -> Iterator[Alternative]:
        """Alternatives with steps below their anchor."""
        for alternative in self.narrowest.alternatives if self.narrowest else ():
            if alternative.rest:
                yield alternative

    @property
    def path_only(self) -> bool:
        """With XPath filters: whether the selection of a topic depends on its path only; then `matches` may be
        called."""
        return all(each.path_only for each in self.xpaths)

    def matches(self, path: TopicPath) -> bool:
        """With XPath filters that are `path_only`: whether a topic of the tree passes all filters."""
        return all(other.matches(path) for other in self.others) and all(each.matches(path) for each in self.xpaths)

    def select(self, tree: TopicTree) -> frozenset[TopicPath]:
        """With XPath filters: the topics that pass all filters."""
        first, *more = self.xpaths
        selected = first.select(tree)
        for further in more:
            selected &= further.select(tree)
        if self.others:
            selected = frozenset(path for path in selected if all(other.matches(path) for other in self.others))
        return selected


def selector_of(subscription: Subscription) -> str:
    """The selector of a subscription as text; no topic filter means every topic."""
    topics = subscription.topics
    if len(topics) == 1:
        return topics[0].normal
    return subscription.selector() or EVERYTHING


def has_xpath(subscription: Subscription) -> bool:
    """Whether an XPath is among the topic filters."""
    return any(topic.normal.startswith(XPATH_SCHEME) for topic in subscription.topics)


def normals_of(subscription: Subscription) -> tuple[str, ...]:
    """The normal forms in `selector_of`, whose text cannot be split, since an XPath may contain any text."""
    return tuple(sorted({topic.normal for topic in subscription.topics})) or (EVERYTHING,)


def is_canonical(path: str) -> bool:
    """Whether this looks like a canonical topic path (lengths and repeated namespaces are not checked)."""
    return _path.fullmatch(path) is not None


def is_simple(selector: str) -> bool:
    """Whether the selector is its own key. One regular expression: a parse would cost twenty times as much."""
    return _simple.fullmatch(selector) is not None


def is_one_topic(key: str) -> bool:
    """Whether a simple key selects exactly the topic of that path."""
    return key[-1] != "*" and not key.endswith(SUBTREE)


def anchor_of(key: str) -> str:
    """The anchor of a simple key with a wildcard."""
    return key.removesuffix(SUBTREE) if key.endswith(SUBTREE) else key[:-1].rstrip("/")


def compile_selector(normals: Sequence[str]) -> Selector:
    """The selector of these normal forms, all of which must match. Raises ExpressionError."""
    xpaths = tuple(xpath.parse_normal(normal) for normal in normals if normal.startswith(XPATH_SCHEME))
    patterns = [parse_normal(normal) for normal in normals if not normal.startswith(XPATH_SCHEME)]
    if xpaths:
        return Selector(None, tuple(patterns), xpaths)
    patterns.sort(key=lambda pattern: (_width(pattern), pattern.normal))
    return Selector(patterns[0], tuple(patterns[1:]))


_WIDTHS: Final = {Reach.SELF: 1, Reach.CHILDREN: 10, Reach.DESCENDANTS: 1_000, Reach.SUBTREE: 1_000}


def _width(pattern: Pattern) -> int:
    """An estimate of the number of selected topics; only the order matters."""
    return sum(
        _WIDTHS[alternative.reach] * (100 if alternative.rest else 1) * (1_000 if is_virtual(alternative.anchor) else 1)
        for alternative in pattern.alternatives
    )


def parent_node(path: TopicPath) -> str:
    """The node above a topic; for a root topic the virtual root of its namespace."""
    return parent_of(path) or root_anchor(path)
