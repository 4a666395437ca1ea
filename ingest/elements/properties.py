"""Messages of pull points, and properties of a message: names and values in the metadata of its ProducerReference,
where subscribers with SOAP find them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from lxml import etree

from arborcast.client.received import ReceivedMessage, read_messages
from arborcast.topic_model.namespaces import ARBORCAST_POLICY, WSA, WSNT, wsa, wsnt
from arborcast.wire import limits
from arborcast.wire.errors import InvalidRequest
from arborcast.wire.fragments import Source
from arborcast.wire.xml_reading import read_xml

_PROPERTIES, _PROPERTY = f"{{{ARBORCAST_POLICY}}}Properties", f"{{{ARBORCAST_POLICY}}}Property"


_OPEN, _CLOSE = f'<wsnt:GetMessagesResponse xmlns:wsnt="{WSNT}">'.encode(), b"</wsnt:GetMessagesResponse>"

# GetMessagesResponse, NotificationMessage, Message, payload.
_PAYLOAD_DEPTH = 4


def read_stored(element: bytes) -> tuple[etree._Element, ReceivedMessage]:
    """A message of a pull point, as an element and as values. Raises PeerError."""
    root, document = read_xml(_OPEN + element + _CLOSE, what="a message of a pull point")
    read = read_messages(root, Source(document, root, _PAYLOAD_DEPTH, bounded=False))
    if len(read) != 1:
        raise InvalidRequest(f"a message of a pull point has {len(read)} NotificationMessages")
    return root[0], read[0]


def producer_with(properties: Mapping[str, str]) -> bytes:
    """A wsnt:ProducerReference with these properties, self-contained. Raises InvalidRequest."""
    size = sum(len(name) + len(value) for name, value in properties.items())
    if size > limits.PROPERTY_CHARACTERS:
        raise InvalidRequest(
            f"the properties of a message may have {limits.PROPERTY_CHARACTERS} characters, these have {size}"
        )
    reference = etree.Element(wsnt("ProducerReference"), nsmap={"wsnt": WSNT, "wsa": WSA, "p": ARBORCAST_POLICY})
    etree.SubElement(reference, wsa("Address")).text = f"{WSA}/anonymous"
    inside = etree.SubElement(etree.SubElement(reference, wsa("Metadata")), _PROPERTIES)
    for name, value in properties.items():
        if not name:
            raise InvalidRequest("a property has a name")
        try:
            etree.SubElement(inside, _PROPERTY, Name=name).text = value
        except ValueError as error:
            raise InvalidRequest(f"the property {name[:60]!r} has characters that XML has no place for") from error
    return bytes(etree.tostring(reference))


def properties_of(element: etree._Element) -> dict[str, str]:
    """The properties of a wsnt:NotificationMessage."""
    path = f"{wsnt('ProducerReference')}/{wsa('Metadata')}/{_PROPERTIES}/{_PROPERTY}"
    return {each.get("Name", ""): each.text or "" for each in element.iterfind(path)}
