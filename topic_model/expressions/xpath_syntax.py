"""Which XPath expressions are accepted: tokens, and the rules that keep the cost bounded (reasons in `xpath`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from topic_model.expressions.namespaces import Declarations
from topic_model.patterns.grammar import refuse
from topic_model.topics import NCNAME
from topic_model.tree.tree import WSTOP

MAX_XPATH_LENGTH: Final = 4096  # characters

MAX_TOKENS: Final = 256  # each may be looked at for everything there is

FUNCTIONS: Final = frozenset(
    (
        "boolean",
        "ceiling",
        "concat",
        "contains",
        "count",
        "false",
        "floor",
        "last",
        "local-name",
        "name",
        "namespace-uri",
        "normalize-space",
        "not",
        "number",
        "position",
        "round",
        "starts-with",
        "string",
        "string-length",
        "substring",
        "substring-after",
        "substring-before",
        "sum",
        "translate",
        "true",
    )
)

AXES: Final = frozenset({"attribute", "child", "self"})

OPERATORS: Final = frozenset({"and", "or", "div", "mod"})

COMPARISONS: Final = frozenset({"=", "!=", "<", "<=", ">", ">="})

_token = re.compile(
    rf"""\s*(?:
      (?P<literal> "[^"]*" | '[^']*' )
    | (?P<number> [0-9]+(?:\.[0-9]*)? | \.[0-9]+ )
    | (?P<axis> {NCNAME} (?=\s*::) )
    | (?P<name> {NCNAME}(?::(?:{NCNAME}|\*))? )
    | (?P<symbol> // | \.\. | :: | != | <= | >= | [][/|()@,.$*+=<>-] )
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token with its kind (a group of the regular expression) and where it stands in the text."""

    kind: str
    text: str
    start: int
    end: int


def tokenize(text: str, refuse: Callable[[int, str], NoReturn]) -> list[Token]:
    """The tokens of an expression; `refuse` is told where and why there is none."""
    text = text.rstrip()
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _token.match(text, position)
        if match is None or match.lastgroup is None:
            position += len(text[position:]) - len(text[position:].lstrip())
            refuse(position, f"{text[position]!r} cannot stand in an XPath")
        if len(tokens) == MAX_TOKENS:
            refuse(position, f"an XPath may have {MAX_TOKENS} names, signs and literals")
        kind = match.lastgroup
        tokens.append(Token(kind, match.group(kind), match.start(kind), match.end(kind)))
        position = match.end()
    return tokens


MAX_BRANCHES: Final = 16  # alternatives of a union: each walks the topic set

MAX_NESTING: Final = 2  # predicates within predicates: each level multiplies the cost by the depth of the tree

MAX_PARENTHESES: Final = 16  # open at once; libxml2 parses them by recursion


@dataclass(frozen=True, slots=True)
class Branch:
    """One location path: `start` is "" (from the TopicSet element), "/" or "//"; segments were joined by `//`."""

    start: str
    segments: tuple[str, ...]
    predicates: tuple[str, ...]
    path_only: bool
    position: int


def scan_xpath(text: str, namespaces: Mapping[str, str]) -> tuple[tuple[Branch, ...], dict[str, str]]:
    """The location paths of an expression, and the declarations that it uses. Raises ExpressionError."""
    if len(text) > MAX_XPATH_LENGTH:
        refuse(text, MAX_XPATH_LENGTH, f"an XPath may be {MAX_XPATH_LENGTH} characters long, this one is {len(text)}")
    return _Scanner(text, Declarations(namespaces)).scan()


class _Scanner:
    def __init__(self, text: str, declarations: Declarations) -> None:
        self._text = text
        self._declarations = declarations
        self._tokens = tokenize(text, lambda position, why: refuse(text, position, why))
        self._next = 0

    def scan(self) -> tuple[tuple[Branch, ...], dict[str, str]]:
        branches = [self._branch()]
        while not self._at_end():
            token = self._peek()
            if token.text != "|":
                self._refuse(token, f"{token.text} cannot stand here; /, //, | or a predicate may follow a step")
            self._next += 1
            if len(branches) == MAX_BRANCHES:
                self._refuse(token, f"an XPath may have {MAX_BRANCHES} alternatives")
            branches.append(self._branch())
        return tuple(branches), self._declarations.used

    def _branch(self) -> Branch:
        position = self._peek().start
        start = self._take_slashes()
        segments: list[str] = []
        predicates: list[str] = []
        path_only = True
        segment_start = self._peek().start
        while True:
            self._node_test()
            found = self._predicates()
            predicates.extend(self._text[first.end : last.start] for first, last in found)
            separator = self._take_slashes()
            # A predicate says nothing new only where it asks a selected topic whether it is a topic.
            path_only = path_only and (not found or (not separator and self._only_asks_for_topic(found)))
            if separator == "/":
                continue
            end = self._tokens[self._next - (2 if separator else 1)].end
            segments.append(self._text[segment_start:end])
            if not separator:
                return Branch(start, tuple(segments), tuple(predicates), path_only, position)
            segment_start = self._peek().start

    def _node_test(self) -> None:
        token = self._peek()
        if token.kind == "name":
            following = self._tokens[self._next + 1] if self._next + 1 < len(self._tokens) else None
            if following is not None and following.text == "(":
                self._refuse(token, "an XPath of topics must be a location path, not a function")
            self._resolve(token)
        elif token.text not in ("*", "."):
            self._refuse(token, f"a name, * or . is needed here, not {token.text}")
        self._next += 1

    def _take_slashes(self) -> str:
        if not self._at_end() and self._peek().text in ("/", "//"):
            self._next += 1
            return self._tokens[self._next - 1].text
        return ""

    def _predicates(self) -> list[tuple[Token, Token]]:
        """Check the predicates that follow; the brackets of each."""
        found: list[tuple[Token, Token]] = []
        while not self._at_end() and self._peek().text == "[":
            first = self._peek()
            self._predicate()
            found.append((first, self._tokens[self._next - 1]))
        return found

    def _predicate(self) -> None:
        opened: list[str] = []
        descendants = 0
        operand = False  # whether the last token ended one: tells `*` and `and` as operators from names
        while True:
            token = self._peek()
            self._next += 1
            if token.text in ("[", "("):
                opened.append(token.text)
                if opened.count("[") > MAX_NESTING or len(opened) > MAX_PARENTHESES:
                    self._refuse(token, "the predicates of an XPath may not be nested so deep")
                operand = False
            elif token.text in ("]", ")"):
                if opened.pop() != ("[" if token.text == "]" else "("):
                    self._refuse(token, f"{token.text} closes what was not opened")
                if not opened:
                    return
                operand = True
            elif token.kind in ("literal", "number") or token.text == ".":
                operand = True
            elif operand and (token.text == "*" or token.text in OPERATORS):
                operand = False
            elif token.kind == "name" or token.text == "*":
                self._name_in_predicate(token)
                operand = True
            else:
                self._symbol_in_predicate(token, operand)
                operand = False
            if token.text == "//":
                descendants += 1
                if descendants > 1 or not self._from_itself(self._next - 2):
                    # From several nodes at once libxml2 would compare what it finds with all that it has found.
                    self._refuse(token, "a predicate may look for descendants only once, and only with .//")

    def _name_in_predicate(self, token: Token) -> None:
        following = self._peek()
        if following.text == "(":
            if token.text not in FUNCTIONS:
                self._refuse(token, f"{token.text}() is not available in an XPath of topics")
        elif token.kind == "name":
            self._resolve(token)

    def _symbol_in_predicate(self, token: Token, operand: bool) -> None:
        if token.text == "$":
            self._refuse(token, "an XPath of topics has no variables")
        if token.text == "|":
            self._refuse(token, "a union cannot stand in a predicate; use `or`")
        if token.text == ".." or (token.kind == "axis" and token.text not in AXES):
            self._refuse(
                token, f"{token.text} cannot stand in an XPath of topics, which only looks downward, with / and //"
            )
        if token.text in ("/", "//") and not operand:
            self._refuse(token, "a path in a predicate cannot begin at the root")
        if token.text in COMPARISONS and not (self._ends_scalar() or self._begins_scalar()):
            self._refuse(token, f"one side of {token.text} must be a literal, a number or a function")

    def _from_itself(self, index: int) -> bool:
        """Whether the token is a `.` that begins a path."""
        return self._tokens[index].text == "." and self._tokens[index - 1].text not in ("/", "//", "::")

    def _ends_scalar(self) -> bool:
        """Whether no node set can end where the current token begins. No function that is available returns one."""
        end = self._next - 2
        if self._tokens[end].text != ")":
            return self._tokens[end].kind in ("literal", "number")
        depth = 0
        for index in range(end, 0, -1):
            depth += {")": 1, "(": -1}.get(self._tokens[index].text, 0)
            if depth == 0:
                return self._tokens[index - 1].text in FUNCTIONS
        return False

    def _begins_scalar(self) -> bool:
        """Whether no node set can begin behind the current token."""
        token = self._peek()
        after = self._tokens[self._next + 1] if self._next + 1 < len(self._tokens) else token
        return token.kind in ("literal", "number") or (token.kind == "name" and after.text == "(")

    def _only_asks_for_topic(self, found: list[tuple[Token, Token]]) -> bool:
        first, last = found[0]
        inside = [token for token in self._tokens if first.end <= token.start < last.start]
        if len(found) > 1 or len(inside) != 4:
            return False
        at, name, equals, value = inside
        prefix, _, local = name.text.partition(":")
        return (
            (at.text, local, equals.text, value.text[1:-1]) == ("@", "topic", "=", "true")
            and value.kind == "literal"
            and self._declarations.used.get(prefix) == WSTOP
        )

    def _resolve(self, token: Token) -> None:
        prefix, colon, _ = token.text.partition(":")
        if colon:
            self._declarations.resolve(prefix, self._text, token.start)

    def _at_end(self) -> bool:
        return self._next >= len(self._tokens)

    def _peek(self) -> Token:
        if self._at_end():
            refuse(self._text, len(self._text), "the expression ends too early")
        return self._tokens[self._next]

    def _refuse(self, token: Token, why: str) -> None:
        refuse(self._text, token.start, why)
