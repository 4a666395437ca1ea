"""Topic paths: one canonical string per topic.

A topic is a path of QNames below a root topic. Its canonical form is a plain string, since it is a Kafka key, a
dictionary key on the hot path and a table column: steps joined by `/`, each step `{namespace}name`, without the
namespace if it equals the parent's (for a root: if it is empty).

    tns:a/b            -> {urn:tns}a/b          (a child NCName is in its parent's namespace)
    tns:a/tns:b        -> {urn:tns}a/b          (so this is the same topic)
    tns:a/x:b/c        -> {urn:tns}a/{urn:x}b/c
    ALL:ALARM:ALARM1   -> ALL/ALARM/ALARM1      (colon paths are in no namespace)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NewType

from arborcast.core.errors import TopicError

TopicPath = NewType("TopicPath", str)
"""A canonical topic path, created by `make_path` or `parse_path` only."""

Step = tuple[str, str]
"""(namespace, local name); the namespace is "" for none."""

SYSTEM: Final = TopicPath("{urn:arborcast}system")
"""The topic above the operator events. Only the job publishes there; see `is_system`."""

_BELOW_SYSTEM = f"{SYSTEM}/"

# Longer or deeper paths are refused: a path is a Kafka key, a table cell and a part of log lines.
MAX_PATH_LENGTH = 4096
MAX_DEPTH = 64

NAME_RULE: Final = "a name has letters, digits, - _ and ., and begins with a letter or _"
"""The rule for an NCName, for refusals."""

# NCName of "Namespaces in XML 1.0", written with the ranges of XML 1.0 fifth edition.
_NAME_START = (
    "A-Z_a-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c-\u200d\u2070-\u218f"
    "\u2c00-\u2fef\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
NCNAME = f"[{_NAME_START}][-.0-9\u00b7\u0300-\u036f\u203f-\u2040{_NAME_START}]*"
"""Source of a regular expression for one NCName."""

# A URI reference of RFC 3986. libxml2 neither reads nor writes other namespaces, so a topic in one could not be sent;
# and braces, white space and `|` would make paths and normal forms ambiguous.
_PCHAR = r"(?:[-A-Za-z0-9._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})"
_USER = r"(?:(?:[-A-Za-z0-9._~!$&'()*+,;=:]|%[0-9A-Fa-f]{2})*@)?"
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|(?:[-A-Za-z0-9._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)(?::[0-9]{1,5})?"
_SCHEME = "[A-Za-z][-A-Za-z0-9+.]*:"
NAMESPACE = (
    rf"(?:(?:{_SCHEME})?//{_USER}{_HOST}(?=[/?#}}]|$)|{_SCHEME}(?!//)|(?!//|[^/?#}}]*:))"
    rf"(?:{_PCHAR}|/)*(?:\?(?:{_PCHAR}|[/?])*)?(?:\#(?:{_PCHAR}|[/?])*)?"
)
"""Source of a regular expression for the namespace of a topic; it matches the empty string for none."""

_ncname = re.compile(NCNAME)
_namespace = re.compile(NAMESPACE)
_step = re.compile(rf"(?:\{{({NAMESPACE})\}})?({NCNAME})")


def is_ncname(text: str) -> bool:
    """Whether `text` may be a name in a topic path."""
    return _ncname.fullmatch(text) is not None


def is_namespace(text: str) -> bool:
    """Whether topics can be in this namespace ("" is none). It may not be longer than a path."""
    return len(text) <= MAX_PATH_LENGTH and _is_legal_namespace(text)


# An expression may name one namespace sixteen thousand times.
@lru_cache(maxsize=256)
def _is_legal_namespace(text: str) -> bool:
    return _namespace.fullmatch(text) is not None


def make_path(steps: Iterable[Step]) -> TopicPath:
    """The canonical path of these steps, root first. Raises TopicError for an illegal name, namespace or length."""
    parts: list[str] = []
    parent = ""
    for namespace, name in steps:
        if not is_ncname(name):
            raise TopicError(f"{name[:200]!r} is not a legal topic name: {NAME_RULE}")
        if not is_namespace(namespace):
            raise TopicError(f"the namespace {namespace[:200]!r} is not a valid URI")
        if namespace == parent:
            parts.append(name)
        elif not namespace:
            # Neither QName paths nor canonical paths can express this.
            raise TopicError(f"topic {name!r} in no namespace cannot be below a topic in {parent!r}")
        else:
            parts.append(f"{{{namespace}}}{name}")
            parent = namespace
    path = "/".join(parts)
    if not parts:
        raise TopicError("a topic path must have at least one name")
    if len(parts) > MAX_DEPTH:
        raise TopicError(f"a topic path may be {MAX_DEPTH} levels deep, this one is {len(parts)}")
    _check_length(path)
    return TopicPath(path)


def split_path(path: str) -> Iterator[Step]:
    """The steps of a canonical path, root first, each with its namespace written out."""
    parent = ""
    position = 0
    end = len(path)
    while position < end:
        match = _step.match(path, position)
        if match is None or (match.end() < end and path[match.end()] != "/") or match.end() == end - 1:
            raise TopicError(f"{path[:200]!r} is not a canonical topic path: at position {position}, {NAME_RULE}")
        namespace, name = match.groups()
        parent = parent if namespace is None else namespace
        yield parent, name
        position = match.end() + 1


def parse_path(text: str) -> TopicPath:
    """Check an external canonical path (from a file, a directory, a record); returns it normalised."""
    _check_length(text)
    return make_path(split_path(text))


def parse_colon_path(text: str) -> TopicPath:
    """The topic of a path in HPwsn's form `ALL:ALARM:ALARM1`, with or without spaces around its words. Raises
    TopicError."""
    _check_length(text)
    return make_path(("", name.strip()) for name in text.split(":"))


def is_system(path: str) -> bool:
    """Whether this is the topic SYSTEM or one below it."""
    return path == SYSTEM or path.startswith(_BELOW_SYSTEM)


def ancestors(path: TopicPath) -> Iterator[TopicPath]:
    """The proper prefixes of a path, nearest first; a prefix of a canonical path is canonical."""
    end = _last_slash(path, len(path))
    while end > 0:
        yield TopicPath(path[:end])
        end = _last_slash(path, end)


def parent_of(path: TopicPath) -> TopicPath | None:
    """The parent's path; None for a root topic."""
    end = _last_slash(path, len(path))
    return TopicPath(path[:end]) if end > 0 else None


def last_step(path: TopicPath) -> str:
    """The last step as in the path, its namespace in braces if it differs from the parent's."""
    return path[_last_slash(path, len(path)) + 1 :]


def _check_length(path: str) -> None:
    if len(path) > MAX_PATH_LENGTH:
        raise TopicError(f"a topic path may be {MAX_PATH_LENGTH} characters long, this one is {len(path)}")


def _last_slash(path: str, end: int) -> int:
    """Position of the last `/` before `end` that is not inside a namespace; -1 without any."""
    position = path.rfind("/", 0, end)
    # Namespaces are mostly URLs, so a slash may be within braces: then the step begins at its opening brace.
    if position >= 0 and path.rfind("}", position, end) > position:
        brace = path.rfind("{", 0, end)
        if brace < position:
            return brace - 1
    return position
