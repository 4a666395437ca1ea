"""Tokens of XPath, and the part of its vocabulary that is offered."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from topic_model.topics import NCNAME

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
