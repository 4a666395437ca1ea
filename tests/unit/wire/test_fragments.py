from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from arborcast.wire.envelope import parse
from arborcast.wire.fragments import Source
from arborcast.wire.xml_reading import make_parser
from tests.support import soap_messages as soap


def payload_of(message: bytes) -> bytes:
    request = parse(message)
    source = request.source(6)
    return source.fragment(source.node(request.operation[0][1][0]))


def in_context(payload: str, declarations: str = "") -> bytes:
    return soap.envelope(
        "<wsnt:Notify><wsnt:NotificationMessage><wsnt:Topic>a</wsnt:Topic>"
        f"<wsnt:Message {declarations}>{payload}</wsnt:Message></wsnt:NotificationMessage></wsnt:Notify>"
    )


@pytest.mark.parametrize(
    ("payload", "declarations", "fragment"),
    [
        pytest.param("<a/>", "", "<a/>", id="nothing to add"),
        pytest.param("<o:a/>", 'xmlns:o="urn:o"', '<o:a xmlns:o="urn:o"/>', id="its own prefix"),
        pytest.param("<a/>", 'xmlns="urn:d"', '<a xmlns="urn:d"/>', id="the default namespace"),
        pytest.param('<a xmlns=""/>', 'xmlns="urn:d"', '<a xmlns=""/>', id="undeclared again"),
        pytest.param(
            '<a type="o:b"/>', 'xmlns:o="urn:o"', '<a xmlns:o="urn:o" type="o:b"/>', id="a QName in an attribute"
        ),
        pytest.param("<a>o:b</a>", 'xmlns:o="urn:o"', '<a xmlns:o="urn:o">o:b</a>', id="a QName in text"),
        pytest.param(
            '<a PrefixList="o"/>', 'xmlns:o="urn:o"', '<a xmlns:o="urn:o" PrefixList="o"/>', id="a list of prefixes"
        ),
        pytest.param("<a><a/><a></a></a>", "", "<a><a/><a></a></a>", id="an element in one of its own name"),
        pytest.param("<a><ab></ab></a >", "", "<a><ab></ab></a >", id="a name that begins alike"),
        pytest.param("<a>foo bar</a>", 'xmlns:o="urn:o"', "<a>foo bar</a>", id="part of a word is no prefix"),
        pytest.param('<o:a xmlns:o="urn:mine"/>', 'xmlns:o="urn:o"', '<o:a xmlns:o="urn:mine"/>', id="declared anew"),
        pytest.param(
            "<o:a/>", "xmlns:o='urn:x?a&amp;b'", "<o:a xmlns:o='urn:x?a&amp;b'/>", id="value as it was written"
        ),
        pytest.param("<a  b = '1'\n></a >", "", "<a  b = '1'\n></a >", id="white space and quotes"),
        pytest.param("<a><![CDATA[</a><b>]]>&#65;&lt;</a>", "", "<a><![CDATA[</a><b>]]>&#65;&lt;</a>", id="CDATA"),
        pytest.param("<a><!-- </a> --><?p </a> ?></a>", "", "<a><!-- </a> --><?p </a> ?></a>", id="comments"),
        pytest.param('<a b="/>" c=">"/>', "", '<a b="/>" c=">"/>', id="tags in attributes"),
    ],
)
def test_a_payload_is_cut_as_it_was_sent(payload: str, declarations: str, fragment: str) -> None:
    assert payload_of(in_context(payload, declarations)) == fragment.encode()


def test_comments_around_it_are_not_counted() -> None:
    message = in_context("<!-- <x> --><?x <y> ?><a/><!-- > -->")
    assert payload_of(b"<?xml version='1.0'?><!-- <z> -->\n" + message) == b"<a/>"


_NAMES = st.sampled_from(["a", "b", "o:a", "p:b", "o:ab"])
_TEXTS = st.text(st.sampled_from("xyz o:p'\"é\n"), max_size=8).map(
    lambda text: text.replace("&", "&amp;").replace("<", "&lt;")
)
_EXTRAS = st.sampled_from(["", "<!-- <o:x> -->", "<![CDATA[<b>&]]>", "<?pi o:a ?>", "&#9731;", "&gt;"])
_DECLARATIONS = st.sets(
    st.sampled_from(['xmlns="urn:d"', 'xmlns:o="urn:o"', "xmlns:p='urn:p'", 'xmlns:q="urn:q"']), max_size=4
)
_QUOTED = st.sampled_from(['"o:v"', "'a > b'", '"x/>"', "'\"'", '""'])


@st.composite
def _elements(draw: st.DrawFn, depth: int = 3) -> str:
    name = draw(_NAMES)
    own = " ".join(sorted(draw(_DECLARATIONS)))
    attribute = f" k={draw(_QUOTED)}" if draw(st.booleans()) else ""
    children = draw(st.lists(_elements(depth - 1), max_size=2)) if depth else []
    inside = "".join(child + draw(_TEXTS) + draw(_EXTRAS) for child in children) or draw(_TEXTS)
    return f"<{name} {own}{attribute}>{inside}</{name}>" if inside else f"<{name}{attribute} {own}/>"


@given(_elements(), _DECLARATIONS)
def test_a_fragment_alone_means_what_it_meant_in_its_place(payload: str, declarations: set[str]) -> None:
    # The place declares the prefixes that the payload may use, so that every generated document is well-formed.
    missing = {'xmlns:o="urn:o"', "xmlns:p='urn:p'"} - declarations
    message = in_context(payload, " ".join(sorted(declarations | missing)))
    root = etree.fromstring(message, make_parser())
    source = Source(message, root, 6)
    fragment = source.fragment(source.node(_payload_element(root)))
    assert _canonical(etree.fromstring(fragment)) == _canonical(_payload_element(etree.fromstring(message)))
    # Nothing was changed behind the name of the first element, and only declarations were put there.
    name, _, rest = payload.partition(" ")
    assert fragment.startswith(name.encode())
    assert fragment.endswith(rest.encode())
    added = fragment[len(name.encode()) : len(fragment) - len(rest.encode())].split()
    assert all(part.startswith(b"xmlns") for part in added)


def _payload_element(root: etree._Element) -> etree._Element:
    content = root.find(".//{*}Message")
    assert content is not None
    return content[0]


def _canonical(element: etree._Element) -> bytes:
    return etree.tostring(element, method="c14n", exclusive=True)


def test_identities_tell_apart_what_says_something_else() -> None:
    document = (
        b"<a xmlns:p='urn:1'><b><t>p:x</t></b><b><t>p:x</t></b>"
        b"<b xmlns:p='urn:2'><t>p:x</t></b><b><t d='1'>p:x</t></b></a>"
    )
    root = etree.fromstring(document)
    source = Source(document, root, 3)
    first, equal, other_scope, other_text = (source.identity(node.children[0]) for node in source.node(root).children)
    assert first == equal
    assert len({first, other_scope, other_text}) == 3


@pytest.mark.parametrize(
    "header",
    [
        "",
        "<s:Header/>",
        "<s:Header></s:Header>",
        "<s:Header ><w:a xmlns:w='urn:w'><w:b>1</w:b><w:b/></w:a></s:Header >",
        "<s:Header><s:Header><s:Body><b><t>no</t></b></s:Body></s:Header></s:Header>",
        "<s:Header><!-- </s:Header><s:Body><b><t>no</t></b></s:Body> --><x/></s:Header>",
        "<s:Header><x><![CDATA[</s:Header><s:Body><b><t>no</t></b></s:Body>]]></x></s:Header>",
        "<s:Header a='</s:Header>' b='/>'><?x </s:Header>?></s:Header>".replace("</s:Header>'", "&lt;/s:Header>'"),
        "<s:HeaderOfOthers><t/></s:HeaderOfOthers><s:Header/>",
    ],
)
def test_what_stands_in_front_of_the_body_does_not_matter(header: str) -> None:
    document = (
        f"<s:Envelope xmlns:s='urn:s' xmlns:p='urn:1'>{header}<s:Body><b><t>p:x</t><t>y</t></b></s:Body></s:Envelope>"
    ).encode()
    root = etree.fromstring(document, make_parser())
    body = root[-1]
    for source in (Source(document, root, 4), Source(document, root, 4, body)):
        nodes = source.node(body[0]).children
        assert [source.fragment(node) for node in nodes] == [b"<t xmlns:p='urn:1'>p:x</t>", b"<t>y</t>"]
