"""Reading and writing endpoint references; paths of a gateway's addresses; a consumer's answer to a challenge."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from lxml import etree

from arborcast.core.security.uris import to_uri
from arborcast.topic_model.namespaces import wsa
from arborcast.topic_model.subscriptions import EndpointReference
from arborcast.wire import answers
from arborcast.wire.errors import InvalidRequest
from arborcast.wire.fragments import Source


class Kind(Enum):
    """The kind of a gateway's path. Values are path prefixes; an id follows those that end with `/`."""

    BROKER = "/wsn/NotificationBroker"
    PULL_POINT_FACTORY = "/wsn/CreatePullPoint"
    REGISTRATION_FACTORY = "/wsn/registrations"
    LEGACY = "/wsnprocess"
    EVENT_SERVICE = "/onvif/event_service"
    DEVICE_SERVICE = "/onvif/device_service"
    SUBSCRIPTION = "/wsn/subscriptions/"
    PULL_POINT = "/wsn/pullpoints/"
    REGISTRATION = "/wsn/registrations/"


CHALLENGE_HEADER = "Arborcast-Challenge"
"""The header of a request for a consumer's consent to pushes; see `ingest.consumers`."""


_WORD = re.compile(r"[A-Za-z0-9_-]{20,100}")


def consent_body(challenge: str) -> bytes | None:
    """The body with which a consumer consents, for the value of the header; None for an invalid challenge."""
    return challenge.encode() if _WORD.fullmatch(challenge) else None


def read_reference(element: etree._Element, source: Source) -> EndpointReference:
    """The EPR in an element of EndpointReferenceType; its XML parts are unchanged.

    Its address may be an IRI and is converted to a URI. Some clients nest a wsa:EndpointReference; then the inner one
    counts. Raises InvalidRequest.
    """
    inner = element.find(wsa("EndpointReference"))
    reference = element if inner is None else inner
    address = (reference.findtext(wsa("Address")) or "").strip()
    if not address:
        raise InvalidRequest(f"{etree.QName(element).localname} has no wsa:Address")
    return EndpointReference(
        to_uri(address),
        tuple(_fragments(reference, "ReferenceParameters", source)),
        tuple(_fragments(reference, "Metadata", source)),
    )


def reference_content(reference: EndpointReference) -> str:
    """The content of an element of EndpointReferenceType; the prefix wsa must be in scope."""
    parts = [f"<wsa:Address>{answers.text(reference.address)}</wsa:Address>"]
    for name, fragments in (("ReferenceParameters", reference.reference_parameters), ("Metadata", reference.metadata)):
        if fragments:
            parts.append(f"<wsa:{name}>{''.join(fragments)}</wsa:{name}>")
    return "".join(parts)


def _fragments(reference: etree._Element, name: str, source: Source) -> Iterator[str]:
    container = reference.find(wsa(name))
    if container is not None:
        for node in source.node(container).children:
            yield source.fragment(node).decode()
