"""Endpoint references of others: reading them, and judging where we would push to.

A ConsumerReference is a URL that a stranger makes us call, so it is judged before it is stored. Where a name leads is
for `ingest.consumers`, and decided again by the side that connects, each time it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lxml import etree

from arborcast.core.security.outbound import AddressPolicy, Refusal, place_of
from arborcast.core.security.uris import to_uri
from arborcast.ingest.addresses import Kind, OwnAddresses
from arborcast.ingest.errors import ConsumerRefused, InvalidRequest
from arborcast.ingest.soap import answers
from arborcast.ingest.soap.fragments import Source
from arborcast.topic_model.namespaces import WSA, wsa
from arborcast.topic_model.projections.pull_points import PullPoints
from arborcast.topic_model.records.control import PullPointRecord
from arborcast.topic_model.subscriptions import EndpointReference, doubled_header

_MAX_ADDRESS = 2_048

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


def check_consumer(reference: EndpointReference, own: OwnAddresses, policy: AddressPolicy) -> None:
    """Raises ConsumerRefused when we would not push to this reference, as far as its text tells."""
    address = reference.address
    shown = repr(address[:200])
    if address.startswith(WSA):
        raise ConsumerRefused(f"the ConsumerReference {shown} is no place that can be pushed to")
    if len(address) > _MAX_ADDRESS:
        raise ConsumerRefused(f"the ConsumerReference's address is longer than {_MAX_ADDRESS} characters: {shown}")
    refusal = policy.check_url(address)
    if refusal is None or refusal.rule not in ("spelling", "scheme", "userinfo"):
        host, port = place_of(address)
        if own.leads_back(host, port):
            refusal = Refusal("own-port", "leads back to this broker")
    if refusal is not None:
        raise refused(address, refusal)
    doubled = doubled_header(reference.reference_parameters)
    if doubled:
        raise ConsumerRefused(
            f"the ConsumerReference has a ReferenceParameter {doubled[:200]}: every message to it would have "
            "two headers of that name"
        )


def refused(address: str, refusal: Refusal) -> ConsumerRefused:
    """The error that tells a subscriber why its address is not pushed to. A password in it is not repeated."""
    shown = "" if refusal.rule == "userinfo" else f" {address[:200]!r}"
    return ConsumerRefused(f"the ConsumerReference{shown} {refusal.reason}", refusal.rule)


def judge_consumer(
    reference: EndpointReference, own: OwnAddresses, points: PullPoints, policy: AddressPolicy
) -> PullPointRecord | None:
    """The pull point of ours that a ConsumerReference means, None for an address that may be pushed to.

    Raises ConsumerRefused.
    """
    target = own.target_of_url(reference.address)
    if target is not None and target.kind is Kind.PULL_POINT:
        point = points.get(target.id)
        if point is not None:
            return point
        if own.is_ours(reference.address):
            raise ConsumerRefused(f"the ConsumerReference is a pull point that is not there: {target.id[:200]!r}")
    check_consumer(reference, own, policy)
    return None


def _fragments(reference: etree._Element, name: str, source: Source) -> Iterator[str]:
    container = reference.find(wsa(name))
    if container is not None:
        for node in source.node(container).children:
            yield source.fragment(node).decode()
