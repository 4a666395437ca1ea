"""The type of a message: a QName, written `{namespace}name`, set by its publisher, by default the name of its payload's
element."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from xml.parsers import expat

from arborcast.topic_model.topics import NCNAME

MAX_LENGTH = 1_000
"""Maximum length of a type. A longer one is not stored beside the payload."""

_clark = re.compile(rf"(?:\{{([^{{}}\s]*)\}})({NCNAME})")
_qname = re.compile(rf"(?:({NCNAME}):)?({NCNAME})")


def stored_type(name: str) -> str:
    """The name of a payload's element as the stored type; empty if it is too long."""
    return name if len(name) <= MAX_LENGTH else ""


def root_type(payload: bytes) -> str:
    """The QName of a payload's element, from its start tag. Empty for invalid XML."""
    found: list[str] = []
    parser = expat.ParserCreate("utf-8", "}")

    def begins(name: str, _: object) -> None:
        found.append(name)
        raise _StopParsing

    parser.StartElementHandler = begins
    with suppress(_StopParsing, expat.ExpatError):
        parser.Parse(payload, True)
    if not found:
        return ""
    return "{" + found[0] if "}" in found[0] else found[0]


def read_type(text: str, namespaces: Mapping[str | None, str]) -> str:
    """Parse `{namespace}name`, or a QName with the prefixes in scope. Without a prefix it is in the default namespace,
    as in XML Schema; `{}name` is in none. Raises ValueError."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{text[:60]!r}… is longer than {MAX_LENGTH} characters")
    clark = _clark.fullmatch(text)
    if clark is not None:
        return f"{{{clark[1]}}}{clark[2]}" if clark[1] else clark[2]
    qname = _qname.fullmatch(text)
    if qname is None:
        raise ValueError(f"{text[:100]!r} is not a QName: p:name or {{namespace}}name is required")
    namespace = namespaces.get(qname[1])
    if qname[1] and not namespace:
        raise ValueError(f"the prefix of {text[:100]!r} is not declared")
    found = f"{{{namespace}}}{qname[2]}" if namespace else qname[2]
    if len(found) > MAX_LENGTH:
        raise ValueError(f"{text[:60]!r} with its namespace is longer than {MAX_LENGTH} characters")
    return found


class _StopParsing(Exception):
    """Ends the parsing after the first start tag."""
