"""Endpoint references, read and written; paths of a gateway's addresses; the answer to a consumer's challenge."""

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
    """What a path of ours stands for. Values are path prefixes; those ending in `/` carry an id."""

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
"""What a consumer is asked with whether it agrees to be pushed to; see `ingest.consumers`."""


_WORD = re.compile(r"[A-Za-z0-9_-]{20,100}")


def agreement(challenge: str) -> bytes | None:
    """What a consumer answers to the value of the header, None when that is no challenge of ours."""
    return challenge.encode() if _WORD.fullmatch(challenge) else None


def read_reference(element: etree._Element, source: Source) -> EndpointReference:
    """The EPR in an element of EndpointReferenceType; its extra parts stay as they were sent.

    Its address may be an IRI, and is the URI of that from here on. Some clients put a whole wsa:EndpointReference
    inside: the inner one counts. Raises InvalidRequest.
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
    """What stands inside an element of EndpointReferenceType; the prefix wsa must be declared around it."""
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
