"""What old clients do to XML is undone, and nothing else is changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from arborcast.ingest.operations.legacy.text import decoded_once, parse, with_escaped_ampersands
from arborcast.wire.errors import MalformedMessage


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
def test_bare_ampersands_are_escaped_and_references_are_not(text: str, escaped: str) -> None:
    assert with_escaped_ampersands(text) == escaped


@pytest.mark.parametrize("text", ["告警 alarm", "é", "naïve 5 €", "Grüße"])
def test_text_that_was_encoded_twice_is_read_as_it_was_typed(text: str) -> None:
    assert decoded_once(text.encode().decode("latin-1")) == text


def test_content_that_is_no_xml_is_taken_as_characters() -> None:
    root, document = parse('<w:N xmlns:w="urn:w"><w:Message>1 < 2 & <b>3</w:Message></w:N>')
    assert root[0].text == "1 < 2 & <b>3"
    assert etree.fromstring(document)[0].text == "1 < 2 & <b>3"


def test_an_xml_declaration_and_a_byte_order_mark_are_nothing() -> None:
    root, _ = parse('\ufeff <?xml version="1.0" encoding="GBK"?><a>é</a>')
    assert root.text == "é"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "<a>",
        "<Message>",
        "<Message><",
        "<a><Message>x</Message>",
        '<!DOCTYPE a [<!ENTITY e "x">]><a>&e;</a>',
        "<a>\x01</a>",
    ],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(MalformedMessage):
        parse(text)


@given(st.text(st.characters(codec="utf-8", exclude_characters="<>\r", exclude_categories=["Cc", "Cs"]), max_size=40))
def test_text_with_bare_ampersands_is_what_a_reader_takes_it_for(text: str) -> None:
    """Whatever stands there is read back, references as what they mean."""
    try:
        root, _ = parse(f"<a>{text}</a>")
    except MalformedMessage:
        assert "&#" in text or "\ufffe" in text or "\uffff" in text
        return
    if "&" not in text and decoded_once(f"<a>{text}</a>") == f"<a>{text}</a>":
        assert (root.text or "") == text
