"""Text of old clients as XML. They concatenate strings: ampersands are not escaped, and wsnt:Message contains the
user's input, XML or not. Some read UTF-8 bytes as Latin-1 and encode the result again. These functions repair that."""

from __future__ import annotations

import re

from arborcast.core.printable import NOT_XML
from arborcast.wire.errors import MalformedMessage
from arborcast.wire.xml_reading import Xml, check_tags, read_xml

# References, which begin with an ampersand; XML has these five entities.
_BARE = r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6});)"

# In CDATA sections, comments and processing instructions it is an ordinary character. An unterminated one reaches to
# the end of the text: else each further one would be searched to there, which takes minutes.
_VERBATIM_OR_BARE = re.compile(rf"<!\[CDATA\[.*?(?:\]\]>|\Z)|<!--.*?(?:-->|\Z)|<\?.*?(?:\?>|\Z)|({_BARE})", re.DOTALL)

_ONLY_BARE = re.compile(_BARE)

_CHARACTER = re.compile(r"&#(?:([0-9]{1,7})|x([0-9A-Fa-f]{1,6}));")

_DECLARATION = re.compile(r"<\?xml\s[^>]*\?>")

_CONTENT = re.compile(r"<((?:[^\s<>/:!?]+:)?Message)(?:\s[^<>]*)?(?<!/)>")


def decoded_once(text: str) -> str:
    """The text as it was typed, if it arrived as UTF-8 read as Latin-1 and encoded again; else unchanged.

    The criterion: every character fits into a byte, and the bytes are UTF-8.
    """
    if text.isascii():
        return text
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


def parse(text: str) -> Xml:
    """The root element of a message text, and the document that it was read from. Raises MalformedMessage.

    Content of wsnt:Message that is not XML is taken as the characters that it is.
    """
    text = decoded_once(text).removeprefix("\ufeff").lstrip()
    if (declaration := _DECLARATION.match(text)) is not None:
        text = text[declaration.end() :]
    return repaired_xml(text)


def repaired_xml(text: str) -> Xml:
    """The same of a text that is decoded. XML beyond the limits of a tag is refused, and not taken as text."""
    try:
        xml = _parsed(with_escaped_ampersands(text))
    except MalformedMessage:
        plain = _with_plain_content(text)
        if plain is None:
            raise
        xml = _parsed(plain)
    check_tags(xml.document)
    return xml


def with_escaped_ampersands(text: str) -> str:
    """The text with every ampersand that begins no reference written as one."""
    if "&" not in text:
        return text
    if "<!" not in text and "<?" not in text:
        return _ONLY_BARE.sub("&amp;", text)
    return _VERBATIM_OR_BARE.sub(lambda found: "&amp;" if found[1] else found[0], text)


def _if_there_is_one(reference: re.Match[str]) -> str:
    """The reference, with its ampersand as a character when there is no such one in XML."""
    number = int(reference[1]) if reference[1] else int(reference[2], 16)
    there = number < 0x110000 and NOT_XML.match(chr(number)) is None
    return reference[0] if there else f"&amp;{reference[0][1:]}"


def _parsed(document: str) -> Xml:
    return read_xml(document.encode(), what="the text of WsnProcess")


def _with_plain_content(text: str) -> str | None:
    """The text with the markup inside the (one) Message escaped; None when there is no such element."""
    start = _CONTENT.search(text)
    if start is None:
        return None
    end = text.rfind(f"</{start[1]}", start.end())
    if end < 0:
        return None
    content = NOT_XML.sub("?", text[start.end() : end])
    escaped = _CHARACTER.sub(_if_there_is_one, _ONLY_BARE.sub("&amp;", content))
    escaped = escaped.replace("<", "&lt;").replace(">", "&gt;")
    return with_escaped_ampersands(text[: start.end()]) + escaped + with_escaped_ampersands(text[end:])


def raw_content(text: str) -> str:
    """The unchanged content of the only wsnt:Message of a text."""
    start = _CONTENT.search(text)
    return "" if start is None else text[start.end() : max(start.end(), text.rfind(f"</{start[1]}", start.end()))]
