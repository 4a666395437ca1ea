"""The wsa:ReplyTo of a Notify to a work queue.

On other topics there are no answers, and the header, which WS-Addressing stacks add, is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

from lxml import etree

from arborcast.ingest.elements.endpoints import read_endpoint
from arborcast.topic_model.namespaces import WSA, wsa
from arborcast.topic_model.subscriptions import EndpointReference
from arborcast.wire.envelope import Request
from arborcast.wire.fragments import Source

# Envelope, Header, ReplyTo, ReferenceParameters, parameter.
_DEPTH = 5


def read_reply_to(request: Request) -> EndpointReference | None:
    """None where no answer is awaited, or only on the connection of the request, which has its own. Raises
    InvalidRequest."""
    header = _header(request)
    element = None if header is None else header.find(wsa("ReplyTo"))
    if element is None or (element.findtext(wsa("Address")) or "").strip().startswith(WSA):
        return None
    return read_endpoint(element, Source(request.document, request.root, _DEPTH, header))


def _header(request: Request) -> etree._Element | None:
    found: Sequence[etree._Element] = [child for child in request.root if etree.QName(child).localname == "Header"]
    return found[0] if found else None
