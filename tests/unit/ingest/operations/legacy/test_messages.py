"""Messages of old clients, read as requests: defects in their XML are corrected, the rest is unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from arborcast.ingest.operations.legacy.messages import MessagePart, Notify, read
from arborcast.ingest.operations.legacy.text import decoded_once, parse, with_escaped_ampersands
from arborcast.topic_model.legacy_content import wrap
from arborcast.topic_model.records.packages import Fragment
from arborcast.wire.errors import InvalidRequest, MalformedMessage
from tests.support import legacy_messages as legacy


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a & b", "a &amp; b"),
        ("a && b", "a &amp;&amp; b"),
        ("a &amp; &lt; &#65; &#x41; b", "a &amp; &lt; &#65; &#x41; b"),
        ("?x=1&y=2", "?x=1&amp;y=2"),
        ("&nbsp;", "&amp;nbsp;"),
        ("&amp", "&amp;amp"),
        ("<![CDATA[a & b]]> & c", "<![CDATA[a & b]]> &amp; c"),
        ("<!-- a & b --> & <?p a & b?>", "<!-- a & b --> &amp; <?p a & b?>"),
    ],
)
def test_bare_ampersands_are_escaped(text: str, escaped: str) -> None:
    assert with_escaped_ampersands(text) == escaped


def test_corrected_texts() -> None:
    for text in ("告警 alarm", "é", "naïve 5 €", "Grüße"):
        assert decoded_once(text.encode().decode("latin-1")) == text, "encoded twice"
    root, document = parse('<w:N xmlns:w="urn:w"><w:Message>1 < 2 & <b>3</w:Message></w:N>')
    assert root[0].text == etree.fromstring(document)[0].text == "1 < 2 & <b>3"
    root, _ = parse('\ufeff <?xml version="1.0" encoding="GBK"?><a>é</a>')
    assert root.text == "é"


DOCTYPE = '<!DOCTYPE a [<!ENTITY e "x">]><a>&e;</a>'


@pytest.mark.parametrize(
    "text", ["", "hello", "<a>", "<Message>", "<Message><", "<a><Message>x</Message>", DOCTYPE, "<a>\x01</a>"]
)
def test_unreadable_texts(text: str) -> None:
    with pytest.raises(MalformedMessage):
        parse(text)


@given(st.text(st.sampled_from("&&&#;xampltg01 é告\x85\ufffe"), max_size=40))
def test_text_with_bare_ampersands_is_read_back(text: str) -> None:
    try:
        root, _ = parse(f"<a>{text}</a>")
    except MalformedMessage:
        assert "&#" in text or "\ufffe" in text or "\uffff" in text
        return
    if "&" not in text and decoded_once(f"<a>{text}</a>") == f"<a>{text}</a>":
        assert (root.text or "") == text


@pytest.mark.parametrize(
    ("content", "payload"),
    [
        ("<x a='1'><!-- c --></x>", b"<x a='1'><!-- c --></x>"),
        (" \n<x/> ", b"<x/>"),
        ("plain text", wrap("plain text", {})),
        (" a & b &lt; c ", wrap("a &amp; b &lt; c", {})),
        ("1 < 2", wrap("1 &lt; 2", {})),
        ("", wrap("", {})),
        ("<topic>t</topic><message>m</message>", wrap("<topic>t</topic><message>m</message>", {})),
        ("text <wsnt:x/>", wrap("text <wsnt:x/>", {"wsnt": legacy.WSNT})),
        ("<cut &#0; &#xD800; &#x110000; &#65;", wrap("&lt;cut &amp;#0; &amp;#xD800; &amp;#x110000; &#65;", {})),
    ],
)
def test_content_becomes_one_element(content: str, payload: bytes) -> None:
    request = read(legacy.notify("a", content))
    assert isinstance(request, Notify)
    assert request.messages[0].payload == payload


def in_notify(*messages: str) -> str:
    return f'<n:Notify xmlns:n="{legacy.WSNT}">{"".join(messages)}</n:Notify>'


@pytest.mark.parametrize("content", ["<a>cut off", "</a> & <", "R&am", "p;D ", "<![CDATA[ x", "", "<whole/>", " \n"])
def test_a_part_keeps_its_content_unchanged(content: str) -> None:
    for text in (legacy.notify("a", content, "1-1-0-4"), in_notify(legacy.notify("a", content, "1-1-0-4"))):
        request = read(text)
        assert isinstance(request, MessagePart)
        assert (request.topic, request.identification) == ("a", "10481519:1")
        assert (request.fragment, request.content) == (Fragment(part=True, more=True, number=4), content)
        assert request.namespaces["wsnt"] == legacy.WSNT


def element(inside: str, name: str) -> str:
    return f'<w:{name} xmlns:w="{legacy.WSNT}">{inside}</w:{name}>'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<Subscribe/>", "not Subscribe"),
        (element("", "Renew"), "Renew"),
        (element("", "Notify"), "no NotificationMessage"),
        (element("<w:Topic>a</w:Topic>", "NotificationMessage"), "no Message"),
        (in_notify(legacy.notify("a", "<x/>", "1-1-0-0"), legacy.notify("a", "<x/>")), "must be sent alone"),
        *((legacy.notify("a", "", f"1-1-{alone}-0", ""), "no Identification") for alone in (0, 1)),
        *((legacy.notify("a", "", f"1-1-{alone}-0", "i" * 201), "200 are allowed") for alone in (0, 1)),
        *((legacy.notify("a", "", text), "an unsplit message has 0-0-0-0") for text in ("0-0-0-1", "0-1-1-0")),
        *((legacy.notify("a", "", text), "below 100000") for text in ("1-1-0-100000", "1-1-1-100000")),
        *((legacy.notify("a", "", text), "not of the form") for text in ("2-0-0-0", "0-0-1", "0-0-1-\u0660", "x")),
    ],
)
def test_refused_requests(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read(text)
