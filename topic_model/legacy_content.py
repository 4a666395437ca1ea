"""Content that is not one element: text, or several elements, as the older system's messages carry it.

A payload in our logs is one element, because wsnt:Message holds exactly one. Loose content therefore travels inside an
element of ours: subscribers of the standard see that element, subscribers of the older form get its inside again.
"""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

NAMESPACE = "urn:arborcast:legacy"
"""Namespace of the element around loose content; its name is Content."""

TYPE = f"{{{NAMESPACE}}}Content"
"""The name of that element, as the type of its notification."""

_START = f'<ac:Content xmlns:ac="{NAMESPACE}"'
_START_BYTES = _START.encode()
_END_BYTES = b"</ac:Content>"


def wrap(content: str, namespaces: Mapping[str, str]) -> bytes:
    """The payload around well-formed content; `namespaces` are what it uses, the default one under ""."""
    declared = "".join(
        f" xmlns{':' if prefix else ''}{prefix}={quoteattr(uri)}"
        for prefix, uri in namespaces.items()
        if prefix != "ac"
    )
    return f"{_START}{declared}>{content}".encode() + _END_BYTES


def unwrap(payload: bytes) -> bytes:
    """The inside of what `wrap` made; any other payload as it is."""
    if not (payload.startswith(_START_BYTES) and payload.endswith(_END_BYTES)):
        return payload
    # In attribute values `>` is written as a reference, so the first one ends the start tag.
    return payload[payload.index(b">") + 1 : -len(_END_BYTES)]
