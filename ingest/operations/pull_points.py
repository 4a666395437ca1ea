"""The CreatePullPoint and PullPoint port types: for consumers that fetch, because they are not reachable.

A pull point is used as the ConsumerReference of subscriptions; dispatch writes their messages into its log instead of
pushing them. GetMessages removes the messages of its answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from itertools import islice

import msgspec
from lxml import etree

from arborcast.core.errors import InfrastructureError, SecretError, UnknownResource
from arborcast.ingest import addresses
from arborcast.ingest.access.grants import may_manage, owner_of
from arborcast.ingest.addresses import Target
from arborcast.ingest.elements.publication import NO_ATTRIBUTES, of_request
from arborcast.ingest.operations.gateway import AT_BROKER, Gateway, Operation, Reply, Stored, check_room, reply_of
from arborcast.ingest.operations.notification_broker import AT_A_TIME, PAYLOAD_DEPTH, reference_element
from arborcast.topic_model.namespaces import ACTION_BW, WSNT, wsa, wsnt
from arborcast.topic_model.records.control import ControlRecord, PullPointRecord, ending, ending_pull_point
from arborcast.topic_model.records.pull import StoredMessage
from arborcast.topic_model.records.results import ANSWER, ServedRequest, may_answer
from arborcast.wire import limits, times
from arborcast.wire.endpoints import Kind
from arborcast.wire.envelope import Request
from arborcast.wire.errors import InvalidRequest, OperationRefused
from arborcast.wire.topics import read_topic
from arborcast.wire.xml_reading import check_payload

logger = logging.getLogger(__name__)

PULL = "urn:arborcast:pull"
"""Namespace of what we add: attribute or element `Wait`, a duration, in GetMessages."""

# The meaning of an absent or zero MaximumNumber in Apache CXF.
_MAXIMUM_NUMBER = 256

# CXF's client names a queue that outlives it so: a second request for the name returns the same pull point. Clients of
# HPwsn write the name as text.
_NAME_ATTRIBUTE = "pullPointQueueName"

# Ends per append.
_AT_ONCE = 500

# The request that a message is the answer to: there is no other place for it in a message.
_RELATED = f"{wsnt('ProducerReference')}/{wsa('ReferenceParameters')}/{wsa('RelatesTo')}"

# The type has no upper bound. A number with more digits than this, without leading zeros, selects all messages.
_NUMBER = re.compile(r"\+?0*+([0-9]*+)")
_DIGITS = 18


async def create_pull_point(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Create a pull point, or find the one of the same name."""
    owner = owner_of(request.caller)
    address = await open_pull_point(gateway, _name(request.operation), owner, provisional=target.old)
    content = reference_element("wsnt:PullPoint", address)
    return reply_of(("wsnt", WSNT, "CreatePullPointResponse"), content, port_type=f"{ACTION_BW}/CreatePullPoint")


async def open_pull_point(gateway: Gateway, name: str, owner: str, *, provisional: bool) -> str:
    """The address of a new pull point, or of the owner's existing one with this name. Raises OperationRefused.

    HPwsn's clients create one for each subscription and do not use it: theirs are provisional, and one that became the
    endpoint of a subscription is found by its name, too.
    """
    if len(name) > limits.NAME:
        raise OperationRefused(
            f"the name of a pull point may have {limits.NAME} characters, this one has {len(name)}",
            "UnableToCreatePullPointFault",
        )
    until_ms = times.to_ms(gateway.now()) + gateway.settings.endpoint_idle_s * 1000 if provisional else 0
    if not name:
        return (await _create(gateway, name, owner, until_ms)).address
    await gateway.changes.catch_up()  # another gateway may just have created it
    async with gateway.locks.hold(("pull point name", name, owner)):
        point = gateway.pull_points.named(name, owner)
        # A concurrent Subscribe may end it: then it is an endpoint.
        if point is not None and (kept := await _kept(gateway, point.id, until_ms)) is not None:
            return gateway.own.resource(Kind.PULL_POINT, kept.id)  # its record may have a former address of the gateway
        if provisional and (endpoint := gateway.pull_points.endpoints.named(name, owner)):
            return gateway.own.resource(Kind.PULL_POINT, endpoint)
        return (await _create(gateway, name, owner, until_ms)).address


async def _kept(gateway: Gateway, pull_point_id: str, until_ms: int = 0) -> PullPointRecord | None:
    """The pull point, made permanent; with a time, a provisional one stays provisional until then. None if it has
    ended."""
    async with gateway.locks.hold(("pull point", pull_point_id)):
        point = gateway.pull_points.get(pull_point_id)
        if point is None or not point.until_ms:
            return point
        kept = msgspec.structs.replace(point, until_ms=until_ms)
        await gateway.changes.commit([kept])
        return kept


async def get_messages(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Remove and return the oldest messages; an option waits for the first."""
    identifier = await gateway.resource_of(request, target, Kind.PULL_POINT)
    point = _existing(gateway, request, identifier)
    if point.until_ms:
        await _kept(gateway, identifier)
    maximum = _maximum_number(request.operation)
    wait_s = min(_wait_s(gateway, request.operation), gateway.settings.pull_max_wait_s)
    claimed = await gateway.pulls.take(point.id, maximum, wait_s, request.disconnected)
    if not claimed.messages:
        _existing(gateway, request, identifier)  # it may have been destroyed while we waited
    name = "wsnt", WSNT, "GetMessagesResponse"
    return reply_of(name, claimed.text(), port_type=f"{ACTION_BW}/PullPoint", finish=claimed.finish)


async def destroy_pull_point(gateway: Gateway, request: Request, target: Target) -> Reply:
    """End the pull point with its subscriptions and waiting messages."""
    identifier = await gateway.resource_of(request, target, Kind.PULL_POINT)
    async with gateway.locks.hold(("pull point", identifier)):
        point = _existing(gateway, request, identifier)
        await end_pull_point(gateway, point.id)
    gateway.pulls.forget(point.id)
    return reply_of(("wsnt", WSNT, "DestroyPullPointResponse"), port_type=f"{ACTION_BW}/PullPoint")


async def put(gateway: Gateway, request: Request, target: Target) -> Stored:
    """A Notify to the pull point itself: its messages wait there, as they were sent."""
    point = gateway.pull_points.get(target.id)
    if point is None or not _may_answer(gateway, request, point.id):
        point = _existing(gateway, request, target.id)
    source = request.source(PAYLOAD_DEPTH)
    accepted_ms = times.to_ms(gateway.now())
    elements: list[bytes] = []
    for message, node in zip(request.operation, source.node(request.operation).children, strict=True):
        if message.tag == wsnt("NotificationMessage"):
            elements.append(source.fragment(node))
            _check_readable(message, elements[-1], len(elements))
            if len(elements) % AT_A_TIME == 0:
                await asyncio.sleep(0)
    if not elements:
        raise InvalidRequest("Notify has no wsnt:NotificationMessage")
    publications = of_request(request, len(elements))
    messages = [
        StoredMessage(
            element,
            accepted_ms=accepted_ms,
            valid_until_ms=publications.get(number, NO_ATTRIBUTES).until_ms(accepted_ms),
        )
        for number, element in enumerate(elements, start=1)
    ]
    await gateway.pulls.put(point.id, messages)
    return Stored()


def _check_readable(message: etree._Element, stored: bytes, number: int) -> None:
    """Raises PeerError for a message that no consumer could read later: neither it nor others in the same answer."""
    topic, content = message.find(wsnt("Topic")), message.find(wsnt("Message"))
    if content is None or len(content) != 1:
        raise InvalidRequest(f"NotificationMessage {number} has no wsnt:Message with exactly one element")
    if topic is not None:
        read_topic(topic)
    check_payload(stored, content[0])


async def end_pull_point(gateway: Gateway, pull_point_id: str) -> None:
    """Append the end of a pull point, after the ends of the subscriptions that fill it, some with each append."""
    now_ms, more = times.to_ms(gateway.now()), True
    while more:
        ended = sorted(islice(gateway.pull_points.subscriptions_of(pull_point_id), _AT_ONCE))
        more = len(ended) == _AT_ONCE
        records: list[ControlRecord] = [record for each in ended for record in ending(each, "destroyed", now_ms)]
        if not more:
            records += ending_pull_point(pull_point_id, "destroyed", now_ms)
        async with gateway.locks.hold_all(ended):
            await gateway.changes.commit(records)


async def end_unused(gateway: Gateway) -> None:
    """End unused provisional pull points. Raises InfrastructureError."""
    now_ms = times.to_ms(gateway.now())
    if not gateway.pull_points.unused(now_ms):
        return
    await gateway.changes.catch_up()  # one may be in use through another gateway
    # One in use is locked, and checked again in the next round.
    unlocked = [each for each in gateway.pull_points.unused(now_ms) if ("pull point", each) not in gateway.locks]
    ended = unlocked[:_AT_ONCE]
    if not ended:
        return
    async with gateway.locks.hold_all([("pull point", each) for each in ended]):
        await gateway.changes.commit([record for one in ended for record in ending_pull_point(one, "expired", now_ms)])
    logger.info("ended %d unused pull points", len(ended))


async def end_orphans(gateway: Gateway) -> None:
    """End subscriptions to ended pull points: one gateway created the one while another ended the other. Never
    raises."""
    for subscription_id in gateway.pull_points.orphans():
        async with gateway.locks.hold(subscription_id):
            if gateway.table.get(subscription_id) is not None:
                try:
                    now_ms = times.to_ms(gateway.now())
                    await gateway.changes.commit(ending(subscription_id, "destroyed", now_ms))
                except InfrastructureError as error:
                    logger.warning("a subscription to an ended pull point cannot be ended now: %s", error)
                    return


async def _create(gateway: Gateway, name: str, owner: str, until_ms: int) -> PullPointRecord:
    held, there, limit = gateway.pull_points.of_owner(owner), len(gateway.pull_points), gateway.settings.pull_points
    check_room(gateway, owner, held, there, limit, "pull points", "UnableToCreatePullPointFault")
    identifier = addresses.resource_id()
    address = gateway.own.resource(Kind.PULL_POINT, identifier)
    created = PullPointRecord(identifier, address, name, times.to_ms(gateway.now()), owner, until_ms)
    await gateway.changes.commit([created])
    first = gateway.pull_points.named(name, owner) if name else created
    if first is not None and first.id != identifier:
        # Another gateway has created one of this name at the same time.
        await end_pull_point(gateway, identifier)
        return first
    return created


def _existing(gateway: Gateway, request: Request, identifier: str) -> PullPointRecord:
    point = gateway.pull_points.get(identifier)
    if point is None or not may_manage(request.caller, point.owner):
        raise UnknownResource(f"there is no pull point {identifier[:200]!r} (any more)")
    return point


def _may_answer(gateway: Gateway, request: Request, pull_point_id: str) -> bool:
    """Whether these are answers to a request that the caller received as a server of a queue, by the token in the
    header. It then need not own the pull point."""
    caller, token = request.caller, request.root.findtext(f"{{*}}Header/{ANSWER}")
    messages = request.operation.findall(wsnt("NotificationMessage"))
    if caller is None or not token or not messages:
        return False
    now_ms = times.to_ms(gateway.now())
    related = {(message.findtext(_RELATED) or "").strip() for message in messages}
    served = (ServedRequest(pull_point_id, each, caller.name) for each in related)
    try:
        return all(may_answer(token.strip(), each, now_ms, gateway.protector.mac_keys) for each in served)
    except SecretError as error:
        # Its key is not here (yet): the server sends its answer again.
        logger.info("whether an answer may be put into a pull point is not known: %s", error)
        return False


def _name(operation: etree._Element) -> str:
    for attribute, value in operation.attrib.items():
        if etree.QName(attribute).localname == _NAME_ATTRIBUTE:
            return str(value).strip()
    return (operation.text or "").strip()


def _maximum_number(operation: etree._Element) -> int:
    text = (operation.findtext(wsnt("MaximumNumber")) or "").strip()
    number = _NUMBER.fullmatch(text)
    if number is None or text == "+":
        raise OperationRefused(f"MaximumNumber is {text[:60]!r}, a number is needed", "UnableToGetMessagesFault")
    digits = number[1]
    return sys.maxsize if len(digits) > _DIGITS else int(digits or 0) or _MAXIMUM_NUMBER


def _wait_s(gateway: Gateway, operation: etree._Element) -> float:
    text = operation.get(f"{{{PULL}}}Wait") or operation.findtext(f"{{{PULL}}}Wait")
    if text is None:
        return gateway.settings.pull_wait_s
    try:
        return times.duration_s(text, gateway.now())
    except ValueError as error:
        raise OperationRefused(f"Wait: {error}", "UnableToGetMessagesFault") from error


_AT_PULL_POINT = AT_BROKER | {Kind.PULL_POINT}

OPERATIONS: tuple[Operation, ...] = (
    Operation(wsnt("CreatePullPoint"), create_pull_point),
    Operation(wsnt("GetMessages"), get_messages, _AT_PULL_POINT),
    Operation(wsnt("DestroyPullPoint"), destroy_pull_point, _AT_PULL_POINT),
    Operation(wsnt("Notify"), put, frozenset({Kind.PULL_POINT}), carries_messages=True),
)
