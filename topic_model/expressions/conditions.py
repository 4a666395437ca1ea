"""Conditions: boolean XPath over a payload or over a producer's properties, in a part of XPath 1.0 of bounded cost.

A subscriber's expression runs in our process for every notification of its topics, over documents that another client
has sent, and libxml2 cannot be stopped. What is accepted therefore costs about the size of the document for each token,
times its depth for predicates:

- location paths downward from the payload element or its root: child, attribute and self steps, names, `*`, `.`,
  `text()`, `node()`, predicates (nested twice); at the beginning of a path one `//x`, `.//x` or `/top//x`;
- the core functions, arithmetic, `and`, `or`, literals; comparisons of which one side is a literal, a number or a
  function (`string(a) = string(b)` for two paths, whose comparison would cost the product of their nodes);
- what contains(), translate() and the like look for must be a literal (else: the product of two texts);
- not: variables, extension functions, id(), lang(), reverse and sibling axes, unions (use `or`), and `//` or paths from
  the root within predicates, except for one `.//x` (else: the square of the document, and more).

What is left is bounded by a budget: an evaluation whose estimate is beyond it is not begun. The same conditions are
checked at Subscribe and evaluated by the workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn, Protocol, cast

from lxml import etree

from arborcast.core.errors import ConditionError, ContentExpressionError, ProducerExpressionError
from arborcast.core.xml import xml_parser
from arborcast.topic_model.expressions.xpath_syntax import MAX_XPATH_LENGTH, NODE_TESTS, Scanner, Token, Words
from arborcast.topic_model.subscriptions import XPathFilter

XPATH_1: Final = "http://www.w3.org/TR/1999/REC-xpath-19991116"
"""The one dialect that conditions are kept in."""

MAX_LITERAL: Final = 256  # characters looked for: finding them may cost the product of both lengths

_LITERAL_UNIT: Final = 16
_SEARCHES: Final = frozenset({"contains", "starts-with", "substring-after", "substring-before", "translate"})

_WORDS: Final = Words(
    too_long=f"it may be {MAX_XPATH_LENGTH} characters long, not",
    nested="nested too deeply: its cost has no bound",
    variables="there are no variables",
    union="a union costs the product of both sides; use `or`",
    upward="is not available: a condition looks downward",
    unavailable="",
    comparison=" such as string()",
    roots=("/",),
)

# Estimated in bytes looked at; about 10 ns each, so half a second at the very most. 800 bytes need about 2,000.
BUDGET: Final = 50_000_000

PER_MS: Final = 100_000
"""So much of it is looked at in a millisecond, by estimate."""

# Texts that are handed on for each level that they lie below cost a sixteenth of what reading a new element does.
_LEVELS: Final = 16

_MAX_DEPTH: Final = 256

_parser = xml_parser()


class Unanswerable(ConditionError):
    """The condition has no answer for this document: a type that does not fit, or too much work."""


class _Compiled(Protocol):
    def __call__(self, context: etree._Element, /) -> bool: ...


class Document:
    """A parsed document with what the estimate needs."""

    def __init__(self, root: etree._Element, data: bytes) -> None:
        self.root = root
        self.size = len(data)
        # At least as many as there are levels; libxml2 takes no more than 256.
        self._depth = min(_MAX_DEPTH, 1 + data.count(b"</"))
        self._exact = False

    def depth(self, exact: bool) -> int:
        """How many levels of elements there are; without `exact` it may be more than there really are."""
        if exact and not self._exact:
            self._exact = True
            self._depth = 0
            level = [self.root]
            while level:
                self._depth += 1
                level = [child for element in level for child in element]
        return self._depth


@dataclass(frozen=True, slots=True)
class Condition:
    """A checked and compiled expression. It walks the document `weight` times at most; `power` is the depth's part."""

    text: str
    weight: int
    power: int
    _compiled: _Compiled = field(compare=False, repr=False)

    def cost(self, document: Document) -> float:
        """What asking costs, by estimate; 0 where it would take too long and is not asked."""
        cost = self._estimate(document)
        return cost if cost <= BUDGET else 0.0

    def holds(self, document: Document) -> bool:
        """The answer, as XPath's boolean() would give it. Raises Unanswerable."""
        if self._estimate(document) > BUDGET:
            raise Unanswerable(f"the condition {self.text[:100]!r} would take too long on {document.size} bytes")
        try:
            return self._compiled(document.root)
        except etree.XPathError as error:
            raise Unanswerable(f"the condition {self.text[:100]!r} cannot be evaluated: {error}") from error

    def _estimate(self, document: Document) -> float:
        # How deep a document really is costs a walk: asked only where it matters.
        cost = self._at_depth(document, exact=False)
        return cost if cost <= BUDGET else self._at_depth(document, exact=True)

    def _at_depth(self, document: Document, exact: bool) -> float:
        return self.weight * document.size * (1 + document.depth(exact) / _LEVELS) ** self.power


def parse_document(data: bytes) -> Document:
    """Read a document without doing what it says: no DTD, no entities, no network. Raises Unanswerable."""
    try:
        root = etree.fromstring(data, _parser)
    except etree.XMLSyntaxError as error:
        raise Unanswerable(f"the document is not well-formed XML: {error.msg}") from error
    if root.getroottree().docinfo.internalDTD is not None:
        raise Unanswerable("the document has a DOCTYPE")
    return Document(root, data)


def check_content(expression: XPathFilter) -> None:
    """Raises ContentExpressionError when this is no wsnt:MessageContent that can be honoured."""
    try:
        compile_condition(expression)
    except ConditionError as error:
        raise ContentExpressionError(str(error)) from error


def check_producer(expression: XPathFilter) -> None:
    """Raises ProducerExpressionError when this is no wsnt:ProducerProperties that can be honoured."""
    try:
        compile_condition(expression)
    except ConditionError as error:
        raise ProducerExpressionError(str(error)) from error


def compile_condition(expression: XPathFilter) -> Condition:
    """Check and compile. Raises ConditionError, which says where the trouble is."""
    if expression.dialect != XPATH_1:
        raise ConditionError(f"the dialect {expression.dialect[:200]!r} is not supported; use {XPATH_1}")
    weight, power = _Scanner(expression.text, expression.namespaces).cost()
    try:
        _xpath(expression.text, expression.namespaces)  # legal by itself, and not just in parentheses
        # lxml leaves the document, which `/` selects, out of what it returns: so libxml2 gives the answer itself.
        compiled = _xpath(f"boolean({expression.text})", expression.namespaces)
        # Wrong types and numbers of arguments show only when it runs. A type may also be wrong only in a predicate
        # that this sample does not reach: then the condition is unanswerable, later.
        compiled(etree.Element("sample"))
    except (etree.XPathError, ValueError) as error:  # ValueError: characters that XML does not have
        raise ConditionError(f"the condition {expression.text[:100]!r} is not a legal XPath 1.0: {error}") from error
    return Condition(expression.text, weight, power, cast(_Compiled, compiled))


def _xpath(text: str, namespaces: Mapping[str, str]) -> etree.XPath:
    # regexp: an lxml extension, on by default, which runs patterns of the peer's without a bound.
    return etree.XPath(text, namespaces=_prefixed(namespaces) or None, regexp=False, smart_strings=False)


def _prefixed(namespaces: Mapping[str, str]) -> dict[str, str]:
    """XPath 1.0 has no default namespace: a name without a prefix is in none."""
    return {prefix: namespace for prefix, namespace in namespaces.items() if prefix and namespace}


class _Scanner(Scanner):
    def __init__(self, text: str, namespaces: Mapping[str, str]) -> None:
        self._namespaces = namespaces
        super().__init__(text, _WORDS)

    def cost(self) -> tuple[int, int]:
        """Check the expression: its weight and its power, see Condition. Raises ConditionError."""
        if not self.tokens:
            self.refuse(0, "it is empty")
        while len(self.ends) < len(self.tokens):
            self.accept()
        if self.opened:
            self.refuse(len(self.text), "it ends too early")
        literals = sum(len(each.text) // _LITERAL_UNIT for each in self.tokens if each.kind == "literal")
        steps = sum(
            ends and (token.kind == "name" or token.text in ("*", "."))
            for token, ends in zip(self.tokens, self.ends, strict=True)
        )
        return 1 + literals + steps, self.nesting + self.descends

    def refuse(self, position: int, why: str) -> NoReturn:
        start = max(0, position - 40)
        after = "…" if position + 40 < len(self.text) else ""
        shown = f"{'…' if start else ''}{self.text[start : position + 40]}{after}"
        raise ConditionError(f"condition {shown!r}, position {position}: {why}")

    def resolve(self, prefix: str, token: Token) -> None:
        if not self._namespaces.get(prefix):
            known = ", ".join(sorted(filter(None, self._namespaces))) or "none"
            self.fail(token, f"the prefix {prefix!r} is not declared here (declared: {known[:200]})")

    def call(self, index: int, token: Token) -> None:
        if token.text in NODE_TESTS:
            return
        super().call(index, token)
        if token.text in _SEARCHES:
            self._check_search(index + 1, token)

    def symbol(self, index: int, token: Token, operand: bool) -> None:
        # `//` only from one node, also where a path begins. The root has one element, so `/name` is one node too.
        if token.text == "//" and operand and not (self.brackets() or self.from_itself(index)):
            step = self.tokens[index - 1]
            one_step = step.kind == "name" or step.text in ("*", ".")
            if not (one_step and self.text_at(index - 2) == "/" and self.begins(index - 2)):
                self.fail(token, "// may only begin a path, as //x, .//x or /top//x")
        super().symbol(index, token, operand)

    def _check_search(self, opening: int, token: Token) -> None:
        """Every argument but the first must be one literal."""
        depth = 0
        for index in range(opening, len(self.tokens)):
            text = self.tokens[index].text
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text, 0)
            if depth == 0:
                return
            if depth == 1 and text == ",":
                wanted = self.tokens[index + 1] if index + 1 < len(self.tokens) else token
                if wanted.kind != "literal" or self.text_at(index + 2) not in (",", ")"):
                    self.fail(wanted, f"{token.text}() must be given a literal here")
                if len(wanted.text) > MAX_LITERAL + 2:
                    self.fail(wanted, f"{token.text}() looks for {MAX_LITERAL} characters at most")
