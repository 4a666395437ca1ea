"""ONVIF's event service: pull point subscriptions, where the subscription is its own pull point.

The address that CreatePullPointSubscription returns takes PullMessages beside what the standard has for subscriptions.
Base notification is offered at the service's address as well.
"""

from __future__ import annotations

from datetime import timedelta

from lxml import etree

from ingest import answers, ids, termination
from ingest.access.rights import check_subscribe, owner_of
from ingest.addresses import Kind, Target
from ingest.current_message import check_few, send_current_messages
from ingest.envelope import Request
from ingest.errors import InvalidRequest, OperationRefused
from ingest.filters import read_filters, read_policy
from ingest.gateway import Gateway, Operation, Reply
from ingest.namespaces import WSA, WSNT
from ingest.notification_broker import check_supported, commit_new, requested_termination, termination_element
from ingest.quotas import check_room
from ingest.subscription_manager import held, replace
from topic_model.errors import UnknownResource
from topic_model.expressions import CONCRETE, CONCRETE_SET, FULL, XPATH
from topic_model.subscriptions import EndpointReference, Subscription

TEV = "http://www.onvif.org/ver10/events/wsdl"

# Where ONVIF says that its topics and payloads are described. Ours are in the topic set that goes with it.
_TOPIC_NAMESPACE = "http://www.onvif.org/onvif/ver10/topics/topicns.xml"
_CONTENT_SCHEMA = "http://www.onvif.org/onvif/ver10/schema/onvif.xsd"

# What MessageLimit may grow to; clients name one in any case.
_MAX_MESSAGES = 10_000


def _tev(name: str) -> str:
    return f"{{{TEV}}}{name}"


async def create_pull_point_subscription(gateway: Gateway, request: Request, _target: Target) -> Reply:
    """Create a subscription whose messages wait to be pulled from its own address."""
    operation = request.operation
    now = gateway.now()
    filters = read_filters(operation.find(_tev("Filter")))
    for expression in filters.topics:
        check_supported(gateway, expression)
    check_subscribe(request.caller, filters.topics)
    policy = read_policy(operation.find(_tev("SubscriptionPolicy")))
    if policy.form != "notify":
        raise OperationRefused("a pull point keeps whole messages, not raw ones", "UnsupportedPolicyRequestFault")
    asked = operation.find(_tev("InitialTerminationTime"))
    if asked is not None:
        terminates_ms = requested_termination(asked, now, initial=True)
    else:
        terminates_ms = termination.to_ms(now + timedelta(seconds=gateway.settings.pull_subscription_s))
    identifier = ids.resource_id()
    address = gateway.own.resource(Kind.SUBSCRIPTION, identifier)
    created = Subscription(
        id=identifier,
        consumer=EndpointReference(address),
        address=address,
        topics=filters.topics,
        content=filters.content,
        producer=filters.producer,
        soap=request.soap,
        addressing=request.addressing is not None,
        created_ms=termination.to_ms(now),
        terminates_ms=terminates_ms,
        owner=owner_of(request.caller),
        pull_point=identifier,
    )
    if policy.current_message:
        await check_few(gateway, created)
    check_room(gateway, created.owner)
    created, since = await commit_new(gateway, created)
    if policy.current_message:
        await send_current_messages(gateway, created, since)
    body = (
        f'<tev:CreatePullPointSubscriptionResponse xmlns:tev="{TEV}" xmlns:wsnt="{WSNT}" xmlns:wsa="{WSA}">'
        f"<tev:SubscriptionReference><wsa:Address>{answers.text(address)}</wsa:Address></tev:SubscriptionReference>"
        f"<wsnt:CurrentTime>{termination.written(now)}</wsnt:CurrentTime>"
        f"{termination_element(created)}</tev:CreatePullPointSubscriptionResponse>"
    )
    return Reply(body, f"{TEV}/EventPortType/CreatePullPointSubscriptionResponse")


async def pull_messages(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Take out what waits, or wait for it; whoever pulls keeps the subscription alive."""
    wait_s = _timeout_s(gateway, request.operation)
    limit = _message_limit(request.operation)
    subscription = await _kept_alive(gateway, request, target)
    handout = await gateway.pulls.take(subscription.id, limit, wait_s, request.gone)
    if not handout.elements and gateway.table.get(subscription.id) is None:
        raise UnknownResource(f"the subscription {subscription.id!r} ended", subscription.id)
    end = subscription.terminates_ms
    # The schema knows no nil here: what never ends is said to end far away.
    terminates = termination.LATEST if end is None else termination.from_ms(end)
    body = (
        f'<tev:PullMessagesResponse xmlns:tev="{TEV}"><tev:CurrentTime>{termination.written(gateway.now())}'
        f"</tev:CurrentTime><tev:TerminationTime>{termination.written(terminates)}</tev:TerminationTime>"
        f"{handout.text()}</tev:PullMessagesResponse>"
    )
    return Reply(body, f"{TEV}/PullPointSubscription/PullMessagesResponse", handout.finish)


async def set_synchronization_point(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Clients ask for the state of all properties to be sent again. We have topics, not properties: nothing follows."""
    if target.kind is Kind.SUBSCRIPTION:
        async with held(gateway, request, target):
            pass
    return _plain("SetSynchronizationPointResponse", "", "PullPointSubscription")


async def get_event_properties(gateway: Gateway, request: Request, _target: Target) -> Reply:
    """The topics, and what filters may be written in."""
    fixed = "true" if gateway.topics.fixed else "false"
    dialects = "".join(
        f"<wsnt:TopicExpressionDialect>{dialect}</wsnt:TopicExpressionDialect>"
        for dialect in (CONCRETE, CONCRETE_SET, FULL)
    )
    topics = await gateway.topic_sets.text("set", gateway.table.topics, request.caller)
    content = (
        f"<tev:TopicNamespaceLocation>{_TOPIC_NAMESPACE}</tev:TopicNamespaceLocation>"
        f"<wsnt:FixedTopicSet>{fixed}</wsnt:FixedTopicSet>{topics}{dialects}"
        f"<tev:MessageContentFilterDialect>{XPATH}</tev:MessageContentFilterDialect>"
        f"<tev:MessageContentSchemaLocation>{_CONTENT_SCHEMA}</tev:MessageContentSchemaLocation>"
    )
    return _plain("GetEventPropertiesResponse", content, "EventPortType")


async def get_service_capabilities(gateway: Gateway, _request: Request, _target: Target) -> Reply:
    """What the service can do."""
    return _plain("GetServiceCapabilitiesResponse", capabilities(gateway), "EventPortType")


def capabilities(gateway: Gateway) -> str:
    """The service's Capabilities element; its prefix `tev` must be declared around it."""
    # Producers are not limited; the type is an int, and some clients refuse to do without a number.
    return (
        '<tev:Capabilities WSSubscriptionPolicySupport="false" WSPullPointSupport="true"'
        ' WSPausableSubscriptionManagerInterfaceSupport="true" MaxNotificationProducers="2147483647"'
        f' MaxPullPoints="{gateway.settings.pull_points}" PersistentNotificationStorage="false"/>'
    )


async def _kept_alive(gateway: Gateway, request: Request, target: Target) -> Subscription:
    async with held(gateway, request, target) as subscription:
        if subscription.pull_point != subscription.id:
            raise UnknownResource(f"the subscription {subscription.id!r} is pushed, not pulled", subscription.id)
        now = gateway.now()
        span = timedelta(seconds=gateway.settings.pull_subscription_s)
        if not subscription.expired(termination.to_ms(now + span)):
            return subscription
        # Twice as long as needed, so that not every pull has to write it down.
        return await replace(gateway, subscription, terminates_ms=termination.to_ms(now + 2 * span))


def _timeout_s(gateway: Gateway, operation: etree._Element) -> float:
    text = operation.findtext(_tev("Timeout"))
    if text is None:
        return 0.0
    try:
        wait_s = termination.duration_s(text, gateway.now())
    except ValueError as error:
        raise InvalidRequest(f"Timeout: {error}") from error
    return min(wait_s, gateway.settings.pull_max_wait_s)


def _message_limit(operation: etree._Element) -> int:
    text = (operation.findtext(_tev("MessageLimit")) or "1").strip()
    if not text.isdecimal() or not text.isascii() or len(text) > 10:
        raise InvalidRequest(f"MessageLimit is {text[:60]!r}, a number is needed")
    return min(max(1, int(text)), _MAX_MESSAGES)


def _plain(element: str, content: str, port_type: str) -> Reply:
    body = f'<tev:{element} xmlns:tev="{TEV}" xmlns:wsnt="{WSNT}">{content}</tev:{element}>'
    return Reply(body, f"{TEV}/{port_type}/{element}")


_BROKER = frozenset({Kind.BROKER})

OPERATIONS: tuple[Operation, ...] = (
    Operation(_tev("CreatePullPointSubscription"), create_pull_point_subscription, _BROKER),
    Operation(_tev("PullMessages"), pull_messages, frozenset({Kind.SUBSCRIPTION})),
    Operation(_tev("SetSynchronizationPoint"), set_synchronization_point, frozenset({Kind.SUBSCRIPTION, Kind.BROKER})),
    Operation(_tev("GetEventProperties"), get_event_properties, _BROKER),
    Operation(_tev("GetServiceCapabilities"), get_service_capabilities, _BROKER),
)
"""What the event service offers beyond base notification."""
