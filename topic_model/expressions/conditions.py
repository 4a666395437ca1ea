"""Conditions: boolean XPath over a payload or over a producer's properties, in a part of XPath 1.0 of bounded cost.

A subscriber's expression runs in the engine's processes for every notification of its topics, over documents of another
client, and libxml2 cannot be interrupted. So each token of an accepted expression costs about the size of the document,
times its depth for predicates. Accepted:

- location paths downward from the payload element or its root: child, attribute and self steps, names, `*`, `.`,
  `text()`, `node()`, predicates (nested twice); at the beginning of a path one `//x`, `.//x` or `/top//x`;
- the core functions, arithmetic, `and`, `or`, literals; comparisons with a literal, a number or a function on one side
  (`string(a) = string(b)` for two paths, whose comparison would cost the product of their nodes);
- a literal as the searched text of contains(), translate() and similar functions (else: the product of two texts).

Refused: variables, extension functions, id(), lang(), reverse and sibling axes, unions (use `or`), and `//` or paths
from the root within predicates, except for one `.//x` (else: the square of the document, and more).

In addition, an evaluation is not started if its estimated cost exceeds a budget. Subscribe checks the same conditions
that the workers evaluate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from lxml import etree

from arborcast.core.errors import ConditionError, ContentExpressionError
from arborcast.core.xml import parse_xml, xml_parser
from arborcast.topic_model.expressions.xpath_syntax import (
    MAX_XPATH_LENGTH,
    NODE_TESTS,
    Scanner,
    SyntaxMessages,
    Token,
    compiled,
)
from arborcast.topic_model.subscriptions import XPathFilter

XPATH_1: Final = "http://www.w3.org/TR/1999/REC-xpath-19991116"
"""The dialect of stored conditions."""

MAX_LITERAL: Final = 256  # characters of a searched text: a search may cost the product of both lengths

_LITERAL_UNIT: Final = 16
_SEARCHES: Final = frozenset({"contains", "starts-with", "substring-after", "substring-before", "translate"})

_WORDS: Final = SyntaxMessages(
    too_long=f"it may be {MAX_XPATH_LENGTH} characters long, not",
    nested="nested too deeply: its cost has no bound",
    variables="there are no variables",
    union="a union costs the product of both sides; use `or`",
    upward="is not available: a condition has downward axes only",
    unavailable="",
    comparison=" such as string()",
    roots=("/",),
)

# In processed bytes, about 10 ns each: half a second at most. A document of 800 bytes needs about 2,000.
BUDGET: Final = 50_000_000

PER_MS: Final = 100_000
"""Processed bytes per millisecond, estimated."""

# Passing a text to an ancestor level costs a sixteenth of reading a new element.
_LEVELS: Final = 16

_MAX_DEPTH: Final = 256

_parser = xml_parser()


class EvaluationError(ConditionError):
    """The condition cannot be evaluated for this document: a type error, or the budget."""


class Document:
    """A parsed document, with its size and depth for the estimate."""

    def __init__(self, root: etree._Element, data: bytes) -> None:
        self.root = root
        self.size = len(data)
        # An upper bound of the levels; libxml2 accepts at most 256.
        self._depth = min(_MAX_DEPTH, 1 + data.count(b"</"))
        self._exact = False

    def depth(self, exact: bool) -> int:
        """The number of levels of elements; without `exact` an upper bound."""
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
    """A checked and compiled expression. It walks the document at most `weight` times; `power` is the exponent of the
    depth in its cost."""

    text: str
    weight: int
    power: int
    _compiled: etree.XPath = field(compare=False, repr=False)

    def cost(self, document: Document) -> float:
        """The estimated cost of an evaluation; 0 if it exceeds the budget and is not made."""
        cost = self._estimate(document)
        return cost if cost <= BUDGET else 0.0

    def holds(self, document: Document) -> bool:
        """The result as XPath's boolean(). Raises EvaluationError."""
        if self._estimate(document) > BUDGET:
            raise EvaluationError(f"the condition {self.text[:100]!r} would take too long on {document.size} bytes")
        try:
            return self._compiled(document.root) is True
        except etree.XPathError as error:
            raise EvaluationError(f"the condition {self.text[:100]!r} cannot be evaluated: {error}") from error

    def _estimate(self, document: Document) -> float:
        # The exact depth costs a walk, so it is computed only if needed.
        cost = self._at_depth(document, exact=False)
        return cost if cost <= BUDGET else self._at_depth(document, exact=True)

    def _at_depth(self, document: Document, exact: bool) -> float:
        return self.weight * document.size * (1 + document.depth(exact) / _LEVELS) ** self.power


def parse_document(data: bytes) -> Document:
    """Parse an untrusted document: no DTD, no entities, no network. Raises EvaluationError."""
    try:
        root = parse_xml(data, _parser)
    except etree.XMLSyntaxError as error:
        raise EvaluationError(f"the document is not well-formed XML: {error.msg}") from error
    if root.getroottree().docinfo.internalDTD is not None:
        raise EvaluationError("the document has a DOCTYPE")
    return Document(root, data)


def check_conditions(conditions: Iterable[XPathFilter], refusal: type[ConditionError] = ContentExpressionError) -> None:
    """Raises `refusal` for an invalid or unsupported one."""
    try:
        for each in conditions:
            compile_condition(each)
    except ConditionError as error:
        raise refusal(str(error)) from error


def compile_condition(expression: XPathFilter) -> Condition:
    """Check and compile. Raises ConditionError with the position."""
    if expression.dialect != XPATH_1:
        raise ConditionError(f"the dialect {expression.dialect[:200]!r} is not supported; use {XPATH_1}")
    weight, power = _Scanner(expression.text, expression.namespaces).cost()
    try:
        compiled(expression.text, expression.namespaces)  # must be legal without the parentheses too
        # lxml drops the document node, which `/` selects, from results; so libxml2 converts to a boolean.
        condition = compiled(f"boolean({expression.text})", expression.namespaces)
        # Wrong types and numbers of arguments are found only at run time. A wrong type in a predicate that this sample
        # does not reach makes the condition unanswerable later.
        condition(etree.Element("sample"))
    except (etree.XPathError, ValueError) as error:
        raise ConditionError(f"the condition {expression.text[:100]!r} is not a legal XPath 1.0: {error}") from error
    return Condition(expression.text, weight, power, condition)


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
        # `//` only from one node, also at the start of a path. The root has one element, so `/name` is one node too.
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
                literal = self.tokens[index + 1] if index + 1 < len(self.tokens) else token
                if literal.kind != "literal" or self.text_at(index + 2) not in (",", ")"):
                    self.fail(literal, f"{token.text}() requires a literal here")
                if len(literal.text) > MAX_LITERAL + 2:
                    self.fail(literal, f"the literal of {token.text}() may have {MAX_LITERAL} characters at most")
