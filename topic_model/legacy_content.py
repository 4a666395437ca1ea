"""Content that is not one element: text, or several elements, as in messages of the older system.

A payload is one element, since wsnt:Message has exactly one. Other content is wrapped into an element of Arborcast:
standard subscribers get that element, older ones its content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

NAMESPACE = "urn:arborcast:legacy"
"""Namespace of the element around loose content; its name is Content."""

TYPE = f"{{{NAMESPACE}}}Content"
"""The name of that element, the type of its notification."""

_START = f'<ac:Content xmlns:ac="{NAMESPACE}"'
_START_BYTES = _START.encode()
_END_BYTES = b"</ac:Content>"


# What begins so and is no element is refused: a mistake must not become a text.
_ELEMENT = re.compile(rb"\s*+<[^\s<>&!]")
begins_element = _ELEMENT.match
"""Whether a payload without a declared type is read as an element."""


def wrap(content: str, namespaces: Mapping[str, str]) -> bytes:
    """The payload for well-formed content; `namespaces` are its used declarations, the default one under ""."""
    declared = "".join(
        f" xmlns{':' if prefix else ''}{prefix}={quoteattr(uri)}"
        for prefix, uri in namespaces.items()
        if prefix != "ac"
    )
    return f"{_START}{declared}>{content}".encode() + _END_BYTES


def unwrap(payload: bytes) -> bytes:
    """The content of a wrapped payload; any other payload unchanged."""
    if not (payload.startswith(_START_BYTES) and payload.endswith(_END_BYTES)):
        return payload
    # In attribute values `>` is a reference, so the first one ends the start tag.
    return payload[payload.index(b">") + 1 : -len(_END_BYTES)]
