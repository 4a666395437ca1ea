"""Whether a request has one interpretation: the messages cut out of its bytes equal the parsed ones."""

from __future__ import annotations

from lxml import etree

from arborcast.topic_model.namespaces import wsnt
from arborcast.wire.envelope import parse
from arborcast.wire.errors import UnreadableRequest
from arborcast.wire.xml_reading import make_parser
from tests.support import soap_messages as soap


def other_way_round(text: str) -> str:
    """Characters with the bytes of this text in the other byte order."""
    return text.encode("utf-16-le").decode("utf-16-be")


def hidden(topic: str) -> str:
    """A whole message that is visible only in the other byte order."""
    return other_way_round(soap.envelope(soap.notify(soap.message(topic))).decode())


def is_taken(body: bytes, content_type: bytes) -> bool:
    """Whether the request is accepted; then all its messages must be cut as they were parsed."""
    parser = make_parser()
    try:
        request = parse(body, content_type)
        if request.name != wsnt("Notify"):
            return True
        source = request.source(6)
        nodes = source.node(request.operation).children
        for message, node in zip(request.operation, nodes, strict=True):
            for part, part_node in zip(message, node.children, strict=True):
                assert _are_equal(etree.fromstring(source.fragment(part_node), parser), part)
                for child, child_node in zip(part, part_node.children, strict=True):
                    assert _are_equal(etree.fromstring(source.fragment(child_node), parser), child)
    except UnreadableRequest:
        return False
    return True


def _are_equal(cut: etree._Element, parsed: etree._Element) -> bool:
    try:
        return _canonical(cut) == _canonical(parsed)
    except etree.C14NError:  # no canonical form with a relative namespace in scope
        return _facts(cut) == _facts(parsed)


def _canonical(element: etree._Element) -> bytes:
    return etree.tostring(element, method="c14n", exclusive=True, with_comments=False)


def _facts(element: etree._Element) -> list[object]:
    children = [(_facts(child), child.tail or "") for child in element]
    return [element.tag, sorted(element.attrib.items()), element.text or "", children]
