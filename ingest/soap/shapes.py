"""What stands around the payload of a Notify, remembered: a publisher sends the same again and again.

Finding a payload in the bytes takes longer than parsing them. So the bytes around the payload of a request with one
message are kept, with what they say. A later request that has the very same bytes there says the same, and its payload
is what lies between.

This is no second reading of the request; what is cut out is still what was parsed. The request is well-formed, and
without comments, CDATA sections and processing instructions: so each `<` in it begins a tag. Before the payload stand
the same tags as then, so the same elements are open where it begins; behind it the same end tags close them. Whatever
closed one of them in between would have to open another in its place, and the tree would have an element more on that
level than it had then. And it says that one element stands there, with no more text behind it than there was then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from lxml import etree

from arborcast.core.recent import Recent
from arborcast.wire.envelope import Request
from arborcast.wire.fragments import Inherited, Source, element_between, self_contained

_T = TypeVar("_T")

# Bytes that are kept, and those around one payload; who declares more around it is not spared the scan.
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
    """The payload of a request, to stand alone; its element; what the bytes around it say."""

    payload: bytes
    element: etree._Element
    value: _T

    @property
    def name(self) -> str:
        """The element's name."""
        return str(self.element.tag)


class Shapes(Generic[_T]):
    """A bounded cache of the bytes around payloads, for a minute or two after the last use."""

    def __init__(self) -> None:
        self._known: Recent[bytes, _Shape[_T]] = Recent(_REMEMBERED)

    def find(self, request: Request) -> FoundPayload[_T] | None:
        """None for a request that has to be scanned."""
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

    def learn(self, request: Request, source: Source, place: int, value: _T) -> None:
        """`source` has found the payload of the one message in its part number `place`; this is said around it."""
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
    """Where what leads to the payload begins, behind the header, and where it ends; None where that is not clear."""
    document, operation = request.document, request.operation
    if len(operation) != 1 or b"<!" in document or document.find(b"<?", 1) >= 0:
        return None
    begin = 0
    if len(request.root) > 1:
        body = _tag(request.root[1].prefix, b"Body")  # what else there is, is the header, which comes first
        if document.count(body) != 1:  # in the header, or in the payload, something looks like it
            return None
        begin = document.find(body)
    content = _tag(operation[0].prefix, b"Message>")
    found = document.find(content, begin)
    start = document.find(b"<", found + len(content)) if found >= 0 else -1
    return (begin, start) if start >= 0 else None


def _tag(prefix: str | None, name: bytes) -> bytes:
    return b"<%s:%s" % (prefix.encode(), name) if prefix else b"<" + name
