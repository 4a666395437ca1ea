"""Cutting elements out of a document as the very bytes that were sent, made to stand alone.

A payload must arrive as it was sent: signatures, CDATA, character references and quoting would not survive being
parsed and written again. So the parsed tree only says which elements are wanted; the bytes are cut from the document,
and the namespace declarations that were in scope are put into the start tag. Prefixes that occur nowhere in the
fragment, not even as text (a QName may hide in an attribute's value), are left out.

A fragment is meant to be parsed alone or placed below elements that declare no default namespace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from lxml import etree

from ingest.errors import MalformedMessage

# Only ever run over documents that a parser accepted. The possessive quantifiers keep it linear on anything.
_TOKEN = re.compile(
    rb"<(?:!--.*?-->|!\[CDATA\[.*?\]\]>|\?.*?\?>"
    rb"|(/)[^>]*+>"
    rb"|([^\s/>!?]++)((?:[^>\"'/]++|\"[^\"]*+\"|'[^']*+'|/(?!>))*+)(/?)>)",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(rb"\s+([^\s=]++)\s*=\s*(\"[^\"]*+\"|'[^']*+')")

_UTF8_ALIKE = {None, "", "UTF-8", "ASCII", "US-ASCII"}

Scope = dict[bytes, bytes]
"""Prefix to the quoted value of its declaration, as written; the default namespace has the prefix b""."""


@dataclass(slots=True)
class _Span:
    start: int
    name_end: int
    inherited: Scope
    own: Scope
    end: int = -1


class Source:
    """The bytes behind a parsed document, down to `depth` levels (the root is level 1)."""

    def __init__(self, document: bytes, root: etree._Element, depth: int) -> None:
        self._document = as_utf8(document, root)
        spans = _spans(self._document, depth)
        self._spans = dict(zip(_elements(root, depth), spans, strict=True))

    def fragment(self, element: etree._Element) -> bytes:
        """The element as it was sent, self-contained, in UTF-8. KeyError for an element below the depth."""
        span = self._spans[element]
        document = self._document
        missing = [
            (prefix, value)
            for prefix, value in span.inherited.items()
            # An undeclared default namespace needs no undeclaring where there is nothing around.
            if prefix not in span.own and len(value) > 2
        ]
        tail = document[span.name_end : span.end]
        if not missing:
            return document[span.start : span.end]
        name = document[span.start : span.name_end]
        declarations = [
            b" xmlns:" + prefix + b"=" + value if prefix else b" xmlns=" + value
            for prefix, value in missing
            if not prefix or _mentions(tail, prefix) or name.startswith(b"<" + prefix + b":")
        ]
        return b"".join((name, *declarations, tail))


def as_utf8(document: bytes, root: etree._Element) -> bytes:
    """The document in UTF-8; its XML declaration, if any, is not adapted."""
    encoding = root.getroottree().docinfo.encoding
    if encoding is None or encoding.upper() in _UTF8_ALIKE:
        return document.removeprefix(b"\xef\xbb\xbf")
    try:
        return document.decode(encoding).removeprefix("\ufeff").encode()
    except (LookupError, UnicodeError) as error:
        raise MalformedMessage(f"the encoding {encoding} of the request cannot be read; use UTF-8") from error


def _mentions(content: bytes, prefix: bytes) -> bool:
    """Whether a prefix occurs as a word of its own; in a QName a colon follows, but lists of prefixes exist too."""
    return prefix in content and _word(prefix).search(content) is not None


@lru_cache(1_000)
def _word(prefix: bytes) -> re.Pattern[bytes]:
    name_byte = rb"[\w.\x80-\xff-]"
    return re.compile(rb"(?<!" + name_byte + rb")" + re.escape(prefix) + rb"(?!" + name_byte + rb")")


def _elements(element: etree._Element, depth: int) -> Iterator[etree._Element]:
    yield element
    if depth > 1:
        for child in element:
            yield from _elements(child, depth - 1)


def _spans(document: bytes, depth: int) -> list[_Span]:
    """The elements down to a depth, in document order."""
    spans: list[_Span] = []
    open_spans: list[_Span] = []
    scope: Scope = {}
    level = 0
    for token in _TOKEN.finditer(document):
        name = token[2]
        if name is not None:
            level += 1
            if level <= depth:
                own = _declarations(token[3])
                span = _Span(token.start(), token.end(2), scope, own)
                spans.append(span)
                open_spans.append(span)
                if own:
                    scope = scope | own
        if token[1] is not None or token[4]:
            if level <= depth:
                span = open_spans.pop()
                span.end = token.end()
                scope = span.inherited
            level -= 1
    return spans


def _declarations(attributes: bytes) -> Scope:
    if b"xmlns" not in attributes:
        return {}
    found: Scope = {}
    for name, value in _ATTRIBUTE.findall(attributes):
        if name == b"xmlns":
            found[b""] = value
        elif name.startswith(b"xmlns:"):
            found[name[6:]] = value
    return found
