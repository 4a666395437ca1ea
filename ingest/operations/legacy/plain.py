"""The standard's operations in the form of HPwsn's clients without WsnProcess, each with deviations of its own.

At the old addresses, and those of subscriptions and pull points, a namespace may end in a slash; at the old addresses a
topic may be a colon path. A Subscribe with a SubscriberAddress, which the standard does not have, is in this form at
any address.
"""

from __future__ import annotations

from lxml import etree

from arborcast.ingest.addresses import FACTORIES, Target
from arborcast.ingest.operations.gateway import Gateway, Operation, Reply
from arborcast.ingest.operations.legacy.messages import read_subscribe
from arborcast.ingest.operations.legacy.operations import subscribed
from arborcast.ingest.operations.notification_broker import subscribe_reply
from arborcast.topic_model.namespaces import WSNT_SLASH, wsnt
from arborcast.wire.envelope import Request
from arborcast.wire.errors import UnknownFilters

_SUBSCRIBE = wsnt("Subscribe")
_SLASHED = f"{{{WSNT_SLASH}}}"
_PAYLOAD, _SUBSCRIBER = wsnt("Message"), wsnt("SubscriberAddress")


def find(request: Request, target: Target) -> Operation | None:
    """The operation of a request outside the standard; else None. At the old addresses, and at those of subscriptions
    and pull points, names in the request are replaced by the standard's."""
    if (target.old or target.kind not in FACTORIES) and request.name.startswith(_SLASHED):
        _rename(request.operation)
    if request.name == _SUBSCRIBE and target.kind in FACTORIES and request.operation.find(_SUBSCRIBER) is not None:
        return _OLD_SUBSCRIBE
    return None


def _rename(operation: etree._Element) -> None:
    """Only in the tree, and not inside messages, whose bytes are forwarded unchanged."""
    waiting = [operation]
    while waiting:
        element = waiting.pop()
        if element.tag.startswith(_SLASHED):
            element.tag = wsnt(element.tag.removeprefix(_SLASHED))
        if element.tag != _PAYLOAD:
            waiting += element


async def _subscribe(gateway: Gateway, request: Request, _target: Target) -> Reply:
    """An old subscription, with the answer of the standard. It has no end, even if the request has one."""
    filters = request.operation.iterfind(f"{wsnt('Filter')}/*")
    unknown = [str(each.tag) for each in filters if each.tag != wsnt("TopicExpression")]
    if unknown:
        # An error is better than messages that the subscriber excluded.
        raise UnknownFilters(f"the filter {unknown[0]:.200} is not offered beside SubscriberAddress", tuple(unknown))
    created = await subscribed(gateway, read_subscribe(request.operation), request.caller)
    return subscribe_reply(created.subscription, gateway.now())


_OLD_SUBSCRIBE = Operation(_SUBSCRIBE, _subscribe)
