"""The parser and the extraction of fragments read the same document, in any encoding.

For damaged requests and for arbitrary bytes see the fuzz target `encoding`.
"""

from __future__ import annotations

import codecs

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lxml import etree

from arborcast.wire.envelope import parse
from arborcast.wire.errors import MalformedMessage
from arborcast.wire.xml_reading import as_utf8
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts
from tests.support.one_reading import hidden, is_taken

pytestmark = pytest.mark.slow

# Encodings of Python, and names of encodings.
CODECS = [
    *("utf-8", "utf-8-sig", "ascii", "iso-8859-1", "iso-8859-15", "cp1252", "gbk", "gb18030", "utf-16", "utf-16-le"),
    *("utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-7", "shift_jis", "johab", "big5", "euc-jp", "iso-2022-jp"),
    *("hz", "cp037", "cp500", "koi8-r", "cp932", "cp949", "iso-8859-5", "utf-8"),
]
NAMES = [
    *CODECS,
    *("UTF-16LE", "UTF-16BE", "UCS-2", "UCS-4", "ISO-10646-UCS-2", "EBCDIC-CP-US", "US-ASCII", "latin1", "klingon"),
    *("UTF8", "GB2312", "EUC-KR", "unicode_escape", "idna", "hex", "HTML", "x-user-defined"),
]
MARKS = [b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE]


PIECES = [
    *("é", "€", "告警", "\\", "~", "¥", "‾", "㰀", "⼀", "㸀", "\u3c00\u6100\u3e00", "𐀀", "\ufeff", "\x85", "\xa0"),
    *("<b/>", "<b>x</b>", "<!-- <b> -->", "<![CDATA[</a>]]>", "&#60;", "&lt;b&gt;", "<?p <b> ?>", 'x="1"'),
    *(hidden("t:theirs"), "+ADw-b+AD4-", "\x1b$B", "~{<b~}"),
]
TWO_READINGS = soap.envelope(soap.notify(soap.message("t:mine", f"<a>{hidden('t:alarms')}</a>"))).decode()
BACKSLASH = soap.envelope(soap.notify(soap.message("t:mine", "<a>\\~</a>"))).decode()
PAYLOADS = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)


def encoded(text: str, codec: str) -> bytes:
    try:
        return text.encode(codec, "ignore")
    except UnicodeError:  # utf-7 and idna do not support "ignore" for all texts
        return text.encode()


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A Notify in some encoding, with a right, a wrong or no encoding in declaration and Content-Type."""
    codec = draw(st.sampled_from(CODECS))
    names = st.one_of(st.just(codec), st.just(codec.removesuffix("-le").removesuffix("-be")), st.sampled_from(NAMES))
    text = soap.envelope(soap.notify(soap.message("t:mine", f"<a>{draw(PAYLOADS)}</a>"))).decode()
    if draw(st.booleans()):
        quote = draw(st.sampled_from("\"'"))
        text = f"<?xml version='1.0' encoding={quote}{draw(names)}{quote}?>{text}"
    content_type = f'text/xml; charset="{draw(names)}"' if draw(st.booleans()) else "text/xml"
    mark = draw(st.one_of(st.just(b""), st.sampled_from(MARKS)))
    return mark + encoded(text, codec), content_type.encode()


@settings(max_examples=200, deadline=None)
@given(requests())
@example((f'<?xml version="1.0" encoding="UTF-16"?>{TWO_READINGS}'.encode("utf-16-be"), b"text/xml"))
@example(((f'<?xml version="1.0" encoding="Shift_JIS"?>{BACKSLASH}').encode("shift_jis"), b"text/xml"))
@example(((f'<?xml version="1.0" encoding="Johab"?>{BACKSLASH}').encode("johab"), b"text/xml"))
def test_any_encoding_and_declaration(request: tuple[bytes, bytes]) -> None:
    is_taken(*request)


@given(requests(), st.binary(max_size=40))
@example((b"\0<\0a\0/\0>", b""), b"")
@example((b"<\0a\0/\0>\0", b""), b"")
@example((codecs.BOM_UTF32_LE + "<a/>".encode("utf-32-le"), b""), b"")
@example((b"Lo\xa7\x94", b""), b"")
def test_libxml2_gets_utf_8_only(request: tuple[bytes, bytes], more: bytes) -> None:
    body, content_type = request
    try:
        text = as_utf8(body + more, content_type)
    except MalformedMessage:
        return
    assert b"\0" not in text
    text.decode()
    beginning = text.split(b"?>")[0] if text.startswith(b"<?xml ") else b""
    assert b"encoding" not in beginning or b"utf-8" in beginning.lower() or b"utf8" in beginning.lower()


@pytest.mark.parametrize(
    ("declared", "mark", "codec", "content_type"),
    [
        ("utf-8", b"", "iso-8859-1", "; charset=iso-8859-1"),
        ("iso-8859-1", codecs.BOM_UTF8, "utf-8", '; charset="ISO-8859-1"'),
        ("GB2312", b"", "gbk", ""),
    ],
)
def test_precedence_of_mark_charset_and_declaration(declared: str, mark: bytes, codec: str, content_type: str) -> None:
    text = soap.envelope(soap.notify(soap.message(payload="<a>é</a>"))).decode()
    if declared:
        text = f"<?xml version='1.0' encoding='{declared}'?>{text}"
    body, content_type = mark + text.encode(codec), f"text/xml{content_type}"
    assert is_taken(body, content_type.encode())
    parts = GatewayParts()
    assert parts.post(body, content_type=content_type).status == 202
    assert parts.notifications.accepted[0].payload == "<a>é</a>".encode()


TWICE = b"<?xml version='1.0'?><?xml version='1.0' encoding='latin1'?><a/>"


@pytest.mark.parametrize(
    ("body", "content_type", "why"),
    [
        pytest.param("<?xml version='1.0' encoding='utf-16'?><a/>".encode("utf-16-be"), b"", "NUL", id="no mark"),
        pytest.param(b"<?xml version='1.0' encoding='utf-16'?><a/>", b"", "no byte-order mark", id="declared wrongly"),
        pytest.param(b"<a/>", b"text/xml; charset=utf-16be", "no byte-order mark", id="a byte order and no mark"),
        pytest.param(codecs.BOM_UTF16_LE + b"<\0a", b"", "truncated data", id="half a character"),
        pytest.param("<a>é</a>".encode("latin-1"), b"", "its declared encoding", id="undeclared Latin-1"),
        pytest.param(b"<?xml version='1.0' encoding='shift_jis'?><a>\\</a>", b"", "jis .* not accepted", id="other"),
        pytest.param(TWICE, b"", "XML decl", id="two"),
        pytest.param(TWICE[21:-4] + TWICE[:21] + TWICE[-4:], b"", "XML decl", id="two, one replaced"),
        pytest.param(b"<?xml version='1.0' encoding=latin1?><a/>", b"", "declaration cannot be read", id="no quotes"),
    ],
)
def test_refusals_of_encodings(body: bytes, content_type: bytes, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why):
        parse(body, content_type)


def test_no_text_is_hidden_in_the_other_byte_order(parts: GatewayParts) -> None:
    """In the other byte order this Notify for the sender's topic is one for another topic: no later message may be
    stored as one of the sender's."""
    text = f'<?xml version="1.0" encoding="UTF-16"?>{TWO_READINGS}'
    answer = parts.post(text.encode("utf-16-be"), content_type="text/xml")
    assert (answer.status, "byte-order mark" in answer.reason) == (400, True)
    assert parts.post(codecs.BOM_UTF16_BE + text.encode("utf-16-be"), content_type="text/xml").status == 202
    assert parts.post(soap.envelope(soap.notify(soap.message("t:alarms")))).status == 202
    mine, alarms = parts.notifications.accepted
    assert (mine.topic, alarms.topic) == ("{urn:t}mine", "{urn:t}alarms")
    assert etree.fromstring(mine.payload).text == hidden("t:alarms")
