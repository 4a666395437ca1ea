"""WS-ResourceProperties: the readable properties of the broker, of a subscription and of a registration.

    broker         wsnt:TopicExpression, wsnt:FixedTopicSet, wsnt:TopicExpressionDialect, wstop:TopicSet,
                   wsn-br:RequiresRegistration
    subscription   wsnt:ConsumerReference, wsnt:Filter, wsnt:SubscriptionPolicy, wsnt:CreationTime,
                   wsrf-rl:CurrentTime, wsrf-rl:TerminationTime, p:State, p:MessageType
                   (p is urn:arborcast:policy)
    registration   wsn-br:PublisherReference, wsn-br:Topic, wsn-br:Demand, wsn-br:CreationTime,
                   wsrf-rl:CurrentTime, wsrf-rl:TerminationTime

The document has them in the order and number of its schema, which has no place for the times of WS-ResourceLifetime and
the engine's own properties: these are read by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from lxml import etree

from arborcast.ingest.addresses import Target
from arborcast.ingest.elements.filters import write_delivery_policy, write_form
from arborcast.ingest.operations.gateway import AT_SUBSCRIPTION, Gateway, Operation, Reply, reply_of
from arborcast.ingest.operations.notification_broker import requested_termination, time_element
from arborcast.ingest.operations.publisher_registration import find_registration
from arborcast.ingest.operations.subscription_manager import end, locked_subscription, replace
from arborcast.topic_model.expressions import DIALECTS
from arborcast.topic_model.grants import Caller
from arborcast.topic_model.namespaces import (
    ACTION_RLW,
    ACTION_RPW,
    ARBORCAST_POLICY,
    MESSAGE_TYPE,
    WSA,
    WSN_BR,
    WSNT,
    WSRF_RL,
    WSRF_RP,
    WSTOP,
    wsn_br,
    wsnt,
    wsrf_rl,
    wsrf_rp,
)
from arborcast.topic_model.publishers import Registration
from arborcast.topic_model.subscriptions import Subscription, TopicFilter, XPathFilter
from arborcast.wire import answers, times
from arborcast.wire.answers import expression_element
from arborcast.wire.endpoints import Kind, reference_content
from arborcast.wire.envelope import Request
from arborcast.wire.errors import InvalidRequest, OperationRefused, UnacceptableTermination


async def set_termination_time(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Set another termination time; within the grace time an expired subscription becomes active again."""
    async with locked_subscription(gateway, request, target) as subscription:
        now = gateway.now()
        terminates_ms = _requested(request.operation, now)
        renewed = await replace(gateway, subscription, terminates_ms=terminates_ms)
    return reply_of(
        ("wsrf-rl", WSRF_RL, "SetTerminationTimeResponse"),
        f"{time_element('wsrf-rl:NewTerminationTime', renewed.terminates_ms)}"
        f"<wsrf-rl:CurrentTime>{times.written(now)}</wsrf-rl:CurrentTime>",
        port_type=f"{ACTION_RLW}/ScheduledResourceTermination",
    )


async def destroy(gateway: Gateway, request: Request, target: Target) -> Reply:
    await end(gateway, request, target)
    return reply_of(("wsrf-rl", WSRF_RL, "DestroyResponse"), port_type=f"{ACTION_RLW}/ImmediateResourceTermination")


def _requested(operation: etree._Element, now: datetime) -> int | None:
    element = operation.find(wsrf_rl("RequestedTerminationTime"))
    if element is None:
        element = operation.find(wsrf_rl("RequestedLifetimeDuration"))
    if element is None:
        raise InvalidRequest(
            "SetTerminationTime has neither wsrf-rl:RequestedTerminationTime nor wsrf-rl:RequestedLifetimeDuration"
        )
    try:
        return requested_termination(element, now, initial=False)
    except UnacceptableTermination as error:
        raise OperationRefused(str(error), "TerminationTimeChangeRejectedFault") from error


_PREFIXES = f' xmlns:wsnt="{WSNT}" xmlns:wsn-br="{WSN_BR}" xmlns:wsa="{WSA}" xmlns:wsrf-rl="{WSRF_RL}"'

_Property = str | Callable[[], Awaitable[str]]
"""A sequence of elements, or a function that writes one."""


@dataclass(frozen=True)
class _Resource:
    """A resource: the root element of its document, its properties, and those that the document does not have."""

    document: str
    properties: Mapping[str, _Property]
    beside: Mapping[str, _Property]


async def get_resource_property(gateway: Gateway, request: Request, target: Target) -> Reply:
    wanted = _qname(request.operation)
    return _reply("GetResourceProperty", await _values(gateway, request, target, [wanted]))


async def get_multiple_resource_properties(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Several properties, in the order of the request."""
    wanted = [_qname(element) for element in request.operation.iterchildren(wsrf_rp("ResourceProperty"))]
    if not wanted:
        raise InvalidRequest("GetMultipleResourceProperties has no wsrf-rp:ResourceProperty")
    # Each once: a request for a large property a thousand times would otherwise have it a thousand times in the answer.
    unique = list(dict.fromkeys(wanted))
    return _reply("GetMultipleResourceProperties", await _values(gateway, request, target, unique))


async def get_resource_property_document(gateway: Gateway, request: Request, target: Target) -> Reply:
    resource = await _resource(gateway, request, target)
    content = "".join([await _written(each) for each in resource.properties.values()])
    return _reply("GetResourcePropertyDocument", f"<{resource.document}>{content}</{resource.document}>")


def _reply(operation: str, content: str) -> Reply:
    name = "wsrf-rp", WSRF_RP, f"{operation}Response"
    return reply_of(name, content, port_type=f"{ACTION_RPW}/{operation}", attributes=_PREFIXES)


def _qname(element: etree._Element) -> str:
    """The qualified name in an element's text. With an undeclared prefix it is a name without a property."""
    prefix, colon, name = (element.text or "").strip().rpartition(":")
    namespace = element.nsmap.get(prefix or None, "")
    if not name or (colon and not namespace):
        raise _unknown((element.text or "").strip())
    return f"{{{namespace}}}{name}" if namespace else name


def _unknown(name: str) -> OperationRefused:
    return OperationRefused(f"there is no resource property {name[:200]!r} here", "InvalidResourcePropertyQNameFault")


async def _values(gateway: Gateway, request: Request, target: Target, names: list[str]) -> str:
    resource = await _resource(gateway, request, target)
    known = {**resource.properties, **resource.beside}
    for name in names:
        if name not in known:
            raise _unknown(name)
    return "".join([await _written(known[name]) for name in names])


async def _written(value: _Property) -> str:
    return value if isinstance(value, str) else await value()


async def _resource(gateway: Gateway, request: Request, target: Target) -> _Resource:
    if target.kind is Kind.SUBSCRIPTION:
        async with locked_subscription(gateway, request, target) as subscription:
            return _of_subscription(gateway, subscription)
    if target.kind is Kind.REGISTRATION:
        return _of_registration(gateway, find_registration(gateway, request, target.id))
    return _of_broker(gateway, request.caller)


def _of_broker(gateway: Gateway, caller: Caller | None) -> _Resource:
    sets = gateway.topic_sets
    dialects = "".join(f"<wsnt:TopicExpressionDialect>{uri}</wsnt:TopicExpressionDialect>" for uri in DIALECTS)
    fixed = "true" if gateway.topics.fixed else "false"
    required = "true" if gateway.settings.requires_registration else "false"
    return _Resource(
        "wsn-br:NotificationBrokerRP",
        {
            wsnt("TopicExpression"): lambda: sets.text("expressions", caller),
            wsnt("FixedTopicSet"): f"<wsnt:FixedTopicSet>{fixed}</wsnt:FixedTopicSet>",
            wsnt("TopicExpressionDialect"): dialects,
            f"{{{WSTOP}}}TopicSet": lambda: sets.text("set", caller),
            wsn_br("RequiresRegistration"): f"<wsn-br:RequiresRegistration>{required}</wsn-br:RequiresRegistration>",
        },
        {},
    )


def _of_subscription(gateway: Gateway, subscription: Subscription) -> _Resource:
    consumer = reference_content(subscription.consumer)
    policy = write_form(subscription.form) + write_delivery_policy(subscription.policy)
    if subscription.queue:
        policy += f'<p:Queue xmlns:p="{ARBORCAST_POLICY}" Capacity="{subscription.queue}"/>'
    return _Resource(
        "wsnt:SubscriptionManagerRP",
        {
            wsnt("ConsumerReference"): f"<wsnt:ConsumerReference>{consumer}</wsnt:ConsumerReference>",
            wsnt("Filter"): _filter(subscription),
            wsnt("SubscriptionPolicy"): f"<wsnt:SubscriptionPolicy>{policy}</wsnt:SubscriptionPolicy>",
            wsnt("CreationTime"): time_element("wsnt:CreationTime", subscription.created_ms),
        },
        {
            **_times(gateway, subscription.terminates_ms),
            f"{{{ARBORCAST_POLICY}}}State": _state(gateway, subscription),
            MESSAGE_TYPE: _types(subscription),
        },
    )


def _types(subscription: Subscription) -> str:
    types = [each if each.startswith("{") else f"{{}}{each}" for each in subscription.types]
    return f'<p:MessageType xmlns:p="{ARBORCAST_POLICY}">{answers.text(" ".join(types) or "*")}</p:MessageType>'


def _state(gateway: Gateway, subscription: Subscription) -> str:
    suspension = gateway.suspensions.get(subscription.id)
    since = "" if suspension is None else f' Since="{times.written(times.from_ms(suspension.at_ms))}"'
    state = gateway.suspensions.state_of(subscription)
    return f'<p:State xmlns:p="{ARBORCAST_POLICY}"{since}>{state}</p:State>'


def _of_registration(gateway: Gateway, registration: Registration) -> _Resource:
    publisher = registration.publisher
    topics = (
        expression_element("Topic", each.dialect, each.text, each.namespaces, WSN_BR) for each in registration.topics
    )
    demand = "true" if registration.demand else "false"
    return _Resource(
        "wsn-br:PublisherRegistrationRP",
        {
            wsn_br("PublisherReference"): ""
            if publisher is None
            else f"<wsn-br:PublisherReference>{reference_content(publisher)}</wsn-br:PublisherReference>",
            wsn_br("Topic"): "".join(topics),
            wsn_br("Demand"): f"<wsn-br:Demand>{demand}</wsn-br:Demand>",
            wsn_br("CreationTime"): time_element("wsn-br:CreationTime", registration.created_ms),
        },
        _times(gateway, registration.terminates_ms),
    )


def _times(gateway: Gateway, terminates_ms: int | None) -> Mapping[str, str]:
    now = times.written(gateway.now())
    return {
        wsrf_rl("CurrentTime"): f"<wsrf-rl:CurrentTime>{now}</wsrf-rl:CurrentTime>",
        wsrf_rl("TerminationTime"): time_element("wsrf-rl:TerminationTime", terminates_ms),
    }


def _filter(subscription: Subscription) -> str:
    named: list[tuple[str, TopicFilter | XPathFilter]] = [
        *(("TopicExpression", each) for each in subscription.topics),
        *(("MessageContent", each) for each in subscription.content),
        *(("ProducerProperties", each) for each in subscription.producer),
    ]
    content = "".join(expression_element(name, each.dialect, each.text, each.namespaces) for name, each in named)
    return f"<wsnt:Filter>{content}</wsnt:Filter>" if content else ""


_KINDS = AT_SUBSCRIPTION | {Kind.REGISTRATION}

OPERATIONS: tuple[Operation, ...] = (
    Operation(wsrf_rp("GetResourceProperty"), get_resource_property, _KINDS),
    Operation(wsrf_rp("GetMultipleResourceProperties"), get_multiple_resource_properties, _KINDS),
    Operation(wsrf_rp("GetResourcePropertyDocument"), get_resource_property_document, _KINDS),
    Operation(wsrf_rl("SetTerminationTime"), set_termination_time, AT_SUBSCRIPTION),
    Operation(wsrf_rl("Destroy"), destroy, AT_SUBSCRIPTION),
)
