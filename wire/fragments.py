"""Cutting elements out of a document as the very bytes that were sent, made to stand alone.

A payload must arrive as it was sent: signatures, CDATA, character references and quoting would not survive being
parsed and written again. So the parsed tree only says which elements are wanted; the bytes are cut from the document,
and the namespace declarations that were in scope are put into the start tag. Prefixes that the fragment cannot be
using are left out.

A fragment is meant to be parsed alone or placed below elements that declare no default namespace.

This is on the path of every notification, hence the care: only the levels above the payloads are scanned tag by tag.
And it is where a hostile body would find loops of ours, not of libxml2's: so the elements that are looked at, and the
namespaces around them, have limits, and looking for prefixes takes no longer than the text is.
"""

from __future__ import annotations

import re
from collections.abc import Container

import msgspec
from lxml import etree

from arborcast.wire import limits
from arborcast.wire.errors import TooLarge
from arborcast.wire.xml_reading import ATTRIBUTE

# Only ever run over documents that a parser accepted; linear on anything. What never ends reaches to the end of the
# text, and no tag reaches over the beginning of the next: else each would be searched to the end again.
_TOKEN = re.compile(
    rb"<(?:!--.*?(?:-->|\Z)|!\[CDATA\[.*?(?:\]\]>|\Z)|\?.*?(?:\?>|\Z)"
    rb"|/([^\s<>]++)\s*+>"
    rb"|([^\s</>!?]++)(?:[^<>\"'/]++|\"[^<\"]*+\"|'[^<']*+'|/(?!>))*+(/?)>)",
    re.DOTALL,
)
_END_TAG, _START_TAG = 1, 3  # lastindex of a match; None for what is neither
_BETWEEN_WORDS = re.compile(rb"[\s\"']+")
_SLASH = ord("/")
_AFTER_NAME = b"> \t\r\n"
_NAME_BYTES = frozenset(
    b"-._0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" + bytes(range(0x80, 0x100))
)
# Starts only where a name does: else it would be tried from each letter of a long word.
_BEFORE_COLON = re.compile(rb"(?<![-._0-9A-Za-z\x80-\xff])[-._0-9A-Za-z\x80-\xff]++(?=:)")

# What the fragments of one document may have in all: so many times its size, and this much in any case.
_GROWTH, _GROWTH_FREE = 2, 64 * 1024

# Above and at the level of payloads, each element may have so many bytes on average; the shortest messages have 24.
_NODE_BYTES, _NODES_FREE = 20, 1_000

# So few prefixes are looked for one by one, which is quickest; each may be the end of a longer one so many times.
_FEW, _LOOKS = 16, 16

# Where messages declare namespaces of their own, the scope of each is computed again: so many bytes for each of them.
_SCOPE_BYTES, _SCOPE_FREE = 8, 10_000

# A text in which prefixes may be listed without colons is taken apart up to this size.
_LISTS = 64 * 1024

Scope = dict[bytes, bytes]
"""Prefix to the quoted value of its declaration, as written; the default namespace has the prefix b""."""

_NO_DECLARATIONS: Scope = {}  # shared, so never changed


class Around(msgspec.Struct, gc=False):
    """An element that declares namespaces, and the next such one around it: what is in scope for those in it.

    This and Node hold no reference upwards and none to themselves. So what was found in a body is freed when the
    request ends, without the garbage collector, which would stop everything for a tenth of a second to look through
    what a few large bodies hold.
    """

    outer: Around | None
    name_end: int
    tag_end: int
    known: Scope | None = None

    def scope(self, document: bytes) -> Scope:
        """The namespaces in scope inside the element."""
        if self.known is None:
            own = _declarations(document[self.name_end : self.tag_end])
            self.known = self.outer.scope(document) | own if self.outer is not None else own
        return self.known


class Node(msgspec.Struct, gc=False):
    """Where one element lies in the bytes. `children` are the elements right below it, down to the scanned depth;
    `around` is the innermost element around it that declares namespaces."""

    around: Around | None
    start: int
    name_end: int
    tag_end: int
    end: int
    children: list[Node]

    def declarations(self, document: bytes) -> Scope:
        """The namespaces declared in the start tag."""
        # Most elements declare nothing: then nothing is cut out to look at.
        declares = document.find(b"xmlns", self.name_end, self.tag_end) >= 0
        return _declarations(document[self.name_end : self.tag_end]) if declares else _NO_DECLARATIONS


Inherited = list[tuple[bytes, bytes, bytes]]
"""Namespaces in scope around an element: prefix, prefix with its colon, and the declaration as it is written."""


_NO_CHILDREN: list[Node] = []  # shared, so never changed


class Source:
    """The bytes behind a parsed document, down to `depth` levels (the root is level 1).

    `document` must be the very bytes that were parsed, in UTF-8: both as `xml_reading.read_xml` returns them.
    With `within`, only of that child of the root: the header of an envelope may be longer than what is wanted.
    `bounded` is for a document of a stranger. A broker has put its answer together out of messages that were within
    bounds, each by itself.
    """

    def __init__(
        self,
        document: bytes,
        root: etree._Element,
        depth: int,
        within: etree._Element | None = None,
        *,
        bounded: bool = True,
    ) -> None:
        self._document = document
        self._bounded = bounded
        self._top = _scan(self._document, depth, None if within is None else root.index(within), bounded)
        self._left = _GROWTH * len(self._document) + _GROWTH_FREE
        self._scopes_left = len(self._document) // _SCOPE_BYTES + _SCOPE_FREE
        # Of the scope that was looked at last: the messages of a Notify all have the same one around them.
        self._around: Around | None = None
        self._inherited: Inherited = []
        self._around_written = b""

    def node(self, element: etree._Element) -> Node:
        """Where an element of the parsed document lies; for those of a long list go through their parent's children."""
        parent = element.getparent()
        return self._top if parent is None else self.node(parent).children[parent.index(element)]

    def fragment(self, node: Node) -> bytes:
        """The element as it was sent, self-contained, in UTF-8.

        Raises TooLarge when the fragments of this document together grow out of proportion: declarations are repeated
        in each, and a namespace of a megabyte with thousands of users would fill the memory.
        """
        fragment = stand_alone(self._document, node, self.inherited(node))
        self._left -= len(fragment)
        if self._left < 0:
            raise TooLarge("the request's elements, each with the namespaces declared around it, are too large")
        return fragment

    def inherited(self, node: Node) -> Inherited:
        """The namespaces in scope around an element. Raises TooLarge when there are too many."""
        self._look_around(node)
        return self._inherited

    def inside(self, node: Node) -> bytes:
        """What stands between the element's tags, as it was sent."""
        end_tag = self._document.rfind(b"<", node.tag_end, node.end)
        return self._document[node.tag_end : end_tag] if end_tag >= 0 else b""

    def identity(self, node: Node) -> bytes:
        """Bytes that are equal only for elements that say the same, with the same namespaces in scope."""
        self._look_around(node)
        return self._document[node.start : node.end] + self._around_written

    def _look_around(self, node: Node) -> None:
        around = node.around
        if around is self._around:
            return
        scope = around.scope(self._document) if around is not None else _NO_DECLARATIONS
        if self._bounded and len(scope) > limits.NAMESPACES_AROUND:
            raise TooLarge(f"{len(scope)} namespaces are declared around a payload, {limits.NAMESPACES_AROUND} may be")
        self._scopes_left -= len(scope)
        if self._bounded and self._scopes_left < 0:
            raise TooLarge("the messages of the request declare too many namespaces of their own")
        self._around = around
        self._inherited = [
            (prefix, prefix + b":", b" xmlns:" + prefix + b"=" + value if prefix else b" xmlns=" + value)
            for prefix, value in scope.items()
            # Of the default namespace, what was undeclared (xmlns="") needs no undeclaring where nothing is around.
            if len(value) > 2
        ]
        self._around_written = b"".join(declaration for _, _, declaration in self._inherited)
        if len(self._around_written) > limits.AROUND_BYTES:
            raise TooLarge(
                f"the namespaces declared around a payload are too large: {limits.AROUND_BYTES} bytes are taken"
            )


def element_between(document: bytes, start: int, end: int) -> Node:
    """The node of an element that is known to lie there."""
    token = _TOKEN.match(document, start)
    if token is None:
        raise ValueError("not the bytes of a well-formed document")
    return Node(None, start, token.end(2), token.end(), end, _NO_CHILDREN)


def stand_alone(document: bytes, node: Node, inherited: Inherited) -> bytes:
    """An element with the declarations of those namespaces around it that it may be using."""
    own = node.declarations(document)
    tail = document[node.name_end : node.end]
    name = document[node.start : node.name_end]
    parts = [name]
    listed: Container[bytes] = () if b"refix" not in tail else _words(tail)
    looked_for = _before_colons(tail) if len(inherited) > _FEW else None
    for prefix, used, declaration in inherited:
        if prefix in own:
            continue
        if not prefix or prefix in listed or name.startswith(used, 1):
            parts.append(declaration)
            continue
        found = prefix in looked_for if looked_for is not None else _may_use(tail, used)
        if found is None:
            looked_for = _before_colons(tail)
            found = prefix in looked_for
        if found:
            parts.append(declaration)
    parts.append(tail)
    return b"".join(parts)


def _may_use(tail: bytes, used: bytes) -> bool | None:
    """Whether the fragment may be using a prefix (`used` is the prefix with a colon) in its names, or in QNames that
    are values or text. None when it is the end of so many others that this is no way to find out.
    """
    found = tail.find(used)
    # The end of a longer prefix is none; "xmlns:" is the one that ends in "s:".
    for _ in range(_LOOKS):
        if found <= 0 or tail[found - 1] not in _NAME_BYTES:
            return found >= 0
        found = tail.find(used, found + 1)
    return None


def _before_colons(tail: bytes) -> set[bytes]:
    """All that may be a prefix, in one pass."""
    return set(_BEFORE_COLON.findall(tail))


class _Everything:
    def __contains__(self, word: object) -> bool:
        return True


_EVERYTHING = _Everything()


def _words(tail: bytes) -> Container[bytes]:
    """Where prefixes may stand without a colon: in lists of them (InclusiveNamespaces/@PrefixList, XSLT's
    exclude-result-prefixes).
    """
    return frozenset(_BETWEEN_WORDS.split(tail)) if len(tail) <= _LISTS else _EVERYTHING


def _scan(document: bytes, depth: int, only: int | None = None, bounded: bool = True) -> Node:
    """The tree of nodes down to a depth; with `only`, nothing below the root's other children.

    Raises TooLarge when there are too many of them, where that is `bounded`.
    """
    nodes_left = len(document) // _NODE_BYTES + _NODES_FREE if bounded else len(document)
    around: Around | None = None
    siblings: list[Node] = []  # of what comes next
    top = siblings
    open_elements: list[tuple[Node, Around | None, list[Node]]] = []  # with what was around them, and their siblings
    # Without these, nothing in an element's text can look like a tag.
    disguises = document.find(b"<!") >= 0 or document.find(b"<?", 1) >= 0
    search, position = _TOKEN.search, 0
    while (token := search(document, position)) is not None:
        kind = token.lastindex
        start, position = token.span()
        if kind == _START_TAG:
            nodes_left -= 1
            if nodes_left < 0:
                raise TooLarge("there are too many elements beside the payloads")
            name_end = token.end(2)
            node = Node(around, start, name_end, position, position, _NO_CHILDREN)
            siblings.append(node)
            if document[position - 2] == _SLASH:  # nothing in it: an attribute's value would end in a quote
                continue
            level = len(open_elements) + 1
            if level == depth or (level == 2 and only is not None and len(siblings) != only + 1):
                position = node.end = _end_of(document, token[2], position, disguises)
            else:
                open_elements.append((node, around, siblings))
                siblings = node.children = []
                if document.find(b"xmlns", name_end, position) >= 0:
                    around = Around(around, name_end, position)
        elif kind == _END_TAG:
            node, around, siblings = open_elements.pop()
            node.end = position
            if not open_elements:
                break
    return top[0]


def _end_of(document: bytes, name: bytes, position: int, disguises: bool) -> int:
    """Behind the end tag of an element whose start tag ends at `position`."""
    end_tag = b"</" + name
    found = document.find(end_tag, position)
    after = found + len(end_tag)
    plain = (
        document[after : after + 1] in _AFTER_NAME
        and document.find(b"<" + name, position, found) < 0
        and not (
            disguises and (document.find(b"<!", position, found) >= 0 or document.find(b"<?", position, found) >= 0)
        )
    )
    if plain:
        return document.index(b">", after) + 1
    # Something in it looks like its end: an element of the same name, a comment, CDATA.
    level = 1
    for token in _TOKEN.finditer(document, position):
        if token.lastindex == _END_TAG:
            level -= 1
        elif token.lastindex == _START_TAG and not token[3]:
            level += 1
        if level == 0:
            return token.end()
    raise ValueError("not the bytes of a well-formed document")


def _declarations(attributes: bytes) -> Scope:
    found: Scope = {}
    for name, value, _ in ATTRIBUTE.findall(attributes):
        if name == b"xmlns":
            found[b""] = value
        elif name.startswith(b"xmlns:"):
            found[name[6:]] = value
    return found
