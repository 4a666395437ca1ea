"""Which conditions are accepted: XPath 1.0 as far as its cost is bounded by the size of the document.

- location paths downward from the payload element or its root: child, attribute and self steps, names, `*`, `.`,
  `text()`, `node()`, predicates (nested twice); at the beginning of a path one `//x`, `.//x` or `/top//x`;
- the core functions, arithmetic, `and`, `or`, literals; comparisons of which one side is a literal, a number or a
  function (`string(a) = string(b)` for two paths, whose comparison would cost the product of their nodes);
- what contains(), translate() and the like look for must be a literal (else: the product of two texts);
- not: variables, extension functions, id(), lang(), reverse and sibling axes, unions (use `or`), and `//` or paths from
  the root within predicates, except for one `.//x` (else: the square of the document, and more).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from core.errors import ConditionError
from topic_model.expressions.xpath_syntax import (
    AXES,
    COMPARISONS,
    FUNCTIONS,
    MAX_XPATH_LENGTH,
    OPERATORS,
    Token,
    tokenize,
)

MAX_NESTING: Final = 2  # predicates within predicates
MAX_PARENTHESES: Final = 16  # open at once; libxml2 parses them by recursion
MAX_LITERAL: Final = 256  # characters looked for: finding them may cost the product of both lengths

_NODE_TESTS: Final = frozenset({"comment", "node", "text"})
_SEARCHES: Final = frozenset({"contains", "starts-with", "substring-after", "substring-before", "translate"})
_LITERAL_UNIT: Final = 16


@dataclass(frozen=True, slots=True)
class Syntax:
    """What the cost of an accepted condition depends on."""

    weight: int
    power: int


def scan_condition(text: str, namespaces: Mapping[str, str]) -> Syntax:
    """Check an expression. Raises ConditionError with the position of the trouble."""
    if len(text) > MAX_XPATH_LENGTH:
        _refuse(text, MAX_XPATH_LENGTH, f"it may be {MAX_XPATH_LENGTH} characters long, not {len(text)}")
    return _Scanner(text, namespaces).scan()


def _refuse(text: str, position: int, why: str) -> NoReturn:
    start = max(0, position - 40)
    shown = f"{'…' if start else ''}{text[start : position + 40]}{'…' if position + 40 < len(text) else ''}"
    raise ConditionError(f"condition {shown!r}, position {position}: {why}")


class _Scanner:
    def __init__(self, text: str, namespaces: Mapping[str, str]) -> None:
        self._text = text
        self._namespaces = namespaces
        self._tokens = tokenize(text, lambda position, why: _refuse(text, position, why))
        self._ends: list[bool] = []  # of each token so far: whether an operand may end with it
        self._opened: list[int] = []
        self._weight = 0
        self._nesting = 0
        self._descends = False  # in the outermost predicate that is open
        self._deep = False  # in any predicate

    def scan(self) -> Syntax:
        if not self._tokens:
            _refuse(self._text, 0, "it is empty")
        for index, token in enumerate(self._tokens):
            self._ends.append(self._accept(index, token))
        if self._opened:
            _refuse(self._text, len(self._text), "it ends too early")
        return Syntax(1 + self._weight, self._nesting + self._deep)

    def _accept(self, index: int, token: Token) -> bool:
        """Check a token; whether an operand may end with it."""
        operand = index > 0 and self._ends[index - 1]
        if token.text in ("[", "("):
            self._open(index, token)
            return False
        if token.text in ("]", ")"):
            self._close(token)
            return True
        if token.kind == "literal":
            self._weight += len(token.text) // _LITERAL_UNIT
            return True
        if token.kind == "number":
            return True
        if operand and (token.text == "*" or token.text in OPERATORS):
            return False
        if token.kind == "name" or token.text in ("*", "."):
            self._weight += 1
            self._name(index, token)
            return True
        self._symbol(index, token, operand)
        return False

    def _open(self, index: int, token: Token) -> None:
        self._opened.append(index)
        brackets = self._brackets()
        self._nesting = max(self._nesting, brackets)
        if brackets > MAX_NESTING or len(self._opened) > MAX_PARENTHESES:
            self._fail(token, "nested so deep its cost has no bound")
        if token.text == "[" and brackets == 1:
            self._descends = False

    def _close(self, token: Token) -> None:
        if not self._opened or (self._tokens[self._opened[-1]].text == "[") != (token.text == "]"):
            self._fail(token, f"{token.text} closes what was not opened")
        self._opened.pop()

    def _name(self, index: int, token: Token) -> None:
        if self._text_at(index + 1) == "(":
            if token.text in _NODE_TESTS:
                return
            if token.text not in FUNCTIONS:
                self._fail(token, f"{token.text}() is not available")
            if token.text in _SEARCHES:
                self._check_search(index + 1, token)
        elif token.kind == "name":
            prefix, colon, _ = token.text.partition(":")
            if colon and not self._namespaces.get(prefix):
                known = ", ".join(sorted(filter(None, self._namespaces))) or "none"
                self._fail(token, f"the prefix {prefix!r} is not declared here (declared: {known[:200]})")

    def _check_search(self, opening: int, token: Token) -> None:
        """Every argument but the first must be one literal."""
        depth = 0
        for index in range(opening, len(self._tokens)):
            text = self._tokens[index].text
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text, 0)
            if depth == 0:
                return
            if depth == 1 and text == ",":
                wanted = self._tokens[index + 1] if index + 1 < len(self._tokens) else token
                if wanted.kind != "literal" or self._text_at(index + 2) not in (",", ")"):
                    self._fail(wanted, f"{token.text}() must be given a literal here")
                if len(wanted.text) > MAX_LITERAL + 2:
                    self._fail(wanted, f"{token.text}() looks for {MAX_LITERAL} characters at most")

    def _symbol(self, index: int, token: Token, operand: bool) -> None:
        if token.text == "$":
            self._fail(token, "there are no variables")
        if token.text == "|":
            self._fail(token, "a union costs the product of both sides; use `or`")
        if token.text == ".." or (token.kind == "axis" and token.text not in AXES):
            self._fail(token, f"{token.text} is not available: a condition looks downward, with / and //")
        if token.text == "/" and not operand and self._brackets():
            self._fail(token, "a path in a predicate cannot begin at the root")
        if token.text == "//":
            self._descend(index, token, operand)
        if token.text in COMPARISONS and not (self._scalar_ends(index - 1) or self._scalar_begins(index + 1)):
            self._fail(token, f"one side of {token.text} must be a literal, a number or a function such as string()")

    def _descend(self, index: int, token: Token, operand: bool) -> None:
        """`//` only from one node: from several, libxml2 compares what it finds with all that it has found."""
        from_itself = operand and self._text_at(index - 1) == "." and self._begins(index - 1)
        if self._brackets():
            if not from_itself or self._descends:
                self._fail(token, "a predicate may look for descendants only once, and only with .//")
            self._descends = self._deep = True
            return
        # The root has one element, so `/name` is one node too.
        from_top = operand and self._text_at(index - 2) == "/" and self._begins(index - 2) and self._is_step(index - 1)
        if operand and not from_itself and not from_top:
            self._fail(token, "// may only begin a path, as //x, .//x or /top//x")

    def _begins(self, index: int) -> bool:
        """Whether a path begins with the token at this place."""
        return index == 0 or (not self._ends[index - 1] and self._text_at(index - 1) not in ("/", "//", "::", "@"))

    def _is_step(self, index: int) -> bool:
        return self._tokens[index].kind == "name" or self._tokens[index].text in ("*", ".")

    def _scalar_ends(self, end: int) -> bool:
        """Whether no node set can end here. No function that is available returns one."""
        if end < 0 or self._tokens[end].text != ")":
            return end >= 0 and self._tokens[end].kind in ("literal", "number")
        depth = 0
        for index in range(end, 0, -1):
            depth += {")": 1, "(": -1}.get(self._tokens[index].text, 0)
            if depth == 0:
                return self._tokens[index - 1].text in FUNCTIONS and self._begins(index - 1)
        return False

    def _scalar_begins(self, start: int) -> bool:
        """Whether no node set can begin here."""
        if start >= len(self._tokens):
            return True  # libxml2 will say what is wrong
        token = self._tokens[start]
        function = token.kind == "name" and token.text in FUNCTIONS and self._text_at(start + 1) == "("
        return function or token.kind in ("literal", "number")

    def _brackets(self) -> int:
        return sum(self._tokens[index].text == "[" for index in self._opened)

    def _text_at(self, index: int) -> str:
        return self._tokens[index].text if 0 <= index < len(self._tokens) else ""

    def _fail(self, token: Token, why: str) -> NoReturn:
        _refuse(self._text, token.start, why)
