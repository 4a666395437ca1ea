"""Cutting self-contained elements out of a document, as the original bytes.

A payload must be forwarded unchanged: signatures, CDATA, character references and quoting would not survive parsing and
serialisation. So the parsed tree only selects elements; their bytes are cut from the document, and the namespace
declarations in scope are added to the start tag, except for prefixes that the fragment cannot use.

A fragment can be parsed alone, or placed below elements without a default namespace.

This code runs for every notification, so only the levels above the payloads are scanned tag by tag. It must also resist
hostile bodies: the number of scanned elements and of namespaces around them is limited, and the search for prefixes is
linear.
"""

from __future__ import annotations

import re
from collections.abc import Container

import msgspec
from lxml import etree

from arborcast.wire import limits
from arborcast.wire.errors import TooLarge
from arborcast.wire.xml_reading import ATTRIBUTE

# Used on documents that a parser accepted; linear for any text. An unterminated comment, section or instruction extends
# to the end of the text, and no tag extends beyond the next `<`; otherwise each would be searched to the end again.
_TOKEN = re.compile(
    rb"<(?:!--.*?(?:-->|\Z)|!\[CDATA\[.*?(?:\]\]>|\Z)|\?.*?(?:\?>|\Z)"
    rb"|/([^\s<>]++)\s*+>"
    rb"|([^\s</>!?]++)(?:[^<>\"'/]++|\"[^<\"]*+\"|'[^<']*+'|/(?!>))*+(/?)>)",
    re.DOTALL,
)
_END_TAG, _START_TAG = 1, 3  # lastindex of a match; None for other tokens
# One pattern for both: a search for two bytes takes three times as long.
_DISGUISE = re.compile(rb"<[!?]")
_BETWEEN_WORDS = re.compile(rb"[\s\"']+")
_SLASH = ord("/")
_AFTER_NAME = b"> \t\r\n"
_NAME_BYTES = frozenset(
    b"-._0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" + bytes(range(0x80, 0x100))
)
# Starts only at the beginning of a name; otherwise it would be tried from each letter of a long word.
_BEFORE_COLON = re.compile(rb"(?<![-._0-9A-Za-z\x80-\xff])[-._0-9A-Za-z\x80-\xff]++(?=:)")

# Limit of the total size of the fragments of a document: a multiple of its size, plus a constant.
_GROWTH, _GROWTH_FREE = 2, 64 * 1024

# Limit of scanned elements: one for each 20 bytes of the document, plus a constant. The shortest messages have 24
# bytes.
_NODE_BYTES, _NODES_FREE = 20, 1_000

# Up to this number of prefixes each is searched alone, which is fastest, with at most this number of matches that are
# the end of a longer name.
_FEW, _MAX_MATCHES = 16, 16

# Limit of computed scope entries, for messages with declarations of their own: one for each 8 bytes of the document,
# plus a constant.
_SCOPE_BYTES, _SCOPE_FREE = 8, 10_000

# Maximum size of a text that is split into words, to find lists of prefixes without colons.
_LISTS = 64 * 1024

Scope = dict[bytes, bytes]
"""The quoted value of each declaration, as written, by prefix; the default namespace has the prefix b""."""

_NO_DECLARATIONS: Scope = {}  # shared; never changed


class Declaring(msgspec.Struct, gc=False):
    """An element with namespace declarations, and the next such element around it.

    This class and Node have no reference cycles. So all objects of a body are freed at the end of the request, without
    the garbage collector, which would pause the process for a tenth of a second to walk a few large bodies.
    """

    outer: Declaring | None
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
    """The position of an element in the document. `children` are its child elements, down to the scanned depth;
    `around` is the innermost element around it with namespace declarations."""

    around: Declaring | None
    start: int
    name_end: int
    tag_end: int
    end: int
    children: list[Node]

    def declarations(self, document: bytes) -> Scope:
        """The namespaces declared in the start tag."""
        # Most elements have no declarations; then the tag is not copied.
        declares = document.find(b"xmlns", self.name_end, self.tag_end) >= 0
        return _declarations(document[self.name_end : self.tag_end]) if declares else _NO_DECLARATIONS


Inherited = list[tuple[bytes, bytes, bytes]]
"""Namespaces in scope around an element: prefix, prefix with its colon, and the declaration as text."""


_NO_CHILDREN: list[Node] = []  # shared; never changed


class Source:
    """The bytes of a parsed document, scanned down to `depth` levels (the root is level 1).

    `document` must be the parsed bytes, in UTF-8: use both results of `xml_reading.read_xml`. With `within`, only this
    child of the root is scanned: the header of an envelope may be long. `bounded` is for an untrusted document; a
    broker's answer consists of messages that are each within the limits.
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
        # The last scope, cached: all messages of a Notify have the same one.
        self._around: Declaring | None = None
        self._inherited: Inherited = []
        self._scope_text = b""

    def node(self, element: etree._Element) -> Node:
        """The node of an element of the parsed document; for a long list use the children of the parent's node."""
        parent = element.getparent()
        return self._top if parent is None else self.node(parent).children[parent.index(element)]

    def fragment(self, node: Node) -> bytes:
        """The unchanged element, self-contained, in UTF-8.

        Raises TooLarge if the fragments of this document together are too large: each repeats the declarations, and
        thousands of copies of a namespace of a megabyte would exhaust the memory.
        """
        fragment = self_contained(self._document, node, self.inherited(node))
        self.count(fragment)
        return fragment

    def count(self, fragment: bytes) -> None:
        """Count a fragment that was made otherwise. Raises TooLarge as `fragment`."""
        self._left -= len(fragment)
        if self._left < 0:
            raise TooLarge("the elements of the request, each with its inherited namespaces, are too large")

    def inherited(self, node: Node) -> Inherited:
        """The namespaces in scope around an element. Raises TooLarge for too many."""
        self._find_scope(node)
        return self._inherited

    def inside(self, node: Node) -> bytes:
        """The unchanged content between the element's tags."""
        end_tag = self._document.rfind(b"<", node.tag_end, node.end)
        return self._document[node.tag_end : end_tag] if end_tag >= 0 else b""

    def identity(self, node: Node) -> bytes:
        """Bytes that are equal only for elements with the same text and the same namespaces in scope."""
        self._find_scope(node)
        return self._document[node.start : node.end] + self._scope_text

    def _find_scope(self, node: Node) -> None:
        around = node.around
        if around is self._around:
            return
        scope = around.scope(self._document) if around is not None else _NO_DECLARATIONS
        if self._bounded and len(scope) > limits.NAMESPACES_AROUND:
            raise TooLarge(
                f"{len(scope)} namespaces are declared around a payload, {limits.NAMESPACES_AROUND} are allowed"
            )
        self._scopes_left -= len(scope)
        if self._bounded and self._scopes_left < 0:
            raise TooLarge("the messages of the request declare too many namespaces")
        self._around = around
        self._inherited = [
            (prefix, prefix + b":", b" xmlns:" + prefix + b"=" + value if prefix else b" xmlns=" + value)
            for prefix, value in scope.items()
            # An undeclared default namespace (xmlns="") needs no declaration in a self-contained element.
            if len(value) > 2
        ]
        self._scope_text = b"".join(declaration for _, _, declaration in self._inherited)
        if len(self._scope_text) > limits.AROUND_BYTES:
            raise TooLarge(
                f"the namespaces declared around a payload are too large: {limits.AROUND_BYTES} bytes are allowed"
            )


def element_between(document: bytes, start: int, end: int) -> Node:
    """The node of an element at this position."""
    token = _TOKEN.match(document, start)
    if token is None:
        raise ValueError("not the bytes of a well-formed document")
    return Node(None, start, token.end(2), token.end(), end, _NO_CHILDREN)


def self_contained(document: bytes, node: Node, inherited: Inherited) -> bytes:
    """An element with the declarations of the inherited namespaces that it may use."""
    own = node.declarations(document)
    tail = document[node.name_end : node.end]
    name = document[node.start : node.name_end]
    parts = [name]
    listed: Container[bytes] = () if b"refix" not in tail else _words(tail)
    used_prefixes = _before_colons(tail) if len(inherited) > _FEW else None
    for prefix, qualifier, declaration in inherited:
        if prefix in own:
            continue
        if not prefix or prefix in listed or name.startswith(qualifier, 1):
            parts.append(declaration)
            continue
        found = prefix in used_prefixes if used_prefixes is not None else _may_use(tail, qualifier)
        if found is None:
            used_prefixes = _before_colons(tail)
            found = prefix in used_prefixes
        if found:
            parts.append(declaration)
    parts.append(tail)
    return b"".join(parts)


def _may_use(tail: bytes, qualifier: bytes) -> bool | None:
    """Whether the fragment may use a prefix (`qualifier` is the prefix with a colon) in its names, or in QNames in
    values or text. None if it is the end of too many longer prefixes.
    """
    found = tail.find(qualifier)
    # The end of a longer prefix does not count, as "s:" in "xmlns:".
    for _ in range(_MAX_MATCHES):
        if found <= 0 or tail[found - 1] not in _NAME_BYTES:
            return found >= 0
        found = tail.find(qualifier, found + 1)
    return None


def _before_colons(tail: bytes) -> set[bytes]:
    """All possible prefixes, in one pass."""
    return set(_BEFORE_COLON.findall(tail))


class _Everything:
    def __contains__(self, word: object) -> bool:
        return True


_EVERYTHING = _Everything()


def _words(tail: bytes) -> Container[bytes]:
    """The words of a text, which may be prefixes without a colon, in lists (InclusiveNamespaces/@PrefixList, XSLT's
    exclude-result-prefixes)."""
    return frozenset(_BETWEEN_WORDS.split(tail)) if len(tail) <= _LISTS else _EVERYTHING


def may_disguise_tags(document: bytes) -> bool:
    """Whether it has comments, CDATA sections or processing instructions, which alone can contain text like a tag; an
    XML declaration is none."""
    return document.startswith(b"<!") or _DISGUISE.search(document, 1) is not None


def _scan(document: bytes, depth: int, only: int | None = None, bounded: bool = True) -> Node:
    """The tree of nodes down to a depth; with `only`, without the content of the root's other children.

    With `bounded` it raises TooLarge for too many nodes.
    """
    nodes_left = len(document) // _NODE_BYTES + _NODES_FREE if bounded else len(document)
    around: Declaring | None = None
    siblings: list[Node] = []  # of the next node
    top = siblings
    open_elements: list[tuple[Node, Declaring | None, list[Node]]] = []  # with their scopes and siblings
    disguises = may_disguise_tags(document)
    search, position = _TOKEN.search, 0
    while (token := search(document, position)) is not None:
        kind = token.lastindex
        start, position = token.span()
        if kind == _START_TAG:
            nodes_left -= 1
            if nodes_left < 0:
                raise TooLarge("the request has too many elements outside its payloads")
            name_end = token.end(2)
            node = Node(around, start, name_end, position, position, _NO_CHILDREN)
            siblings.append(node)
            if document[position - 2] == _SLASH:  # an empty element: an attribute's value would end with a quote
                continue
            level = len(open_elements) + 1
            if level == depth or (level == 2 and only is not None and len(siblings) != only + 1):
                position = node.end = _end_of(document, token[2], position, disguises)
            else:
                open_elements.append((node, around, siblings))
                siblings = node.children = []
                if document.find(b"xmlns", name_end, position) >= 0:
                    around = Declaring(around, name_end, position)
        elif kind == _END_TAG:
            node, around, siblings = open_elements.pop()
            node.end = position
            if not open_elements:
                break
    return top[0]


def _end_of(document: bytes, name: bytes, position: int, disguises: bool) -> int:
    """The position after the end tag of an element; its start tag ends at `position`."""
    end_tag = b"</" + name
    found = document.find(end_tag, position)
    after = found + len(end_tag)
    plain = (
        document[after : after + 1] in _AFTER_NAME
        and document.find(b"<" + name, position, found) < 0
        and not (disguises and _DISGUISE.search(document, position, found))
    )
    if plain:
        return document.index(b">", after) + 1
    # The content may contain a similar tag: a nested element of the same name, a comment, CDATA.
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
