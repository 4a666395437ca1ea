from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arborcast.core.errors import PeerError
from arborcast.ingest.soap.shapes import Shapes
from arborcast.topic_model.namespaces import SOAP11, WSA, WSNT, wsnt
from arborcast.wire.envelope import Request, parse

DEPTH = 6
HEADER = f'<s:Header><a:MessageID xmlns:a="{WSA}">urn:%s</a:MessageID></s:Header>'
CONTENT = wsnt("Message")


def body(
    payload: str, topic: str = "t:a", header: str = "", message: str = "w:Message", more: str = "", beside: str = ""
) -> bytes:
    name, _, _ = message.partition(" ")
    return (
        f'<s:Envelope xmlns:s="{SOAP11}" xmlns:w="{WSNT}" xmlns:e="urn:e">{header}<s:Body><w:Notify>'
        f'<w:NotificationMessage><w:Topic xmlns:t="urn:t">{topic}</w:Topic><{message}>{payload}</{name}>{beside}'
        f"</w:NotificationMessage>{more}</w:Notify></s:Body></s:Envelope>"
    ).encode()


def shapes_with(document: bytes, shapes: Shapes[str] | None = None) -> Shapes[str]:
    """The shapes, with that of this document, whose value is "known"."""
    shapes = Shapes() if shapes is None else shapes
    request = parse(document)
    place = [part.tag for part in request.operation[0]].index(CONTENT)
    shapes.remember(request, request.source(DEPTH), place, "known")
    return shapes


def scanned(request: Request) -> tuple[bytes, str] | None:
    """The payload as found by the scan; None if there is not exactly one message with one payload."""
    if len(request.operation) != 1:
        return None
    contents = [number for number, part in enumerate(request.operation[0]) if part.tag == CONTENT]
    if len(contents) != 1 or len(request.operation[0][contents[0]]) != 1:
        return None
    source = request.source(DEPTH)
    node = source.node(request.operation).children[0].children[contents[0]].children[0]
    return source.fragment(node), str(request.operation[0][contents[0]][0].tag)


def test_known_shapes_find_the_payload_of_the_scan() -> None:
    shapes = shapes_with(body("<o/>"))
    for payload in ("<p>text</p>", '<e:x a=">"/>', '<x xmlns="urn:x"><e:y b="\'"/></x>', '<x t="e:q">&lt;e:q/&gt;</x>'):
        request = parse(body(payload))
        found = shapes.find(request)
        assert found is not None
        assert (found.payload, str(found.element.tag)) == scanned(request)
        assert found.value == "known"


@pytest.mark.parametrize(
    "other",
    [
        body("<o/>", topic="t:b"),
        body("<o/>").replace(b'xmlns:e="urn:e"', b'xmlns:e="urn:f"'),
        body("<o/>", more="<w:NotificationMessage><w:Message><o/></w:Message></w:NotificationMessage>"),
        body("<o/>", beside="<w:Message><o/></w:Message>"),
        *map(body, ("<o/><o/>", "text<o/>", "<o/>text", "<o/>>", "<o/>text>", "<o/>\n >", "<o/>&lt;p/>", "<o/> ")),
        *map(body, ("<!-- --><o/>", "<o/><!-- > -->", "<?p ?><o/>", "<o><![CDATA[</w:Message>]]></o>")),
        *map(body, ("<o/></w:Message><w:Message><o/>", "</w:Message><w:Message><o/>")),
        body("<o/></w:Message></w:NotificationMessage><w:NotificationMessage><w:Message><o/>"),
    ],
)
def test_other_shapes_are_scanned(other: bytes) -> None:
    assert shapes_with(body("<o/>")).find(parse(other)) is None


def test_a_header_with_a_copy_of_the_body_is_scanned() -> None:
    known = body("<o/>", header=HEADER % "1")
    inside = known[known.index(b"<s:Body>") : known.index(b"<o/>")].decode()
    closed = "</w:Message></w:NotificationMessage></w:Notify></s:Body>"
    request = parse(body("<o/>", header=f"<s:Header><x>{inside}<fake/>{closed}</x></s:Header>"))
    assert shapes_with(known).find(request) is None


def test_long_shapes_are_not_cached() -> None:
    long = body("<o/>", topic="t:" + "a" * 5_000)
    assert shapes_with(long).find(parse(long)) is None


PIECES = [
    *("<o/>", "<e:o>", "</e:o>", "<s:Body>", "</s:Body>", "<w:Notify>", "</w:Notify>", "<w:NotificationMessage>"),
    *("</w:NotificationMessage>", "<w:Message>", "</w:Message>", "<w:Message/>", "<w:Topic/>", "text", " ", "\n"),
    *("<!-- -->", "<![CDATA[", "]]>", "<?p ?>", "&lt;", '<o a="', '"/>', "'", "/>", ">", '<o xmlns:e="urn:mine"/>'),
    *("<s:Header>", "</s:Header>", "<s:Body", "<e:Message>", "</e:Message>"),
]
BESIDE = st.lists(st.sampled_from(["", "text", ">", " ", "\n", "&lt;", "'"]), max_size=3).map("".join)
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=7).map("".join),
    st.tuples(BESIDE, st.sampled_from(["<o/>", "<e:o>></e:o>"]), BESIDE).map("".join),
)
HEADERS = st.one_of(st.just(""), st.just(HEADER % "1"), TEXTS.map(lambda inside: f"<s:Header>{inside}</s:Header>"))


@given(
    TEXTS.map(lambda payload: body(payload)),
    st.tuples(TEXTS, HEADERS, TEXTS).map(lambda parts: body(parts[0], header=parts[1], beside=parts[2])),
    st.sampled_from([body("<o/>"), body("<o/>", header=HEADER % "1"), body(" <o/>\n", beside="<w:Topic/>")]),
)
@example(body("<o/>"), body("<e:p/>"), body("<o/>"))
def test_shapes_agree_with_the_scan(first: bytes, second: bytes, third: bytes) -> None:
    shapes: Shapes[str] = Shapes()
    for document in (third, first, second):
        try:
            request = parse(document)
        except PeerError:
            continue
        found, expected = shapes.find(request), scanned(request)
        assert found is None or (found.payload, str(found.element.tag)) == expected
        if expected is not None:
            shapes_with(document, shapes)
            again = shapes.find(parse(document))
            assert again is None or (again.payload, str(again.element.tag)) == expected
