"""Where the answer to a request is awaited: the wsa:ReplyTo of a Notify whose topic is a queue.

On other topics nobody answers, and what WS-Addressing stacks write there by themselves is passed over as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from lxml import etree

from arborcast.topic_model.namespaces import WSA, wsa
from arborcast.topic_model.records.control import TopicPolicy
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference
from arborcast.topic_model.topics import TopicPath
from arborcast.wire.endpoints import read_reference
from arborcast.wire.envelope import Request
from arborcast.wire.errors import ConsumerRefused, InvalidRequest
from arborcast.wire.fragments import Source

# Bytes of an address with what stands beside it: up to 200 of them go to a server with one request of a queue.
_MOST = 16 * 1024

# Envelope, Header, ReplyTo, ReferenceParameters, parameter.
_DEPTH = 5


def with_reply_to(
    notifications: list[Notification],
    request: Request,
    policy: Callable[[TopicPath], TopicPolicy],
    judge: Callable[[EndpointReference], tuple[EndpointReference, str]],
) -> list[Notification]:
    """The notifications, with where their answers are awaited. `judge` says where a reference leads, and the id of the
    pull point of ours that this is, if it is one; it raises ConsumerRefused. Raises InvalidRequest."""
    if not any(policy(each.topic).queue for each in notifications):
        return notifications
    reply_to = _read(request)
    if reply_to is None:
        return notifications
    if not notifications[0].message_id:
        raise InvalidRequest("a request with a wsa:ReplyTo needs a wsa:MessageID, which its answer names")
    if len(notifications) > 1:
        raise InvalidRequest("a Notify with a wsa:ReplyTo holds one message, for one answer")
    try:
        reply_to, point = judge(reply_to)
    except ConsumerRefused as error:
        raise InvalidRequest(str(error).replace("ConsumerReference", "wsa:ReplyTo")) from error
    return [msgspec.structs.replace(notifications[0], reply_to=reply_to, reply_point=point)]


def _read(request: Request) -> EndpointReference | None:
    """None where nobody awaits an answer, or only on the connection of the request, which has its own."""
    header = _header(request)
    element = None if header is None else header.find(wsa("ReplyTo"))
    if element is None or (element.findtext(wsa("Address")) or "").strip().startswith(WSA):
        return None
    found = read_reference(element, Source(request.document, request.root, _DEPTH, header))
    size = sum(len(part.encode()) for part in (found.address, *found.reference_parameters, *found.metadata))
    if size > _MOST:
        raise InvalidRequest(f"a wsa:ReplyTo has {_MOST} bytes at most, this one {size}")
    return found


def _header(request: Request) -> etree._Element | None:
    found: Sequence[etree._Element] = [child for child in request.root if etree.QName(child).localname == "Header"]
    return found[0] if found else None
