"""The common grammar of normal forms and all path dialects of topic expressions, before prefixes are resolved.

    expression = path ( "|" path )*
    path       = qualifier? "//"? test ( ( "/" | "//" ) ( qualifier? name | "*" | "." ) )*
    test       = name | "*"                           (a normal form may also begin with `//.`)
    qualifier  = prefix ":"                           (dialects)     or     "{" namespace "}"     (normal forms)

White space is allowed at both ends and around `|`: an xsd:token collapses there, and real messages have line breaks
there. Parsing is linear in the length of the text, which is checked first.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final, NoReturn

from arborcast.core.errors import ExpressionError
from arborcast.topic_model.topics import MAX_DEPTH, NAME_RULE, NAMESPACE, NCNAME

MAX_EXPRESSION_LENGTH: Final = 65_536  # characters; a hundred times the longest that real clients send
MAX_ALTERNATIVES: Final = 256
MAX_STEPS: Final = MAX_DEPTH  # more steps than a topic has levels select nothing
MAX_DESCENDANT_STEPS: Final = 16  # `//` in one alternative; without this matching is polynomial, but expensive

_SHOWN: Final = 60  # characters of an illegal expression in its error message


class Axis(enum.Enum):
    """The distance of a step from its predecessor."""

    CHILD = "/"
    DESCENDANT = "//"


@dataclass(frozen=True, slots=True)
class RawStep:
    """One step as written: `name` may be `*` or `.`; `qualifier` is a prefix or a namespace, None if absent."""

    axis: Axis
    qualifier: str | None
    name: str
    position: int


@dataclass(frozen=True, slots=True)
class RawPath:
    """One alternative as written; `qualifier` is the one before the root."""

    qualifier: str | None
    steps: tuple[RawStep, ...]
    position: int


class Notation(enum.Enum):
    """The notation of namespaces: prefixes in dialects, full names in normal forms."""

    PREFIXES = re.compile(rf"({NCNAME}):(?!:)")
    NAMESPACES = re.compile(rf"\{{({NAMESPACE})\}}")


_name = re.compile(rf"{NCNAME}|[*.]")
_blank = re.compile(r"[ \t\r\n]*")


def refuse(text: str, position: int, why: str) -> NoReturn:
    """Raise an ExpressionError with an excerpt around the position."""
    start = max(0, min(position - _SHOWN // 2, len(text) - _SHOWN))
    excerpt = text[start : start + _SHOWN]
    shown = f"{'…' if start else ''}{excerpt}{'…' if start + _SHOWN < len(text) else ''}"
    raise ExpressionError(f"topic expression {shown!r}, position {position}: {why}", position)


def check_length(text: str) -> None:
    """Refuse a text that is too long to be parsed. Constant time."""
    if len(text) > MAX_EXPRESSION_LENGTH:
        refuse(
            text,
            MAX_EXPRESSION_LENGTH,
            f"an expression may be {MAX_EXPRESSION_LENGTH} characters long, this one is {len(text)}",
        )


def scan(text: str, notation: Notation) -> tuple[RawPath, ...]:
    """The alternatives of an expression, as written. Raises ExpressionError with the position of the error."""
    check_length(text)
    paths: list[RawPath] = []
    position = _skip_blank(text, 0)
    while True:
        if len(paths) == MAX_ALTERNATIVES:
            refuse(text, position, f"an expression may have {MAX_ALTERNATIVES} alternatives")
        path, position = _scan_path(text, position, notation)
        paths.append(path)
        position = _skip_blank(text, position)
        if position == len(text):
            return tuple(paths)
        if text[position] != "|":
            refuse(text, position, f"{text[position]!r} is not allowed here; only /, // or | may follow a step")
        position = _skip_blank(text, position + 1)


def _scan_path(text: str, start: int, notation: Notation) -> tuple[RawPath, int]:
    root, position = _scan_qualifier(text, start, notation)
    axis = Axis.CHILD
    qualifier = None
    if text.startswith("//", position):
        axis = Axis.DESCENDANT
        position += 2
        if notation is Notation.NAMESPACES:  # no dialect can express it, but `//{urn:t}b` is a valid pattern
            qualifier, position = _scan_qualifier(text, position, notation)
    elif text.startswith("/", position):
        refuse(text, position, "an expression begins with a root topic, not with /")
    name, end = _scan_name(text, position)
    if name == "." and (axis is Axis.CHILD or notation is Notation.PREFIXES):
        refuse(text, position, "an expression cannot begin with . because the root of all topics is not a topic")
    if qualifier is not None and name in "*.":
        _refuse_qualified(text, position, name)
    steps = [RawStep(axis, qualifier, name, position)]
    descendants = int(axis is Axis.DESCENDANT)
    while text.startswith("/", end):
        axis = Axis.DESCENDANT if text.startswith("//", end) else Axis.CHILD
        qualifier, position = _scan_qualifier(text, end + len(axis.value), notation)
        name, end = _scan_name(text, position)
        if qualifier is not None and name in "*.":
            _refuse_qualified(text, position, name)
        steps.append(RawStep(axis, qualifier, name, position))
        descendants += axis is Axis.DESCENDANT
        if len(steps) > MAX_STEPS:
            refuse(text, position, f"an alternative may have {MAX_STEPS} steps")
        if descendants > MAX_DESCENDANT_STEPS:
            refuse(text, position, f"an alternative may have // {MAX_DESCENDANT_STEPS} times")
    return RawPath(root, tuple(steps), start), end


def _scan_qualifier(text: str, position: int, notation: Notation) -> tuple[str | None, int]:
    match = notation.value.match(text, position)
    return (match.group(1), match.end()) if match else (None, position)


def _scan_name(text: str, position: int) -> tuple[str, int]:
    match = _name.match(text, position)
    if match is None:
        found = f", not {text[position]!r}" if position < len(text) else "; the expression ends too early"
        hint = "; # and + of MQTT are //. and *" if text[position : position + 1] in ("#", "+") else f"; {NAME_RULE}"
        refuse(text, position, f"a name, * or . is required here{found}{hint}")
    return match.group(), match.end()


def _refuse_qualified(text: str, position: int, name: str) -> NoReturn:
    refuse(text, position, f"below the root, {name} cannot have a namespace: it selects topics of all namespaces")


def _skip_blank(text: str, position: int) -> int:
    match = _blank.match(text, position)
    return match.end() if match else position
