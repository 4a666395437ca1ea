"""XML of strangers: from the bytes that came to a tree, and to the bytes in UTF-8 that the tree was parsed from.

Payloads and topics are cut out of those bytes (`wire.fragments`), so the parser and whoever cuts must never
read the same message in two ways: a publisher could have one text checked and another one stored. That is why the
encoding is decided here, once, and nothing is left for libxml2 to decide:

- what is parsed is UTF-8, the parser is told so, and an XML declaration that names another encoding is replaced;
- no NUL is in it, so nothing looks like UTF-16 or UTF-32 without a mark; it is valid UTF-8, so nothing looks like
  EBCDIC or like the mark of UTF-16. libxml2 recognises no encoding by anything else.

Clients of WS-Notification send UTF-8; a few old ones Latin-1, windows-1252 or GBK, and an XML reader has to take
UTF-16. Whatever else Python and libxml2 both know by name, each in its own way, is refused.
"""

from __future__ import annotations

import codecs
import re
import threading
from typing import NamedTuple

from lxml import etree

from arborcast.core.xml import xml_parser
from arborcast.wire.errors import MalformedMessage

# libxml2 takes any number of attributes and declarations, and so do we, in linear time. Receivers of a payload may not:
# many a parser compares each attribute with each other. libxml2's own bounds (256 levels, names of 50,000 characters,
# 10 MB in one text) stay on, see `make_parser`.
MAX_ATTRIBUTES = 1_000

"""Attributes of one element, its namespace declarations among them."""

MAX_DECLARATIONS = 256

"""Namespace declarations of one element."""

MAX_DECLARATIONS_IN_ALL = 100_000

"""Of one message: clients that declare a namespace on each element need a tenth of it."""

MAX_PAYLOAD_DEPTH = 200

"""Levels of a payload, its root included. libxml2 reads 256; the others are for the elements around the payload, in a
push, in the answer of a pull point, and in a document of the consumer."""

MAX_PAYLOAD_DECLARATIONS = 50_000

"""Namespace declarations of a payload, so that a message that was accepted here is accepted by the next broker."""

# 257 declarations have 12 bytes each. What is shorter, as nearly every tag is, is not looked at.
_LARGE = 3_000

_LARGE_TAG = re.compile(rb"<([^\s<>/!?][^<]{%d,})" % (_LARGE - 2))

ATTRIBUTE = re.compile(rb"(?<=[\s\"'])([^\s=\"'<>/]++)\s*+=\s*+(\"[^\"]*+\"|'[^']*+')|(>)")

"""Name and quoted value of an attribute, or the end of its tag. Looked for behind the tag's name.

A name is tried from its first letter only, and no blank is looked at twice: long names, and blanks without end, take a
time that is linear.
"""

NODE_MEMORY = 400

"""What an element or an attribute takes with a text in it, at most: 260 bytes in libxml2, and, where it belongs to a
message, what we note of it."""

COPIES = 4

"""So often the bytes of a body are there: as they came, in the tree, cut up, and on their way into the log."""


def memory_to_read(document: bytes, elements: int) -> int:
    """How many bytes of memory it takes to parse a document, and to cut it up.

    Raises MalformedMessage for one with more than so many elements and attributes, which takes a hundred times its size
    and more. They are counted without parsing, so that what looks like one inside a text counts too.
    """
    found = document.count(b"<") + document.count(b"=")  # at most; as good as the number for what is small
    if found > elements:
        quotes = document.count(b'"') + document.count(b"'")
        found = document.count(b"<") - document.count(b"</") + min(document.count(b"="), quotes // 2)
        if found > elements:
            raise MalformedMessage(f"the request has {found} elements and attributes, {elements} are taken")
    return COPIES * len(document) + NODE_MEMORY * found


def check_tags(document: bytes) -> None:
    """Raises MalformedMessage for a well-formed document, in UTF-8, of which a tag holds too much."""
    if len(document) <= _LARGE:
        return
    declared = document.count(b"xmlns")
    if declared > MAX_DECLARATIONS_IN_ALL:
        raise MalformedMessage(f"{declared} namespaces are declared, {MAX_DECLARATIONS_IN_ALL} may be")
    if document.count(b"=") <= MAX_DECLARATIONS:
        return
    for tag in _LARGE_TAG.finditer(document):
        _check_tag(tag[1])


_IS_TOO_DEEP = etree.XPath(f"boolean({'/'.join(['*'] * MAX_PAYLOAD_DEPTH)})")


def check_payload(payload: bytes, root: etree._Element) -> None:
    """Raises MalformedMessage for a payload that a consumer may be unable to read: every door checks what it stores.

    `payload` is the fragment as it is stored, `root` its element in the request, or the element around loose content.
    """
    # A level that holds another one has an end tag.
    if payload.count(b"</") >= MAX_PAYLOAD_DEPTH and _IS_TOO_DEEP(root):
        raise MalformedMessage(f"a payload has more than {MAX_PAYLOAD_DEPTH} levels")
    declared = payload.count(b"xmlns")
    if declared > MAX_PAYLOAD_DECLARATIONS:
        raise MalformedMessage(f"a payload declares {declared} namespaces, {MAX_PAYLOAD_DECLARATIONS} may be")
    if declared > MAX_DECLARATIONS:  # the declarations around the payload are in its start tag now
        _check_tag(payload[1 : payload.find(b"<", 1)])


def _check_tag(tag: bytes) -> None:
    declarations = 0
    for attributes, found in enumerate(ATTRIBUTE.finditer(tag), start=1):
        if found[3]:  # the end of the tag; what follows is text
            return
        declarations += found[1] == b"xmlns" or found[1].startswith(b"xmlns:")
        if declarations > MAX_DECLARATIONS:
            raise MalformedMessage(f"an element declares more than {MAX_DECLARATIONS} namespaces")
        if attributes > MAX_ATTRIBUTES:
            raise MalformedMessage(f"an element has more than {MAX_ATTRIBUTES} attributes")


_TAKEN = "UTF-8, US-ASCII, ISO-8859-1 and -15, windows-1252, GBK and GB18030 are taken, UTF-16 with a byte-order mark"

# By names in lower case without - and _. In all of them an XML declaration has the bytes of ASCII, so that it can be
# read before the rest is.
_CODECS = {
    b"utf8": "utf-8",
    b"ascii": "ascii",
    b"usascii": "ascii",
    b"iso88591": "iso-8859-1",
    b"latin1": "iso-8859-1",
    b"iso885915": "iso-8859-15",
    b"latin9": "iso-8859-15",
    b"windows1252": "cp1252",
    b"cp1252": "cp1252",
    b"gb2312": "gbk",
    b"gbk": "gbk",
    b"gb18030": "gb18030",
}

_UTF16 = {b"utf16", b"utf16le", b"utf16be", b"ucs2", b"iso10646ucs2"}

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}

_BEGIN_MARKED = tuple(_MARKS)

_CHARSET = re.compile(rb"charset\s*+=\s*+\"?([\w.:-]++)", re.IGNORECASE)

_BEGINS = re.compile(rb"<\?xml[ \t\r\n]")

_NAME = rb"(?:\"([A-Za-z][\w.-]*+)\"|'([A-Za-z][\w.-]*+)')"

_IS = rb"[ \t\r\n]*+=[ \t\r\n]*+"

_DECLARATION = re.compile(
    rb"<\?xml[ \t\r\n]++version" + _IS + rb"(?:\"1\.[0-9]++\"|'1\.[0-9]++')"
    rb"(?:[ \t\r\n]++encoding" + _IS + _NAME + rb")?+"
    rb"(?:[ \t\r\n]++standalone" + _IS + rb"(?:\"(?:yes|no)\"|'(?:yes|no)'))?+[ \t\r\n]*+\?>"
)

# In place of one that names another encoding. Not just left out: a second one behind it must stay the fault that it is.
_NEUTRAL = b'<?xml version="1.0"?>'


class Xml(NamedTuple):
    """A well-formed document: its root, and the very bytes that were parsed, in UTF-8 and without a mark."""

    root: etree._Element
    document: bytes


def read_xml(document: bytes, content_type: bytes = b"", what: str = "the request") -> Xml:
    """Read a document that is well-formed, its namespaces included, and has no DTD.

    A pure function of its arguments, for any thread; of `content_type` (HTTP's) the charset counts. Raises
    MalformedMessage.

    lxml alone overlooks undeclared prefixes, and names with two colons, when libxml2 has anything to warn of behind
    them, such as a namespace that is no absolute URI. A payload like that would travel on, and spoil for its receivers
    what is pushed together with it.
    """
    document = as_utf8(document, content_type, what)
    parser = _parsers.utf8
    try:
        root = etree.fromstring(document, parser)
    except (etree.XMLSyntaxError, ValueError) as error:  # ValueError: an empty body
        message = (error.msg if isinstance(error, etree.XMLSyntaxError) else str(error)) or type(error).__name__
        raise MalformedMessage(f"{what} is not well-formed XML: {message.splitlines()[0][:200]}") from error
    log = parser.error_log
    if len(log):
        for each in log.filter_from_errors():
            raise MalformedMessage(
                f"{what} is not well-formed XML: {each.message[:200]}, line {each.line}, column {each.column}"
            )
    # Without these letters there is none, and looking for it in the tree takes longer.
    if b"<!DOCTYPE" in document and root.getroottree().docinfo.internalDTD is not None:
        raise MalformedMessage(f"a document type declaration is not allowed in {what}")
    return Xml(root, document)


def make_parser() -> etree.XMLParser:
    """A parser for UTF-8 of strangers."""
    # Payloads are cut from the bytes, so the tree is ours to simplify.
    return xml_parser(comments=False, encoding="utf-8")


def as_utf8(document: bytes, content_type: bytes = b"", what: str = "the request") -> bytes:
    """The document in UTF-8, without a mark, and with no XML declaration that says otherwise. Raises MalformedMessage.

    A mark goes before HTTP's charset, and that before the XML declaration (RFC 7303); UTF-8 where none says anything.
    """
    codec, mark = _encoding_of(document, content_type, what)
    text = document[len(mark) :] if mark else document
    if codec != "utf-8":
        text = _decoded(text, codec, what).encode()
    elif not text.isascii():
        _decoded(text, codec, what)
    if b"\0" in text:
        raise MalformedMessage(f"{what} holds NUL characters: {_TAKEN}; send UTF-8")
    if _BEGINS.match(text):
        declaration = _DECLARATION.match(text)
        if declaration is None:
            raise MalformedMessage(f"{what} is not well-formed XML: its XML declaration cannot be read")
        declared = declaration[1] or declaration[2]
        if declared is not None and _plain(declared) != b"utf8":
            return _NEUTRAL + text[declaration.end() :]
    return text


class _Parsers(threading.local):
    """Of each thread its own: a parser's log of errors is that of whatever it has read last."""

    def __init__(self) -> None:
        self.utf8 = make_parser()


_parsers = _Parsers()


def _encoding_of(document: bytes, content_type: bytes, what: str) -> tuple[str, bytes]:
    """What to decode the document with, and the mark that it begins with."""
    if document.startswith(_BEGIN_MARKED):
        for mark, codec in _MARKS.items():
            if document.startswith(mark):
                return codec, mark
    charset = _CHARSET.search(content_type)
    if charset is not None:
        return _codec_named(charset[1], what), b""
    declaration = _DECLARATION.match(document)
    declared = (declaration[1] or declaration[2]) if declaration is not None else None
    return "utf-8" if declared is None else _codec_named(declared, what), b""


def _codec_named(name: bytes, what: str) -> str:
    plain = _plain(name)
    codec = _CODECS.get(plain)
    if codec is None:
        shown = name[:60].decode("ascii", "replace")
        if plain in _UTF16:
            raise MalformedMessage(f"{what} is said to be {shown} and has no byte-order mark: {_TAKEN}; send UTF-8")
        raise MalformedMessage(f"the encoding {shown} of {what} is not taken: {_TAKEN}; send UTF-8")
    return codec


def _plain(name: bytes) -> bytes:
    return name.lower().replace(b"-", b"").replace(b"_", b"")


def _decoded(text: bytes, codec: str, what: str) -> str:
    try:
        return text.decode(codec)
    except UnicodeError as error:
        raise MalformedMessage(
            f"{what} is not in the encoding that it is said to be in: {error}; send UTF-8"
        ) from error
