"""Triggers: the engine publishes a message when a notification matches. Operations beyond the standard.

    <p:CreateTrigger xmlns:p="urn:arborcast:policy" Name="overheated">
      <wsnt:Filter>…</wsnt:Filter>                                as in Subscribe
      <wsnt:SubscriptionPolicy><p:Delivery MinimumInterval="PT1M"/></wsnt:SubscriptionPolicy>
      <p:Publish>
        <wsnt:Topic Dialect="…">…</wsnt:Topic>
        <wsnt:Message>…</wsnt:Message>                            without it: the matching message
      </p:Publish>
    </p:CreateTrigger>
    <p:DestroyTrigger xmlns:p="urn:arborcast:policy" Name="overheated"/>

The dispatch matches and publishes (`dispatch.hot.triggers`).
"""

from __future__ import annotations

import re

import msgspec
from lxml import etree

from arborcast.core.errors import ConditionError, TopicNotSupported, UnknownResource
from arborcast.ingest.access.grants import check_subscribe, may_manage, owner_of
from arborcast.ingest.addresses import Target, resource_id
from arborcast.ingest.elements.filters import DELIVERY, SubscriptionPolicy, read_filters, read_policy
from arborcast.ingest.operations.current_message import topic_matcher
from arborcast.ingest.operations.gateway import Gateway, Operation, Reply, check_room, reply_of
from arborcast.ingest.operations.notification_broker import PAYLOAD_DEPTH
from arborcast.ingest.operations.publishing import PublishingClient, check_rights, check_types
from arborcast.ingest.operations.subscribing import check_filters
from arborcast.topic_model.expressions.conditions import compile_condition, parse_document
from arborcast.topic_model.message_types import stored_type
from arborcast.topic_model.namespaces import ARBORCAST_POLICY, wsnt
from arborcast.topic_model.records.control import TriggerRecord, ending_trigger
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import DeliveryPolicy, EndpointReference, Subscription, Trigger
from arborcast.topic_model.tree.tree import TopicTree
from arborcast.wire import times
from arborcast.wire.envelope import Request
from arborcast.wire.errors import InvalidRequest, UnsupportedPolicy
from arborcast.wire.topics import read_published
from arborcast.wire.xml_reading import check_payload

_PUBLISH = f"{{{ARBORCAST_POLICY}}}Publish"

_CREATE, _DESTROY = "CreateTrigger", "DestroyTrigger"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


async def create_trigger(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Create a trigger. Its owner needs the rights to subscribe and to publish, which are checked now only."""
    trigger, subscription = _read(gateway, request)
    check_subscribe(request.caller, subscription.topics)
    check_rights(gateway, PublishingClient(request.caller, request.client, target), (trigger.topic,))
    check_filters(gateway, subscription)
    _check_sense(gateway, trigger, subscription)
    async with gateway.locks.hold(("trigger", trigger.name)):
        await gateway.changes.catch_up()
        _check_free(gateway, trigger.name)
        there, limit = gateway.table.triggers, gateway.settings.triggers
        held = sum(each.owner == subscription.owner for each in there)
        check_room(gateway, subscription.owner, held, len(there), limit, "triggers", "Client")
        made = msgspec.structs.replace(subscription, created_ms=times.to_ms(gateway.now()))
        await gateway.changes.commit([TriggerRecord(made)])
        try:
            _check_free(gateway, trigger.name, made.id)
        except InvalidRequest:
            # Another gateway has created one of this name at the same time.
            await gateway.changes.commit(ending_trigger(made.id, "removed", times.to_ms(gateway.now())))
            raise
    return reply_of(("p", ARBORCAST_POLICY, f"{_CREATE}Response"), attributes=f' Id="{made.id}"')


async def destroy_trigger(gateway: Gateway, request: Request, _target: Target) -> Reply:
    """Remove a trigger: notifications accepted after the answer do not start it."""
    name = request.operation.get("Name", "")
    async with gateway.locks.hold(("trigger", name)):
        await gateway.changes.catch_up()
        found = gateway.table.triggers.named(name)
        # To others it is not there, as with subscriptions.
        if found is None or not may_manage(request.caller, found.owner, found.topics):
            raise UnknownResource(f"there is no trigger {name[:200]!r} (any more)")
        await gateway.changes.commit(ending_trigger(found.id, "removed", times.to_ms(gateway.now())))
    return reply_of(("p", ARBORCAST_POLICY, f"{_DESTROY}Response"), attributes=f' Id="{found.id}"')


def matches_itself(subscription: Subscription, trigger: Trigger, tree: TopicTree) -> bool:
    """Whether a trigger's filters match its own messages. Producer filters are not evaluated."""
    if not topic_matcher(subscription.topics, tree)(trigger.topic):
        return False
    if not trigger.payload:
        return True
    if subscription.types and trigger.type not in subscription.types:
        return False
    try:
        document = parse_document(trigger.payload.encode())
        return all(compile_condition(each).holds(document) for each in subscription.content)
    except ConditionError:
        return False  # a condition without an answer is not fulfilled


def _read(gateway: Gateway, request: Request) -> tuple[Trigger, Subscription]:
    operation = request.operation
    name = operation.get("Name", "")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"p:CreateTrigger has a Name of up to 100 letters of ASCII, digits, and . _ - in between, not {name:.100}"
        )
    filters = read_filters(operation.find(wsnt("Filter")))
    trigger = _read_publish(gateway, request, name)
    return trigger, Subscription(
        resource_id(),
        EndpointReference(trigger.endpoint),
        topics=filters.topics,
        content=filters.content,
        producer=filters.producer,
        types=filters.types,
        policy=_read_interval(operation.find(wsnt("SubscriptionPolicy"))),
        owner=owner_of(request.caller),
        trigger=trigger,
    )


def _read_interval(element: etree._Element | None) -> DeliveryPolicy:
    policy = read_policy(element)
    interval = DeliveryPolicy(interval_ms=policy.delivery.interval_ms, interval_per=policy.delivery.interval_per)
    if policy != SubscriptionPolicy(delivery=interval):
        raise UnsupportedPolicy(
            "of a SubscriptionPolicy a trigger has MinimumInterval and IntervalPer: nothing is pushed", (DELIVERY,)
        )
    return interval


def _read_publish(gateway: Gateway, request: Request, name: str) -> Trigger:
    operation, source = request.operation, request.source(PAYLOAD_DEPTH)
    nodes = source.node(operation).children
    parts = [(each, node) for each, node in zip(operation, nodes, strict=True) if each.tag == _PUBLISH]
    if len(parts) != 1:
        raise InvalidRequest("p:CreateTrigger has one p:Publish, with the topic of its publication")
    publish, publish_node = parts[0]
    topic = publish.find(wsnt("Topic"))
    if topic is None:
        raise InvalidRequest("p:Publish has no wsnt:Topic")
    path, prefixes = read_published(topic)
    payload = kind = ""
    for element, node in zip(publish, publish_node.children, strict=True):
        if element.tag == wsnt("Message"):
            if len(element) != 1 or payload:
                raise InvalidRequest("the payload of a trigger is one XML element in one wsnt:Message")
            fragment = source.fragment(node.children[0])
            check_payload(fragment, element[0])
            payload, kind = fragment.decode(), stored_type(str(element[0].tag))
    return Trigger(name, path, payload, kind, gateway.table.topics.prefixes.complete(path, prefixes))


def _check_sense(gateway: Gateway, trigger: Trigger, subscription: Subscription) -> None:
    tree = gateway.table.topics
    if trigger.topic not in tree:
        raise TopicNotSupported(f"there is no topic {trigger.topic} to publish to: add it first")
    if gateway.topics.check_types and trigger.payload:
        check_types(tree, [Notification("", trigger.topic, b"", 0, type=trigger.type)])
    if matches_itself(subscription, trigger, tree):
        raise InvalidRequest(
            f"the trigger {trigger.name} would match its publications to {trigger.topic} in a loop: "
            "publish to a topic outside its expression, or exclude that by a filter"
        )


def _check_free(gateway: Gateway, name: str, mine: str = "") -> None:
    known = gateway.table.triggers.named(name)
    if known is not None and known.id != mine:
        raise InvalidRequest(f"there is a trigger {name} already: choose another name, or remove that one first")


OPERATIONS: tuple[Operation, ...] = (
    Operation(f"{{{ARBORCAST_POLICY}}}{_CREATE}", create_trigger),
    Operation(f"{{{ARBORCAST_POLICY}}}{_DESTROY}", destroy_trigger),
)
