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


WITH_O = 'xmlns:o="urn:o"'

CUT = {
    "nothing to add": ("<a/>", "", "<a/>"),
    "its own prefix": ("<o:a/>", WITH_O, f"<o:a {WITH_O}/>"),
    "the default namespace": ("<a/>", 'xmlns="urn:d"', '<a xmlns="urn:d"/>'),
    "undeclared again": ('<a xmlns=""/>', 'xmlns="urn:d"', '<a xmlns=""/>'),
    "a QName in an attribute": ('<a type="o:b"/>', WITH_O, f'<a {WITH_O} type="o:b"/>'),
    "a QName in text": ("<a>o:b</a>", WITH_O, f"<a {WITH_O}>o:b</a>"),
    "a list of prefixes": ('<a PrefixList="o"/>', WITH_O, f'<a {WITH_O} PrefixList="o"/>'),
    "part of a word is no prefix": ("<a>foo bar</a>", WITH_O, "<a>foo bar</a>"),
    "declared again": ('<o:a xmlns:o="urn:mine"/>', WITH_O, '<o:a xmlns:o="urn:mine"/>'),
    "an unchanged value": ("<o:a/>", "xmlns:o='urn:x?a&amp;b'", "<o:a xmlns:o='urn:x?a&amp;b'/>"),
}
AS_IT_IS = [
    *("<a><a/><a></a></a>", "<a><ab></ab></a >", "<a  b = '1'\n></a >", "<a><![CDATA[</a><b>]]>&#65;&lt;</a>"),
    *("<a><!-- </a> --><?p </a> ?></a>", '<a b="/>" c=">"/>'),
]


@pytest.mark.parametrize("case", [*CUT, *AS_IT_IS])
def test_a_payload_is_cut_out_unchanged(case: str) -> None:
    payload, declarations, fragment = CUT.get(case, (case, "", case))
    assert payload_of(in_context(payload, declarations)) == fragment.encode()
    # Comments around it are not counted.
    message = in_context(f"<!-- <x> --><?x <y> ?>{payload}<!-- > -->", declarations)
    assert payload_of(b"<?xml version='1.0'?><!-- <z> -->\n" + message) == fragment.encode()


def _payload_element(root: etree._Element) -> etree._Element:
    content = root.find(".//{*}Message")
    assert content is not None
    return content[0]


def _canonical(element: etree._Element) -> bytes:
    return etree.tostring(element, method="c14n", exclusive=True)


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
def test_a_separate_fragment_has_the_meaning_of_its_context(payload: str, declarations: set[str]) -> None:
    # The context declares the prefixes that the payload may use, so that every generated document is well-formed.
    missing = {'xmlns:o="urn:o"', "xmlns:p='urn:p'"} - declarations
    message = in_context(payload, " ".join(sorted(declarations | missing)))
    root = etree.fromstring(message, make_parser())
    source = Source(message, root, 6)
    fragment = source.fragment(source.node(_payload_element(root)))
    assert _canonical(etree.fromstring(fragment)) == _canonical(_payload_element(etree.fromstring(message)))
    # Nothing changed behind the name of the first element, and only declarations were inserted there.
    name, _, rest = payload.partition(" ")
    assert fragment.startswith(name.encode())
    assert fragment.endswith(rest.encode())
    added = fragment[len(name.encode()) : len(fragment) - len(rest.encode())].split()
    assert all(part.startswith(b"xmlns") for part in added)


def test_elements_of_other_scope_or_content_have_other_identities() -> None:
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
def test_headers_before_the_body_have_no_effect(header: str) -> None:
    document = (
        f"<s:Envelope xmlns:s='urn:s' xmlns:p='urn:1'>{header}<s:Body><b><t>p:x</t><t>y</t></b></s:Body></s:Envelope>"
    ).encode()
    root = etree.fromstring(document, make_parser())
    body = root[-1]
    for source in (Source(document, root, 4), Source(document, root, 4, body)):
        nodes = source.node(body[0]).children
        assert [source.fragment(node) for node in nodes] == [b"<t xmlns:p='urn:1'>p:x</t>", b"<t>y</t>"]
