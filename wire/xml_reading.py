"""Parsing untrusted XML: from received bytes to a tree, and to the UTF-8 bytes from which the tree was parsed.

Payloads and topics are cut out of those bytes (`wire.fragments`), so the parser and the cutting must interpret a
message equally; otherwise a publisher could have one text checked and another one stored. So the encoding is determined
here, and libxml2 has no choice:

- the parsed text is UTF-8, the parser gets this encoding, and an XML declaration with another encoding is replaced;
- it has no NUL, so it cannot look like UTF-16 or UTF-32 without a byte-order mark; it is valid UTF-8, so it cannot look
  like EBCDIC or begin with the mark of UTF-16. libxml2 detects no other encodings.

Clients of WS-Notification send UTF-8, a few old ones Latin-1, windows-1252 or GBK; UTF-16 is mandatory for XML.
Other encodings, which Python and libxml2 may decode differently, are refused.
"""

from __future__ import annotations

import codecs
import re
import threading
from typing import NamedTuple

from lxml import etree

from arborcast.core.xml import parse_xml, xml_parser
from arborcast.wire import limits
from arborcast.wire.errors import MalformedMessage

# 257 declarations of at least 12 bytes. Shorter tags, which are nearly all, are not checked.
_LARGE = 3_000

_LARGE_TAG = re.compile(rb"<([^\s<>/!?][^<]{%d,})" % (_LARGE - 2))

ATTRIBUTE = re.compile(rb"(?<=[\s\"'])([^\s=\"'<>/]++)\s*+=\s*+(\"[^\"]*+\"|'[^']*+')|(>)")

"""Name and quoted value of an attribute, or the end of its tag. For the text after the tag's name.

A name is tried from its first letter only, and white space is matched once, so long names and long white space take
linear time.
"""

NODE_MEMORY = 400

"""Maximum memory of an element or an attribute with its text: 260 bytes in libxml2, plus its Node."""

COPIES = 4

"""The number of copies of a body in memory: received, in the tree, in fragments, and in the producer."""


def memory_to_read(document: bytes, elements: int) -> int:
    """The memory in bytes for parsing a document and cutting it.

    Raises MalformedMessage for more than `elements` elements and attributes, which may take more than a hundred times
    its size. They are counted without parsing, so similar characters in texts count too.
    """
    found = document.count(b"<") + document.count(b"=")  # an upper bound; sufficient for small documents
    if found > elements:
        quotes = document.count(b'"') + document.count(b"'")
        found = document.count(b"<") - document.count(b"</") + min(document.count(b"="), quotes // 2)
        if found > elements:
            raise MalformedMessage(f"the request has {found} elements and attributes, {elements} are allowed")
    return COPIES * len(document) + NODE_MEMORY * found


def check_tags(document: bytes) -> None:
    """Raises MalformedMessage if a tag of a well-formed UTF-8 document has too many attributes or declarations."""
    if len(document) <= _LARGE:
        return
    if document.count(b"=") <= limits.DECLARATIONS:
        return
    declared = document.count(b"xmlns")
    if declared > limits.ALL_DECLARATIONS:
        raise MalformedMessage(f"{declared} namespaces are declared, {limits.ALL_DECLARATIONS} are allowed")
    for tag in _LARGE_TAG.finditer(document):
        _check_tag(tag[1])


_IS_TOO_DEEP = etree.XPath(f"boolean({'/'.join(['*'] * limits.PAYLOAD_LEVELS)})")


def check_payload(payload: bytes, root: etree._Element) -> None:
    """Raises MalformedMessage for a payload that consumers may be unable to read. Called for each stored payload.

    `payload` is the stored fragment, `root` its element in the request, or the element around loose content.
    """
    # A single byte is counted several times as fast as `</` or `xmlns`. Each level around another one has two tags, and
    # each declaration an equals sign.
    if payload.count(b"<") > 2 * limits.PAYLOAD_LEVELS and _IS_TOO_DEEP(root):
        raise MalformedMessage(f"a payload has more than {limits.PAYLOAD_LEVELS} levels")
    if payload.count(b"=") <= limits.DECLARATIONS:
        return
    declared = payload.count(b"xmlns")
    if declared > limits.PAYLOAD_DECLARATIONS:
        raise MalformedMessage(f"a payload declares {declared} namespaces, {limits.PAYLOAD_DECLARATIONS} are allowed")
    if declared > limits.DECLARATIONS:  # a fragment's start tag has the inherited declarations
        _check_tag(payload[1 : payload.find(b"<", 1)])


def _check_tag(tag: bytes) -> None:
    declarations = 0
    for attributes, found in enumerate(ATTRIBUTE.finditer(tag), start=1):
        if found[3]:  # the end of the tag; what follows is text
            return
        declarations += found[1] == b"xmlns" or found[1].startswith(b"xmlns:")
        if declarations > limits.DECLARATIONS:
            raise MalformedMessage(f"an element declares more than {limits.DECLARATIONS} namespaces")
        if attributes > limits.ATTRIBUTES:
            raise MalformedMessage(f"an element has more than {limits.ATTRIBUTES} attributes")


_ACCEPTED = (
    "accepted are UTF-8, US-ASCII, ISO-8859-1 and -15, windows-1252, GBK and GB18030, UTF-16 with a byte-order mark"
)

# By names in lower case without - and _. In all of them an XML declaration consists of ASCII bytes, so that it can be
# read first.
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

# Replaces a declaration with another encoding. It is not removed, so that a second declaration stays an error.
_NEUTRAL = b'<?xml version="1.0"?>'


class Xml(NamedTuple):
    """A well-formed document: its root, and the parsed bytes, in UTF-8 without a byte-order mark."""

    root: etree._Element
    document: bytes


def read_xml(document: bytes, content_type: bytes = b"", what: str = "the request") -> Xml:
    """Parse a document that is well-formed, including its namespaces, and has no DTD.

    Pure, for any thread; `content_type` (HTTP's) may have a charset. Raises MalformedMessage.

    lxml alone ignores undeclared prefixes, and names with two colons, if a warning of libxml2 follows, such as a
    relative namespace URI. Such a payload would make a push with several messages unreadable.
    """
    document = as_utf8(document, content_type, what)
    parser = _parsers.utf8
    try:
        root = parse_xml(document, parser)
    except (etree.XMLSyntaxError, ValueError) as error:  # ValueError: an empty body
        message = (error.msg if isinstance(error, etree.XMLSyntaxError) else str(error)) or type(error).__name__
        raise MalformedMessage(f"{what} is not well-formed XML: {message.splitlines()[0][:200]}") from error
    log = parser.error_log
    if len(log):
        for each in log.filter_from_errors():
            raise MalformedMessage(
                f"{what} is not well-formed XML: {each.message[:200]}, line {each.line}, column {each.column}"
            )
    # A test of the bytes first, since the test of the tree takes longer.
    if b"<!DOCTYPE" in document and root.getroottree().docinfo.internalDTD is not None:
        raise MalformedMessage(f"a document type declaration is not allowed in {what}")
    return Xml(root, document)


def read_payload(document: bytes, content_type: bytes = b"", what: str = "the payload") -> Xml:
    """Parse a document that is a payload, for any thread. Raises MalformedMessage."""
    xml = read_xml(document, content_type, what)
    check_tags(xml.document)
    check_payload(xml.document, xml.root)
    return xml


def make_parser() -> etree.XMLParser:
    """A parser for untrusted UTF-8."""
    # Payloads are cut from the bytes, so the tree needs no comments.
    return xml_parser(comments=False, encoding="utf-8")


def as_utf8(document: bytes, content_type: bytes = b"", what: str = "the request") -> bytes:
    """The document in UTF-8, without a byte-order mark and without a contrary XML declaration. Raises MalformedMessage.

    A byte-order mark takes precedence over HTTP's charset, which takes precedence over the XML declaration (RFC 7303);
    the default is UTF-8.
    """
    codec, mark = _encoding_of(document, content_type, what)
    text = document[len(mark) :] if mark else document
    if codec != "utf-8":
        text = _decoded(text, codec, what).encode()
    elif not text.isascii():
        _decoded(text, codec, what)
    if b"\0" in text:
        raise MalformedMessage(f"{what} has NUL characters: {_ACCEPTED}; send UTF-8")
    if _BEGINS.match(text):
        declaration = _DECLARATION.match(text)
        if declaration is None:
            raise MalformedMessage(f"{what} is not well-formed XML: its XML declaration cannot be read")
        declared = declaration[1] or declaration[2]
        if declared is not None and _plain(declared) != b"utf8":
            return _NEUTRAL + text[declaration.end() :]
    return text


class _Parsers(threading.local):
    """One parser for each thread, since its log of errors is of the last document."""

    def __init__(self) -> None:
        self.utf8 = make_parser()


_parsers = _Parsers()


def _encoding_of(document: bytes, content_type: bytes, what: str) -> tuple[str, bytes]:
    """The codec of the document, and its byte-order mark, if any."""
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
            raise MalformedMessage(f"{what} is declared as {shown} but has no byte-order mark: {_ACCEPTED}; send UTF-8")
        raise MalformedMessage(f"the encoding {shown} of {what} is not accepted: {_ACCEPTED}; send UTF-8")
    return codec


def _plain(name: bytes) -> bytes:
    return name.lower().replace(b"-", b"").replace(b"_", b"")


def _decoded(text: bytes, codec: str, what: str) -> str:
    try:
        return text.decode(codec)
    except UnicodeError as error:
        raise MalformedMessage(f"{what} is not in its declared encoding: {error}; send UTF-8") from error
