"""Endpoint references of clients: read with their bounds, and checked, since the engine will push to them.

A ConsumerReference is a URL that a stranger makes the engine call, so it is checked before it is stored. The addresses
of a host name are checked by `ingest.consumers`, and by the transport for each connection.
"""

from __future__ import annotations

from lxml import etree

from arborcast.core.security.outbound import AddressPolicy, Refusal, place_of
from arborcast.ingest.addresses import OwnAddresses
from arborcast.topic_model.namespaces import WSA
from arborcast.topic_model.subscriptions import EndpointReference, doubled_header
from arborcast.wire import limits
from arborcast.wire.endpoints import read_reference
from arborcast.wire.errors import ConsumerRefused, InvalidRequest
from arborcast.wire.fragments import Source


def read_endpoint(element: etree._Element, source: Source) -> EndpointReference:
    """An endpoint reference of a client, see `read_reference`. Raises InvalidRequest."""
    found = read_reference(element, source)
    size = sum(len(part.encode()) for part in (found.address, *found.reference_parameters, *found.metadata))
    if size > limits.REFERENCE:
        name = etree.QName(element).localname
        raise InvalidRequest(f"a {name} has {limits.REFERENCE} bytes at most, this one {size}")
    return found


def check_consumer(reference: EndpointReference, own: OwnAddresses, policy: AddressPolicy) -> None:
    """Raises ConsumerRefused for a reference whose text shows that the engine will not push to it."""
    address = reference.address
    shown = repr(address[:200])
    if address.startswith(WSA):
        raise ConsumerRefused(f"the ConsumerReference {shown} is not a usable address")
    if len(address) > limits.ADDRESS:
        raise ConsumerRefused(f"the ConsumerReference's address is longer than {limits.ADDRESS} characters: {shown}")
    refusal = policy.check_url(address)
    if refusal is None or refusal.rule not in ("spelling", "scheme", "userinfo"):
        host, port = place_of(address)
        if own.is_own_address(host, port):
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
    """The error for a subscriber with a refused address, with the reason, and without a password in the address."""
    shown = "" if refusal.rule == "userinfo" else f" {address[:200]!r}"
    return ConsumerRefused(f"the ConsumerReference{shown} {refusal.reason}", refusal.rule)
