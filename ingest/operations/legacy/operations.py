"""WsnProcess: what is asked in the older envelope, carried out by the code that carries out the standard's operations.

The replies are the old system's strings, because its clients look for them:

    Notify          success!, also for a part of a message, when it is stored
    Subscribe       the SubscriptionReference as XML, the address in an element ns2:Address;
                    Repeated subscriptions  for the address and topic of a subscription that is there;
                    faild                   when the topic or the address is refused, or one is missing
    Unsubscribe     success, or faild      when there is no such subscription
    CreatePullPoint the pull point's reference as XML

Clients take every answer with status 200 for success unless it says "failed", and `faild` does not. So that is kept
for what they know it for, and logged; what they must not take for success (a message that cannot be read, a topic that
a fixed topic set does not have, parts that make no message, Kafka away) is a SOAP fault.
"""

from __future__ import annotations

import logging

import msgspec

from arborcast.core.errors import PeerError
from arborcast.core.security.outbound import AddressPolicy, OutboundSettings
from arborcast.core.security.uris import to_uri
from arborcast.ingest import addresses
from arborcast.ingest.access.grants import check_fill, check_publish, check_subscribe, may_manage, owner_of
from arborcast.ingest.addresses import Target
from arborcast.ingest.consumers import check_name
from arborcast.ingest.elements.endpoints import judge_consumer
from arborcast.ingest.operations.acceptance import accept
from arborcast.ingest.operations.gateway import Gateway, Operation, Reply, check_fan_out, check_room, check_topics
from arborcast.ingest.operations.legacy import messages, parts
from arborcast.ingest.operations.legacy.messages import CreatePullPoint, Notify, Part, Subscribe, Unsubscribe
from arborcast.ingest.operations.notification_broker import check_supported, commit_new
from arborcast.ingest.operations.pull_points import open_pull_point
from arborcast.topic_model import expressions
from arborcast.topic_model.grants import Caller
from arborcast.topic_model.message_types import kept_type
from arborcast.topic_model.namespaces import HPWSN, WSA, WSNT
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord, ending, ending_pull_point
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DEFAULT_POLICY, BoundEndpoint, EndpointReference, Subscription
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
"""What subscribers give that only want to be known: stored, never pushed to."""

NOTIFIED = "success!"
ENDED = "success"
REPEATED = "Repeated subscriptions"
REFUSED = "faild"


async def wsn_process(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Carry out what the text asks for. Raises PeerError or InfrastructureError."""
    service = request.name[1:].partition("}")[0]
    answer = await _answer(gateway, request, target)
    return Reply(
        f'<org:WsnProcessResponse xmlns:org="{service}">{answers.text(answer)}</org:WsnProcessResponse>',
        f"{service}/IWsnProcess/WsnProcessResponse",
    )


async def _answer(gateway: Gateway, request: Request, target: Target) -> str:
    asked = messages.read_request(request, gateway.default_topic)
    match asked:
        case Notify():
            return await _notify(gateway, asked, target, request)
        case Part():
            await parts.take(gateway, asked, target, request)
            return NOTIFIED
        case Subscribe():
            return await _subscribe(gateway, asked, request.caller)
        case Unsubscribe():
            return await _unsubscribe(gateway, asked, request.caller)
        case CreatePullPoint():
            owner = owner_of(request.caller)
            return _reference("PullPoint", await open_pull_point(gateway, asked.name, owner, provisional=True))


async def _notify(gateway: Gateway, asked: Notify, target: Target, request: Request) -> str:
    check_publish(request.caller, (message.topic for message in asked.messages), gateway.table.topics)
    # The older envelope names no producer, so where registration is required only the address can tell who it is.
    check_topics(gateway, target, ((message.topic, ()) for message in asked.messages))
    accepted_ms = times.to_ms(gateway.now())
    notifications = [
        Notification(
            gateway.ids.next(),
            message.topic,
            message.payload,
            accepted_ms,
            traceparent=request.traceparent,
            type=kept_type(message.type),
            package=message.package,
        )
        for message in asked.messages
    ]
    for message in asked.messages:
        if message.package:
            parts.check_alone(gateway, request, message.package.partition(" ")[2])
    gateway.check_new(message.topic for message in asked.messages)
    check_fan_out(gateway, request, (message.topic for message in asked.messages))
    await accept(gateway, notifications, owner=owner_of(request.caller))
    return NOTIFIED


async def _subscribe(gateway: Gateway, asked: Subscribe, caller: Caller | None) -> str:
    await gateway.changes.catch_up()  # the pull point may have been made by another gateway a moment ago
    try:
        subscription, new = await subscribed(gateway, asked, caller)
    except PeerError as error:
        logger.warning("a Subscribe in the older envelope was refused: %s", error)
        return REFUSED
    return _reference("SubscriptionReference", subscription.address) if new else REPEATED


async def subscribed(gateway: Gateway, asked: Subscribe, caller: Caller | None) -> tuple[Subscription, bool]:
    """The subscription that is asked for, and whether it is new. Raises PeerError or InfrastructureError."""
    wanted = _subscription(gateway, asked, caller)
    check_subscribe(caller, wanted.topics)
    check_supported(gateway, wanted.topics[0])
    if not wanted.pull_point:
        await check_name(gateway.dns_check, wanted.consumer.address)
        if gateway.proof is not None and gateway.table.find_equal(wanted) is None:
            await gateway.proof.ask(wanted.consumer.address, wanted.owner)
    named = "" if wanted.pull_point else _named_endpoint(gateway, asked)
    async with (
        gateway.locks.hold(("pull point", wanted.pull_point or named or wanted.id)),
        gateway.locks.hold(wanted.identity()),
    ):
        if wanted.pull_point and gateway.pull_points.get(wanted.pull_point) is None:
            raise ConsumerRefused("the pull point was destroyed at this moment")
        endpoint, ended = _bound(gateway, named, caller)
        if (existing := gateway.table.find_equal(wanted)) is not None:
            changed: list[ControlRecord] = []
            if existing.policy != wanted.policy:
                changed = [SubscriptionRecord(msgspec.structs.replace(existing, policy=wanted.policy))]
            if ended or changed:
                await gateway.changes.commit([*ended, *changed])
        else:
            check_room(gateway, wanted.owner)
            made, _ = await commit_new(gateway, msgspec.structs.replace(wanted, endpoint=endpoint), ended)
    if ended:
        gateway.pulls.forget(named)
    return (made, True) if existing is None else (existing, False)


def _named_endpoint(gateway: Gateway, asked: Subscribe) -> str:
    """The id in the address of the pull point that ConsumerReference names; empty where it names none."""
    target = gateway.own.target_of_url(asked.endpoint)
    return target.id if target is not None and target.kind is Kind.PULL_POINT and len(target.id) <= _MAX_ID else ""


def _bound(gateway: Gateway, named: str, caller: Caller | None) -> tuple[BoundEndpoint | None, list[ControlRecord]]:
    """The endpoint of a subscription that names this pull point, and the records that end the pull point, for which
    nobody has a use any more. None and none where it is in use, or somebody else's."""
    points, owner = gateway.pull_points, owner_of(caller)
    if not named:
        return None, []
    point = points.get(named)
    if point is None:
        # It was bound before, or ended unused: its address is the subscriber's all the same.
        return (None if points.is_there(named) else BoundEndpoint(named, points.endpoints.name_of(named, owner))), []
    if not points.is_provisional(named) or not may_manage(caller, point.owner):
        return None, []
    return BoundEndpoint(named, point.name), ending_pull_point(named, "destroyed", times.to_ms(gateway.now()))


# Whatever may be pushed to today, one can give up what one has.
_ANYWHERE = AddressPolicy(OutboundSettings(allow="0.0.0.0/0, ::/0"))


async def _unsubscribe(gateway: Gateway, asked: Unsubscribe, caller: Caller | None) -> str:
    await gateway.changes.catch_up()
    try:
        like = _subscription(gateway, asked, caller)
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
    logger.info("an Unsubscribe in the older envelope names no subscription: %r", asked)
    return REFUSED


def _subscription(gateway: Gateway, asked: Subscribe | Unsubscribe, caller: Caller | None) -> Subscription:
    """The subscription of an address to a topic; two with the same address and topic are equal (`identity`).

    Raises ExpressionError, and ConsumerRefused for an address that is not pushed to.
    """
    if not asked.address:
        raise ConsumerRefused("there is no SubscriberAddress, which says where to push")
    consumer = EndpointReference(to_uri(asked.address))
    policy = gateway.outbound if isinstance(asked, Subscribe) else _ANYWHERE
    point = judge_consumer(consumer, gateway.own, gateway.pull_points, policy)
    if point is not None:
        check_fill(caller, point)
    identifier = addresses.resource_id()
    return Subscription(
        id=identifier,
        consumer=consumer,
        address=gateway.own.resource(Kind.SUBSCRIPTION, identifier),
        topics=(expressions.parse(asked.topic, None, {}, legacy=True),),
        # Who fetches gets the standard's messages: the older ones are a form of pushes.
        form="legacy" if point is None else "notify",
        created_ms=times.to_ms(gateway.now()),
        # These clients know neither times nor renewal: a subscription lasts until it is ended.
        terminates_ms=None,
        paused=asked.address == DUMMY,
        owner=owner_of(caller),
        pull_point=point.id if point is not None else "",
        policy=asked.delivery if isinstance(asked, Subscribe) and point is None else DEFAULT_POLICY,
    )


def _reference(element: str, address: str) -> str:
    # Clients cut out what stands between <ns2:Address> and </ns2:Address>, without a parser.
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
