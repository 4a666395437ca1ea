"""WsnProcess: operations in the older envelope, with the code of the standard's operations.

The replies are the old system's strings, which its clients parse:

    Notify          success!, also for a part of a message, when it is stored
    Subscribe       the SubscriptionReference as XML, the address in an element ns2:Address;
                    Repeated subscriptions  for the address and topic of an existing subscription;
                    faild                   when the topic or the address is refused, or one is missing
    Unsubscribe     success, or faild      when there is no such subscription
    CreatePullPoint the pull point's reference as XML

Clients treat every answer with status 200 as success unless it contains "failed", which `faild` does not. So `faild` is
the answer in the cases of the old system only, and logged; other errors (an unreadable message, a topic outside a fixed
topic set, invalid parts, Kafka away) are SOAP faults.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from arborcast.core.errors import PeerError
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings
from arborcast.core.security.uris import to_uri
from arborcast.ingest.access.grants import owner_of
from arborcast.ingest.addresses import Target
from arborcast.ingest.elements.filters import Filters, SubscriptionPolicy
from arborcast.ingest.http.inflight import SMALL
from arborcast.ingest.operations.gateway import Gateway, Operation, Reply
from arborcast.ingest.operations.legacy import messages, parts
from arborcast.ingest.operations.legacy.messages import CreatePullPoint, MessagePart, Notify, Subscribe, Unsubscribe
from arborcast.ingest.operations.publishing import (
    UNACCEPTED,
    PublishingClient,
    PublishRequest,
    in_thread_if_large,
    publish,
)
from arborcast.ingest.operations.pull_points import open_pull_point
from arborcast.ingest.operations.subscribing import (
    CreatedSubscription,
    SubscriptionRequest,
    create_subscription,
    subscription_of,
)
from arborcast.topic_model import expressions
from arborcast.topic_model.grants import Caller
from arborcast.topic_model.message_types import stored_type
from arborcast.topic_model.namespaces import HPWSN, WSA, WSNT
from arborcast.topic_model.records.control import ending
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DEFAULT_POLICY, EndpointReference
from arborcast.wire import answers, times
from arborcast.wire.endpoints import Kind
from arborcast.wire.envelope import Request
from arborcast.wire.errors import ConsumerRefused

logger = logging.getLogger(__name__)

SERVICES = (HPWSN, "http://edu.bupt.wangfu.module.wsnMgr.util.soap")
"""Namespaces of WsnProcess: the original's, and that of its later relatives."""

# Our own have 24 characters.
_MAX_ID = 64

DUMMY = "http://localhost:12345/only/register/use"
"""The address of subscribers that are only registered: it is stored, and never pushed to."""

NOTIFIED = "success!"
ENDED = "success"
REPEATED = "Repeated subscriptions"
REFUSED = "faild"


async def wsn_process(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Perform the request in the text. Raises PeerError or InfrastructureError."""
    service = request.name[1:].partition("}")[0]
    answer = await _answer(gateway, request, target)
    return Reply(
        f'<org:WsnProcessResponse xmlns:org="{service}">{answers.text(answer)}</org:WsnProcessResponse>',
        f"{service}/IWsnProcess/WsnProcessResponse",
    )


async def _answer(gateway: Gateway, request: Request, target: Target) -> str:
    action = await _read(gateway, request)
    match action:
        case Notify():
            return await _notify(gateway, action, target, request)
        case MessagePart():
            await parts.take(gateway, action, target, request)
            return NOTIFIED
        case Subscribe():
            return await _subscribe(gateway, action, request.caller)
        case Unsubscribe():
            return await _unsubscribe(gateway, action, request.caller)
        case CreatePullPoint():
            owner = owner_of(request.caller)
            return _reference("PullPoint", await open_pull_point(gateway, action.name, owner, provisional=True))


async def _read(gateway: Gateway, request: Request) -> messages.Action:
    size, most = len(request.document), gateway.settings.max_elements
    # Large ones one at a time: the memory for requests does not include the tree of an escaped text.
    async with gateway.locks.hold_all(["WsnProcess"] if size > SMALL else []):
        return await in_thread_if_large(size, messages.read_request, request, gateway.default_topic, most)


async def _notify(gateway: Gateway, action: Notify, target: Target, request: Request) -> str:
    notifications = [
        Notification(
            gateway.ids.next(),
            message.topic,
            message.payload,
            UNACCEPTED,
            traceparent=request.traceparent,
            type=stored_type(message.type),
            package=message.package,
        )
        for message in action.messages
    ]
    for message in action.messages:
        if message.package:
            parts.check_alone(gateway, request, message.package.partition(" ")[2])
    # The older envelope has no producer, so with required registration only the address identifies the publisher.
    await publish(gateway, PublishRequest(notifications, PublishingClient(request.caller, request.client, target)))
    return NOTIFIED


async def _subscribe(gateway: Gateway, action: Subscribe, caller: Caller | None) -> str:
    try:
        created = await subscribed(gateway, action, caller)
    except PeerError as error:
        logger.warning("a Subscribe in the older envelope was refused: %s", error)
        return REFUSED
    return _reference("SubscriptionReference", created.subscription.address) if created.new else REPEATED


async def subscribed(gateway: Gateway, action: Subscribe, caller: Caller | None) -> CreatedSubscription:
    """The requested subscription, new or existing. Raises PeerError or InfrastructureError."""
    return await create_subscription(gateway, _request(action, caller, _named_endpoint(gateway, action)))


def _named_endpoint(gateway: Gateway, action: Subscribe) -> str:
    """The id in the address of the pull point that ConsumerReference names; empty where it names none."""
    named = gateway.own.id_in(action.endpoint, Kind.PULL_POINT)
    return named if len(named) <= _MAX_ID else ""


# An Unsubscribe is accepted under any outbound policy.
_ANYWHERE = AddressPolicy(OutboundSettings(allow="0.0.0.0/0, ::/0"))


async def _unsubscribe(gateway: Gateway, action: Unsubscribe, caller: Caller | None) -> str:
    await gateway.changes.catch_up()
    try:
        like = subscription_of(gateway, replace(_request(action, caller), outbound=_ANYWHERE))
    except PeerError as error:
        logger.info("an Unsubscribe in the older envelope names no subscription: %s", error)
        return REFUSED
    async with gateway.locks.hold(like.identity()):
        while (existing := gateway.table.find_equal(like)) is not None:
            async with gateway.locks.hold(existing.id):
                if gateway.table.get(existing.id) != existing:
                    continue  # changed or ended while we waited for it
                await gateway.changes.commit(ending(existing.id, "unsubscribed", times.to_ms(gateway.now())))
                return ENDED
    logger.info("an Unsubscribe in the older envelope names no subscription: %r", action)
    return REFUSED


def _request(action: Subscribe | Unsubscribe, caller: Caller | None, endpoint: str = "") -> SubscriptionRequest:
    """The subscription of an address to a topic; two with the same address and topic are equal
    (`Subscription.identity`). It has no end: these clients have neither times nor renewal.

    Raises ExpressionError, and ConsumerRefused without an address.
    """
    if not action.address:
        raise ConsumerRefused("SubscriberAddress is missing")
    delivery = action.delivery if isinstance(action, Subscribe) else DEFAULT_POLICY
    return SubscriptionRequest(
        Filters(topics=(expressions.parse(action.topic, None, {}, legacy=True),)),
        caller,
        consumer=EndpointReference(to_uri(action.address)),
        policy=SubscriptionPolicy("legacy", delivery=delivery),
        endpoint=endpoint,
        paused=action.address == DUMMY,
    )


def _reference(element: str, address: str) -> str:
    # Clients cut out the text between <ns2:Address> and </ns2:Address>, without a parser.
    return (
        f'<wsnt:{element} xmlns:wsnt="{WSNT}" xmlns:ns2="{WSA}">'
        f"<ns2:Address>{answers.text(address)}</ns2:Address></wsnt:{element}>"
    )


OPERATIONS: tuple[Operation, ...] = tuple(
    # Relatives of the original post it to addresses of all kinds.
    Operation(f"{{{service}}}WsnProcess", wsn_process, frozenset(Kind), carries_messages=True)
    for service in SERVICES
)
"""WsnProcess, at any of our addresses."""
