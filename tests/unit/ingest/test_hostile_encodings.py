"""Document type declarations and entity expansion, in each encoding that a parser may accept."""

from __future__ import annotations

import codecs
import zlib

import pytest
from lxml import etree

from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer

_LAUGHS = '<!DOCTYPE b [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
BOMBS = {
    "billion laughs": _LAUGHS + "]><b>&j;</b>",
    "in an attribute": _LAUGHS + ']><b a="&j;"/>',
    "quadratic": f'<!DOCTYPE b [<!ENTITY a "{"x" * 20_000}">]><b>{"&a;" * 5_000}</b>',
    "parameter entities": "<!DOCTYPE b [<!ENTITY % a \"<!ENTITY x 'y'>\"> %a;]><b>&x;</b>",
    "a file": '<!DOCTYPE b [<!ENTITY a SYSTEM "file:///etc/passwd">]><b>&a;</b>',
    "a page": '<!DOCTYPE b SYSTEM "http://127.0.0.1:9/x.dtd"><b/>',
    "an empty one": "<!DOCTYPE b><b/>",
}
ENCODINGS = [
    *("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1", "iso-8859-15"),
    *("us-ascii", "windows-1252", "gbk", "gb18030"),
]
ODD = ["utf-32", "utf-7", "cp037", "hz-gb-2312", "iso-2022-jp", "utf-32-be"]

_DECLARED = {"utf-8-sig": "utf-8", "utf-16-le": "utf-16", "utf-16-be": "utf-16", "utf-32-be": "utf-32"}


def document(text: str, encoding: str, *, declared: bool) -> bytes:
    name = _DECLARED.get(encoding, encoding)
    if declared:
        text = f'<?xml version="1.0" encoding="{name}"?>{text}'
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE, "utf-32-be": codecs.BOM_UTF32_BE}
    return mark.get(encoding, b"") + text.encode("hz" if encoding == "hz-gb-2312" else encoding)


UTF_8 = "text/xml; charset=utf-8"


def refused(answer: HttpAnswer, parts: GatewayParts) -> None:
    assert answer.status == 400, answer.reason
    assert answer.reason
    assert answer.reason != "internal error"
    assert "root:" not in answer.body.decode(), "no content of the file"
    assert len(answer.body) < 10_000
    assert (parts.notifications.accepted, parts.control.records) == ([], [])


@pytest.mark.parametrize("encoding", [*ENCODINGS, *ODD])
@pytest.mark.parametrize("name", BOMBS)
def test_document_type_declarations_are_refused_in_each_encoding(name: str, encoding: str) -> None:
    charset = f"text/xml; charset={_DECLARED.get(encoding, encoding)}"
    for declared, content_type in ((True, "text/xml"), (False, charset), (False, "text/xml"), (True, UTF_8)):
        parts = GatewayParts()
        refused(parts.post(document(BOMBS[name], encoding, declared=declared), content_type=content_type), parts)


GOOD = soap.envelope(soap.notify(soap.message(payload="<a>é</a>"))).decode()


def taken(body: bytes, content_type: str) -> None:
    parts = GatewayParts()
    answer = parts.post(body, content_type=content_type)
    assert answer.status == 202, answer.reason
    (accepted,) = parts.notifications.accepted
    assert "é".encode() in accepted.payload


@pytest.mark.parametrize("encoding", [each for each in ENCODINGS if each != "us-ascii"])
def test_valid_messages_in_the_same_encodings(encoding: str) -> None:
    taken(document(GOOD, encoding, declared=True), "text/xml")
    taken(document(GOOD, encoding, declared=False), f"text/xml; charset={_DECLARED.get(encoding, encoding)}")
    if encoding in ("utf-8-sig", "utf-16-le", "utf-16-be"):  # the byte-order mark is sufficient
        taken(document(GOOD, encoding, declared=False), "text/xml")
    if encoding in ("utf-16-le", "utf-16-be"):
        taken(document(GOOD, encoding, declared=False), "text/xml; charset=iso-8859-1")


def test_compressed_bodies_are_refused_unread(parts: GatewayParts) -> None:
    packed = zlib.compress(b" " * 1_000_000)
    for coding in ("gzip", "deflate", "x-gzip", "br", "zstd", "compress", "identity, gzip", "GZIP"):
        answer = parts.post(packed, content_encoding=coding)
        assert (answer.status, b"uncompressed" in answer.body) == (415, True), coding
        refused_unread = parts.post(zlib.compress(soap.envelope(soap.notify())), transfer_encoding=coding)
        assert refused_unread.status == 400, coding
    assert parts.notifications.accepted == []


ODD_MARKUP = ('<q xmlns="relative"/>', '<q xml:space="bad"/>', '<q xml:lang="%%"/>', '<q xmlns:r="a:b c"/>', "")


@pytest.mark.parametrize(
    "wrong",
    [
        *("<n><p:undeclared/>{}</n>", '<n p:undeclared="1">{}</n>', '<n a:b:c="1">{}</n>', "<n><a:b:c/>{}</n>"),
        *('<n xmlns:z="">{}</n>', '<n xmlns:a="urn:u" xmlns:b="urn:u" a:c="1" b:c="2">{}</n>', "<n><:x/>{}</n>"),
        *("<n><?a:b c?>{}</n>", '<n xmlns:xmlns="urn:u">{}</n>'),
    ],
)
@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_markup_that_some_parsers_refuse_is_refused(wrong: str, version: str) -> None:
    """Strict receivers would refuse all messages of the push."""
    for odd in ODD_MARKUP:
        parts, payload = GatewayParts(), wrong.format(odd)
        refused(parts.post(soap.envelope(soap.notify(soap.message(payload=payload)), version)), parts)
        refused(parts.post(soap.envelope(soap.notify(), version, header=f'<h xmlns="urn:h">{payload}</h>')), parts)
        # Clients of the older envelope do not escape: invalid markup is text.
        assert parts.post(legacy.wsn_process(legacy.notify("a", payload)), "/wsnprocess").status == 200
        (accepted,) = parts.notifications.accepted
        assert len(etree.fromstring(accepted.payload)) == 0
        assert b"&lt;n" in accepted.payload


@pytest.mark.parametrize("odd", ODD_MARKUP[:3])
def test_odd_markup_is_accepted(parts: GatewayParts, odd: str) -> None:
    assert parts.post(soap.envelope(soap.notify(soap.message(payload=f"<n>{odd}</n>")))).status == 202
    (accepted,) = parts.notifications.accepted
    assert odd.encode() in accepted.payload
