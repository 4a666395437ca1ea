"""A cache of the bytes around the payload of a Notify, which a publisher repeats in each request.

To find a payload in the bytes takes longer than to parse them. So the bytes around the payload of a request with one
message are cached with their meaning. A later request with exactly these bytes has the same meaning, and its payload is
between them.

The result is always the payload of the parsed tree. The request is well-formed, without comments, CDATA sections and
processing instructions, so each `<` in it begins a tag. The tags before the payload are those of the cached request, so
the same elements are open at its beginning, and the same end tags close them after it. If a tag in between closed one
of them, another tag would have to open an element in its place, and the tree would have one more element on that level.
The tree has exactly one element there, and the same text after it as the cached request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from lxml import etree

from arborcast.core.recent import Recent
from arborcast.wire.envelope import Request
from arborcast.wire.fragments import Inherited, Source, element_between, may_disguise_tags, self_contained

_T = TypeVar("_T")

# Bytes of the cache, and around one payload; requests with more bytes around it are scanned.
_REMEMBERED = 8 * 1024 * 1024
_LONGEST = 4 * 1024


@dataclass(frozen=True, slots=True)
class _Shape(Generic[_T]):
    """`head` is the envelope's start tag with the text before it, if a header follows. `behind` is the text between the
    payload and the next tag."""

    head: bytes
    tail: bytes
    parts: int
    place: int
    inherited: Inherited
    behind: str | None
    value: _T


class FoundPayload(NamedTuple, Generic[_T]):
    """The payload of a request as a document of its own; its element; the meaning of the bytes around it."""

    payload: bytes
    element: etree._Element
    value: _T


class Shapes(Generic[_T]):
    """A bounded cache of the bytes around payloads, for a minute or two after the last use."""

    def __init__(self) -> None:
        self._known: Recent[bytes, _Shape[_T]] = Recent(_REMEMBERED)

    def find(self, request: Request) -> FoundPayload[_T] | None:
        """The payload of a request, None if the request has to be scanned."""
        lead = _lead(request)
        if lead is None:
            return None
        document, (begin, start) = request.document, lead
        shape = self._known.get(document[begin:start])
        if shape is None or not (document.startswith(shape.head) and document.endswith(shape.tail)):
            return None
        end = len(document) - len(shape.tail)
        if end <= start or document[start + 1] == _SLASH or document[end - 1] != _BRACKET:
            return None
        message = request.operation[0]
        if len(message) != shape.parts or len(content := message[shape.place]) != 1:
            return None
        if content[0].tail != shape.behind:
            return None
        payload = self_contained(document, element_between(document, start, end), shape.inherited)
        return FoundPayload(payload, content[0], shape.value)

    def remember(self, request: Request, source: Source, place: int, value: _T) -> None:
        """Cache the bytes around the payload of the only message, in part number `place` of `source`, with their
        meaning."""
        lead = _lead(request)
        if lead is None:
            return
        document, (begin, start) = request.document, lead
        payload = source.node(request.operation).children[0].children[place].children[0]
        if payload.start != start:
            return
        head = document[: source.node(request.root).tag_end] if begin else b""
        tail = document[payload.end :]
        size = start - begin + len(head) + len(tail)
        if size <= _LONGEST:
            inherited = source.inherited(payload)
            message = request.operation[0]
            shape = _Shape(head, tail, len(message), place, inherited, message[place][0].tail, value)
            self._known.put(document[begin:start], shape, size + sum(len(each[2]) for each in inherited))


_SLASH, _BRACKET = ord("/"), ord(">")


def _lead(request: Request) -> tuple[int, int] | None:
    """Start (after the header) and end of the bytes before the payload; None if ambiguous."""
    document, operation = request.document, request.operation
    if len(operation) != 1 or may_disguise_tags(document):
        return None
    begin = 0
    if len(request.root) > 1:
        body = _tag(request.root[1].prefix, b"Body")  # the other part is the header, which is the first one
        if document.count(body) != 1:  # the header or the payload has the same bytes
            return None
        begin = document.find(body)
    content = _tag(operation[0].prefix, b"Message>")
    found = document.find(content, begin)
    start = document.find(b"<", found + len(content)) if found >= 0 else -1
    return (begin, start) if start >= 0 else None


def _tag(prefix: str | None, name: bytes) -> bytes:
    return b"<%s:%s" % (prefix.encode(), name) if prefix else b"<" + name
