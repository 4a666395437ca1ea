"""Messages that may be in one document, with libxml2's check of unique ids as the reference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from arborcast.topic_model.records.xml_ids import NO_IDS, any_clash, clash, xml_ids

PAIRS = [
    (b'<a xml:id="x"/>', b'<b xml:id="x"/>', True),
    (b'<a xml:id="x"/>', b"<b><c xml:id\n =\t'x'/></b>", True),
    (b'<a xml:id="x"/>', b'<b xml:id="&#120;"/>', True),
    (b'<a xml:id="x"/>', b'<b xml:id=" x "/>', True),
    (b'<a xml:id="\xc3\xa9"/>', b'<b xml:id="\xc3\xa9"/>', True),
    (b'<a xml:id="x"/>', b'<b xml:id="y"/>', False),
    (b'<a xml:id="x"/>', b'<b id="x"/>', False),
    (b"<a/>", b"<b/>", False),
]


@pytest.mark.parametrize(("one", "other", "apart"), PAIRS)
def test_equal_ids_in_any_notation_keep_messages_apart(one: bytes, other: bytes, apart: bool) -> None:
    assert clash(xml_ids(one), xml_ids(other)) == clash(xml_ids(other), xml_ids(one)) == apart


def test_a_message_without_ids_clashes_with_none() -> None:
    plain = xml_ids(b"<a>" + b"x" * 1_000 + b"</a>")
    assert plain is NO_IDS
    many = xml_ids(b"<a>" + b"".join(b'<b xml:id="i%d"/>' % number for number in range(100)) + b"</a>")
    assert not clash(plain, many)
    assert clash(many, xml_ids(b'<a xml:id="other"/>')), "too many to compare: never with other ids"
    assert len(many) == 1, "without the memory of a hundred"


_LETTERS = st.sampled_from(["a", "b", "&#97;", "&#x62;", "ab"])
_ELEMENT = st.builds(
    lambda value, quote, gap, before: f"<e n={quote}1{quote}{before}xml:id{gap}={gap}{quote}{value}{quote}/>",
    _LETTERS,
    st.sampled_from(['"', "'"]),
    st.sampled_from(["", " ", "\n"]),
    st.sampled_from([" ", "\t"]),
)
_OTHERS = st.sampled_from(["<e/>", "text xml:id", "<![CDATA[<e xml:id='a'/>]]>", "<!-- xml:id='a' -->", "<e id='a'/>"])


@given(st.lists(st.builds("<m>{}{}{}</m>".format, _OTHERS, _ELEMENT | _OTHERS, _OTHERS), max_size=4))
def test_messages_without_a_clash_are_read_in_one_document(messages: list[str]) -> None:
    if not any_clash(xml_ids(message.encode()) for message in messages):
        etree.fromstring(f"<all>{''.join(messages)}</all>")
