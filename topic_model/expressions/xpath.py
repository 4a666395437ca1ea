"""The XPath dialect: location paths over the TopicSet document, in a subset of XPath 1.0 with bounded cost.

A subscriber's XPath runs repeatedly in the engine's processes, over up to a million topics. With full XPath 1.0 an
expression can run for hours (node sets are merged and compared in quadratic time), so only downward axes are accepted:

- unions of location paths of names, `*`, `.`, `/`, `//` with predicates; the context node is the TopicSet element;
- in predicates: child, attribute, self and descendant steps, literals, arithmetic, `and`/`or`, the core functions,
  and comparisons with a literal or a number;
- not: variables, extension functions, absolute paths in predicates, reverse and sibling axes, unions in predicates.

libxml2 evaluates one `//` at a time; the cost is about the number of visited topics times their depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NoReturn, Protocol, cast

import msgspec
from lxml import etree

from arborcast.core.errors import ExpressionError
from arborcast.topic_model.expressions.namespaces import Declarations
from arborcast.topic_model.expressions.xpath_syntax import MAX_XPATH_LENGTH, Scanner, SyntaxMessages, Token, compiled
from arborcast.topic_model.namespaces import WSTOP
from arborcast.topic_model.patterns.grammar import refuse
from arborcast.topic_model.patterns.patterns import XPATH_SCHEME
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree, path_of, topic_set


class _Normal(msgspec.Struct, frozen=True):
    namespaces: dict[str, str]
    text: str


class _Segment(Protocol):
    """A compiled XPath that selects elements."""

    def __call__(self, context: etree._Element, /) -> list[etree._Element]: ...


MAX_BRANCHES: Final = 16  # alternatives of a union: each walks the topic set

_WORDS: Final = SyntaxMessages(
    too_long=f"an XPath may be {MAX_XPATH_LENGTH} characters long, this one is",
    nested="the predicates of an XPath are nested too deeply",
    variables="an XPath of topics has no variables",
    union="a union is not allowed in a predicate; use `or`",
    upward="is not allowed in an XPath of topics, which has downward axes only",
    unavailable=" in an XPath of topics",
    comparison="",
    roots=("/", "//"),
)

_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(_Normal)

_SAMPLE: Final = TopicPath("sample/topic")


@dataclass(frozen=True, slots=True)
class XPathPattern:
    """A checked and compiled XPath over the topic set. Compared by text and declarations."""

    normal: str
    text: str
    namespaces: tuple[tuple[str, str], ...]
    path_only: bool
    """Whether the selection of a topic depends on its path only; then `matches` may be called."""
    _segments: tuple[tuple[_Segment, ...], ...] = field(compare=False, repr=False)

    def select(self, tree: TopicTree) -> frozenset[TopicPath]:
        """The selected topics of the tree; for the thread that changes it."""
        topics = tree.topic_set()
        return frozenset(path for path in topics.paths_of(self._select(topics.root)) if path in tree)

    def matches(self, path: TopicPath) -> bool:
        """Whether the topic is selected. Raises ValueError unless `path_only`."""
        if not self.path_only:
            raise ValueError(f"{self.text!r} depends on more than a topic's path: use select")
        return path in map(path_of, self._select(_topic_set_of(path)))

    def _select(self, root: etree._Element) -> set[etree._Element]:
        selected: set[etree._Element] = set()
        for segments in self._segments:
            # A type error that the sample at parse time did not reach: such a path selects nothing.
            with suppress(etree.XPathError):
                selected.update(_evaluate(segments, root))
        return selected - {root}


@lru_cache(maxsize=1)
def _topic_set_of(path: TopicPath) -> etree._Element:
    """A topic set with one topic, which is tested by many expressions."""
    return topic_set((path,))


@lru_cache(maxsize=256)
def _kept(_normal: str) -> list[XPathPattern]:
    """The place of a pattern in the cache, empty at first."""
    return []


def parse_xpath(text: str, namespaces: Mapping[str, str]) -> XPathPattern:
    """Check and compile an expression with the declarations in scope, and keep it for `parse_normal`. Raises
    ExpressionError."""
    scanner = _Scanner(text, namespaces)
    branches, used = scanner.branches(), scanner.used
    segments = tuple(_compile(branch, used, text) for branch in branches)
    for branch in branches:
        for predicate in branch.predicates:
            _try_predicate(predicate, used, text)
    stripped = text.strip()
    normal = XPATH_SCHEME + _encoder.encode(_Normal(used, stripped)).decode()
    path_only = all(branch.path_only for branch in branches)
    pattern = XPathPattern(normal, stripped, tuple(sorted(used.items())), path_only, segments)
    _kept(normal)[:] = [pattern]
    return pattern


def parse_normal(normal: str) -> XPathPattern:
    """The pattern of a normal form, cached. Raises ExpressionError."""
    if kept := _kept(normal):
        return kept[0]
    try:
        parts = _decoder.decode(normal.removeprefix(XPATH_SCHEME))
    except msgspec.DecodeError as error:
        raise ExpressionError(f"not the normal form of an XPath: {normal[:100]!r}: {error}") from error
    return parse_xpath(parts.text, parts.namespaces)


def _compile(branch: _Branch, namespaces: Mapping[str, str], text: str) -> tuple[_Segment, ...]:
    first, *others = branch.segments
    try:
        return (_xpath(branch.start + first, namespaces), *(_xpath(f".//{segment}", namespaces) for segment in others))
    except (etree.XPathSyntaxError, ValueError) as error:
        refuse(text, branch.position, f"not a legal XPath: {error}")


def _try_predicate(predicate: str, namespaces: Mapping[str, str], text: str) -> None:
    """Run a predicate on a sample: wrong types and numbers of arguments are found only at run time."""
    try:
        for sample in topic_set([_SAMPLE]).iter():
            _xpath(f"self::*[{predicate}]", namespaces)(sample)
    except (etree.XPathError, ValueError) as error:
        refuse(text, max(0, text.find(predicate)), f"not a legal XPath predicate: {error}")


def _xpath(text: str, namespaces: Mapping[str, str]) -> _Segment:
    # Location paths of child steps select elements only, which lxml's types do not express.
    return cast(_Segment, compiled(text, namespaces))


def _evaluate(segments: tuple[_Segment, ...], root: etree._Element) -> list[etree._Element]:
    """The elements that the segments select, each evaluated below the results of the previous one."""
    nodes = [root]
    for number, segment in enumerate(segments):
        found: list[etree._Element] = []
        for node in nodes if number == 0 else _topmost(nodes):
            found.extend(segment(node))
        nodes = found
    return nodes


def _topmost(nodes: list[etree._Element]) -> list[etree._Element]:
    """The nodes without an ancestor among the others: `//` from them selects the same elements, each once."""
    if len(nodes) < 2:
        return nodes
    all_nodes = set(nodes)
    return [node for node in nodes if not any(above in all_nodes for above in node.iterancestors())]


@dataclass(frozen=True, slots=True)
class _Branch:
    """One location path: `start` is "" (from the TopicSet element), "/" or "//"; segments were joined by `//`."""

    start: str
    segments: tuple[str, ...]
    predicates: tuple[str, ...]
    path_only: bool
    position: int


class _Scanner(Scanner):
    """Location paths with predicates, joined by `|`."""

    def __init__(self, text: str, namespaces: Mapping[str, str]) -> None:
        self._declarations = Declarations(namespaces)
        super().__init__(text, _WORDS)

    @property
    def used(self) -> dict[str, str]:
        return self._declarations.used

    def refuse(self, position: int, why: str) -> NoReturn:
        refuse(self.text, position, why)

    def resolve(self, prefix: str, token: Token) -> None:
        self._declarations.resolve(prefix, self.text, token.start)

    def branches(self) -> tuple[_Branch, ...]:
        found = [self._branch()]
        while token := self._next():
            if token.text != "|":
                self.fail(token, f"{token.text} is not allowed here; /, //, | or a predicate may follow a step")
            if len(found) == MAX_BRANCHES:
                self.fail(token, f"an XPath may have {MAX_BRANCHES} alternatives")
            self.ends.append(False)
            found.append(self._branch())
        return tuple(found)

    def _branch(self) -> _Branch:
        position = self._needed().start
        start = self._take_slashes()
        segments: list[str] = []
        predicates: list[str] = []
        path_only = True
        segment_start = self._needed().start
        while True:
            self._node_test()
            found = self._predicates()
            predicates.extend(self.text[inside[0].end : inside[-1].start] for inside in found)
            end = self.tokens[len(self.ends) - 1].end
            separator = self._take_slashes()
            # Of the predicates only [@wstop:topic="true"] at the end depends on the path alone.
            path_only = path_only and (not found or (not separator and self._test_topic_only(found)))
            if separator == "/":
                continue
            segments.append(self.text[segment_start:end])
            if not separator:
                return _Branch(start, tuple(segments), tuple(predicates), path_only, position)
            segment_start = self._needed().start

    def _node_test(self) -> None:
        token = self._needed()
        if token.kind == "name":
            if self.text_at(len(self.ends) + 1) == "(":
                self.fail(token, "an XPath of topics must be a location path, not a function")
            prefix, colon, _ = token.text.partition(":")
            if colon:
                self.resolve(prefix, token)
        elif token.text not in ("*", "."):
            self.fail(token, f"a name, * or . is needed here, not {token.text}")
        self.ends.append(True)

    def _take_slashes(self) -> str:
        token = self._next()
        if token is None or token.text not in ("/", "//"):
            return ""
        self.ends.append(False)
        return token.text

    def _predicates(self) -> list[list[Token]]:
        """Check the following predicates; returns the tokens of each, with its brackets."""
        found = []
        while self.text_at(len(self.ends)) == "[":
            first = len(self.ends)
            self.accept()
            while self.opened:
                self._needed()
                self.accept()
            found.append(self.tokens[first : len(self.ends)])
        return found

    def _test_topic_only(self, found: list[list[Token]]) -> bool:
        if len(found) > 1 or len(found[0]) != 6:
            return False
        _, at, name, equals, value, _ = found[0]
        prefix, _, local = name.text.partition(":")
        return (
            (at.text, local, equals.text, value.text[1:-1]) == ("@", "topic", "=", "true")
            and value.kind == "literal"
            and self.used.get(prefix) == WSTOP
        )

    def _next(self) -> Token | None:
        return self.tokens[len(self.ends)] if len(self.ends) < len(self.tokens) else None

    def _needed(self) -> Token:
        token = self._next()
        if token is None:
            self.refuse(len(self.text), "the expression ends too early")
        return token
