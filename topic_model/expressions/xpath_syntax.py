"""The common part of both XPath grammars: tokens, vocabulary, and the rules for predicates, which bound the cost of an
evaluation. `xpath` has the location paths that select topics, `conditions` the conditions over documents."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, NamedTuple, NoReturn

from lxml import etree

from arborcast.topic_model.topics import NCNAME

MAX_XPATH_LENGTH: Final = 4096  # characters
MAX_TOKENS: Final = 256  # each may be evaluated for every node
MAX_NESTING: Final = 2  # predicates within predicates: each level multiplies the cost by the depth of the tree
MAX_PARENTHESES: Final = 16  # open at once; libxml2 parses them by recursion

# Of XPath 1.0, sections 4.1 to 4.4, without id() and lang().
FUNCTIONS: Final = frozenset(
    {"count", "last", "local-name", "name", "namespace-uri", "position"}
    | {"concat", "contains", "normalize-space", "starts-with", "string", "string-length"}
    | {"substring", "substring-after", "substring-before", "translate"}
    | {"boolean", "false", "not", "true"}
    | {"ceiling", "floor", "number", "round", "sum"}
)

AXES: Final = frozenset({"attribute", "child", "self"})

NODE_TESTS: Final = frozenset({"comment", "node", "text"})

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


class Token(NamedTuple):
    """A token with its kind (a group of the regular expression) and its position in the text."""

    kind: str
    text: str
    start: int
    end: int


def compiled(text: str, namespaces: Mapping[str, str]) -> etree.XPath:
    """The compiled expression; in XPath 1.0 a name without a prefix is in no namespace. Raises etree.XPathError, and
    ValueError for characters that XML does not have."""
    prefixed = {prefix: namespace for prefix, namespace in namespaces.items() if prefix and namespace}
    # regexp: an lxml extension, on by default, which would run the peer's regular expressions without a bound.
    return etree.XPath(text, namespaces=prefixed or None, regexp=False, smart_strings=False)


class SyntaxMessages(NamedTuple):
    """Messages of a grammar for unsupported syntax. `roots` are the tokens that may not begin a path in a predicate."""

    too_long: str
    nested: str
    variables: str
    union: str
    upward: str
    unavailable: str
    comparison: str
    roots: tuple[str, ...]


class Scanner(ABC):
    """Checks the tokens of an expression, in order. `ends` has for each checked token whether an operand may end with
    it, which distinguishes `*` and `and` as operators from names."""

    def __init__(self, text: str, words: SyntaxMessages) -> None:
        self.text = text
        self.tokens: list[Token] = []
        self.ends: list[bool] = []
        self.opened: list[int] = []
        self.nesting = 0
        self.descends = False
        """Whether a predicate has a `.//`."""
        self._descended = False  # a `.//` in the open outermost predicate
        self._words = words
        if len(text) > MAX_XPATH_LENGTH:
            self.refuse(MAX_XPATH_LENGTH, f"{words.too_long} {len(text)}")
        self._tokenize()

    @abstractmethod
    def refuse(self, position: int, why: str) -> NoReturn:
        """Raise the grammar's own error."""

    @abstractmethod
    def resolve(self, prefix: str, token: Token) -> None:
        """Check a prefix; refuse an undeclared one."""

    def fail(self, token: Token, why: str) -> NoReturn:
        """Refuse the expression because of this token."""
        self.refuse(token.start, why)

    def text_at(self, index: int) -> str:
        """The text of a token; empty beyond the last one."""
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def accept(self) -> None:
        """Check the next token."""
        index = len(self.ends)
        self.ends.append(self._check(index, self.tokens[index]))

    def brackets(self) -> int:
        """The number of open predicates."""
        return sum(self.tokens[index].text == "[" for index in self.opened)

    def begins(self, index: int) -> bool:
        """Whether a path begins with the token at this index."""
        return index == 0 or (not self.ends[index - 1] and self.text_at(index - 1) not in ("/", "//", "::", "@"))

    def from_itself(self, index: int) -> bool:
        """Whether the token at this index follows a `.` that begins a path."""
        return index > 0 and self.text_at(index - 1) == "." and self.begins(index - 1)

    def call(self, index: int, token: Token) -> None:
        """Check a name, `*` or `.` before a parenthesis."""
        if token.text not in FUNCTIONS:
            self.fail(token, f"{token.text}() is not available{self._words.unavailable}")

    def symbol(self, index: int, token: Token, operand: bool) -> None:
        """Check a token that is neither an operand nor a bracket. `operand`: it follows an operand."""
        if token.text == "$":
            self.fail(token, self._words.variables)
        if token.text == "|":
            self.fail(token, self._words.union)
        if token.text == ".." or (token.kind == "axis" and token.text not in AXES):
            self.fail(token, f"{token.text} {self._words.upward}, with / and //")
        if token.text in self._words.roots and not operand and self.brackets():
            self.fail(token, "a path in a predicate cannot begin at the root")
        if token.text == "//" and self.brackets():
            # From several nodes libxml2 would compare each result with all earlier ones.
            if self._descended or not self.from_itself(index):
                self.fail(token, "a predicate may search descendants only once, and only with .//")
            self._descended = self.descends = True
        if token.text in COMPARISONS and not (self._scalar_ends(index - 1) or self._scalar_begins(index + 1)):
            self.fail(
                token, f"one side of {token.text} must be a literal, a number or a function{self._words.comparison}"
            )

    def _tokenize(self) -> None:
        text = self.text.rstrip()
        position = 0
        while position < len(text):
            match = _token.match(text, position)
            if match is None or match.lastgroup is None:
                position += len(text[position:]) - len(text[position:].lstrip())
                self.refuse(position, f"{text[position]!r} is not allowed in an XPath")
            if len(self.tokens) == MAX_TOKENS:
                self.refuse(position, f"an XPath may have {MAX_TOKENS} names, symbols and literals")
            kind = match.lastgroup
            self.tokens.append(Token(kind, match.group(kind), match.start(kind), match.end(kind)))
            position = match.end()

    def _check(self, index: int, token: Token) -> bool:
        """Whether an operand may end with the token."""
        operand = index > 0 and self.ends[index - 1]
        if token.text in ("[", "("):
            self._open(index, token)
            return False
        if token.text in ("]", ")"):
            if not self.opened or (self.tokens[self.opened.pop()].text == "[") != (token.text == "]"):
                self.fail(token, f"{token.text} has no opening bracket")
            return True
        if token.kind in ("literal", "number"):
            return True
        if operand and (token.text == "*" or token.text in OPERATORS):
            return False
        if token.kind == "name" or token.text in ("*", "."):
            prefix, colon, _ = token.text.partition(":")
            if self.text_at(index + 1) == "(":
                self.call(index, token)
            elif colon:
                self.resolve(prefix, token)
            return True
        self.symbol(index, token, operand)
        return False

    def _open(self, index: int, token: Token) -> None:
        self.opened.append(index)
        brackets = self.brackets()
        self.nesting = max(self.nesting, brackets)
        if brackets > MAX_NESTING or len(self.opened) > MAX_PARENTHESES:
            self.fail(token, self._words.nested)
        if token.text == "[" and brackets == 1:
            self._descended = False

    def _scalar_ends(self, end: int) -> bool:
        """Whether no node set can end here. No supported function returns one."""
        if end < 0 or self.tokens[end].text != ")":
            return end >= 0 and self.tokens[end].kind in ("literal", "number")
        depth = 0
        for index in range(end, 0, -1):
            depth += {")": 1, "(": -1}.get(self.tokens[index].text, 0)
            if depth == 0:
                return self.tokens[index - 1].text in FUNCTIONS and self.begins(index - 1)
        return False

    def _scalar_begins(self, start: int) -> bool:
        """Whether no node set can begin here."""
        if start >= len(self.tokens):
            return True  # the next check reports the error
        token = self.tokens[start]
        function = token.kind == "name" and token.text not in NODE_TESTS and self.text_at(start + 1) == "("
        return function or token.kind in ("literal", "number")
