"""ONVIF's event service: pull point subscriptions, where the subscription is its own pull point.

The address that CreatePullPointSubscription returns accepts PullMessages and the standard's operations of
subscriptions. The service's address offers base notification, too.
"""

from __future__ import annotations

from datetime import timedelta

from lxml import etree

from arborcast.core.errors import UnknownResource
from arborcast.ingest.addresses import Target
from arborcast.ingest.elements.filters import read_filters, read_policy
from arborcast.ingest.operations.gateway import AT_SUBSCRIPTION, Gateway, Operation, Reply, reply_of
from arborcast.ingest.operations.notification_broker import (
    is_nil,
    reference_element,
    requested_termination,
    termination_element,
)
from arborcast.ingest.operations.subscribing import SubscriptionRequest, create_subscription
from arborcast.ingest.operations.subscription_manager import locked_subscription, replace
from arborcast.topic_model.expressions import CONCRETE, CONCRETE_SET, FULL, XPATH
from arborcast.topic_model.expressions.item_filter import ITEM_FILTER
from arborcast.topic_model.namespaces import WSNT
from arborcast.topic_model.subscriptions import Subscription
from arborcast.wire import answers, limits, times
from arborcast.wire.endpoints import Kind
from arborcast.wire.envelope import Request
from arborcast.wire.errors import InvalidRequest

TEV = "http://www.onvif.org/ver10/events/wsdl"

# ONVIF's documents for its topics and payloads. The engine's topics are in the topic set of the same answer.
_TOPIC_NAMESPACE = "http://www.onvif.org/onvif/ver10/topics/topicns.xml"

_CONTENT_SCHEMA = "http://www.onvif.org/onvif/ver10/schema/onvif.xsd"


def _tev(name: str) -> str:
    return f"{{{TEV}}}{name}"


async def create_pull_point_subscription(gateway: Gateway, request: Request, _target: Target) -> Reply:
    """Create a subscription whose messages are pulled from its own address."""
    operation = request.operation
    now = gateway.now()
    requested = operation.find(_tev("InitialTerminationTime"))
    # .NET and gSOAP write nil for a value that is not set. Without an end the subscription of a client that crashed
    # would collect messages for ever.
    if requested is not None and not is_nil(requested):
        terminates_ms = requested_termination(requested, now, initial=True)
    else:
        terminates_ms = times.to_ms(now + timedelta(seconds=gateway.settings.pull_subscription_s))
    created, *_ = await create_subscription(
        gateway,
        SubscriptionRequest(
            read_filters(operation.find(_tev("Filter"))),
            request.caller,
            request.client,
            policy=read_policy(operation.find(_tev("SubscriptionPolicy"))),
            terminates_ms=terminates_ms,
            soap=request.soap,
            addressing=request.addressing is not None,
        ),
    )
    content = (
        f"{reference_element('tev:SubscriptionReference', created.address)}"
        f"<wsnt:CurrentTime>{times.written(now)}</wsnt:CurrentTime>{termination_element(created)}"
    )
    return _plain("CreatePullPointSubscriptionResponse", content, "EventPortType")


async def pull_messages(gateway: Gateway, request: Request, target: Target) -> Reply:
    """Remove waiting messages, or wait for them; keeps the subscription alive."""
    wait_s = _timeout_s(gateway, request.operation)
    limit = _message_limit(request.operation)
    subscription = await _kept_alive(gateway, request, target, wait_s)
    claimed = await gateway.pulls.take(subscription.id, limit, wait_s, request.disconnected)
    if not claimed.messages and gateway.table.get(subscription.id) is None:
        raise UnknownResource(f"the subscription {subscription.id!r} ended")
    end = subscription.terminates_ms
    # The schema does not allow nil here: without an end, the time is far in the future.
    terminates = times.LATEST if end is None else times.from_ms(end)
    return reply_of(
        ("tev", TEV, "PullMessagesResponse"),
        f"<tev:CurrentTime>{times.written(gateway.now())}</tev:CurrentTime>"
        f"<tev:TerminationTime>{times.written(terminates)}</tev:TerminationTime>{claimed.text()}",
        port_type=f"{TEV}/PullPointSubscription",
        finish=claimed.finish,
    )


async def set_synchronization_point(gateway: Gateway, request: Request, target: Target) -> Reply:
    """A request to send the state of all properties again. The engine has topics, not properties, and sends nothing."""
    if target.kind is Kind.SUBSCRIPTION:
        async with locked_subscription(gateway, request, target):
            pass
    return _plain("SetSynchronizationPointResponse", "", "PullPointSubscription")


async def get_event_properties(gateway: Gateway, request: Request, _target: Target) -> Reply:
    """The topics, and the dialects of filters."""
    fixed = "true" if gateway.topics.fixed else "false"
    dialects = "".join(
        f"<wsnt:TopicExpressionDialect>{dialect}</wsnt:TopicExpressionDialect>"
        for dialect in (CONCRETE, CONCRETE_SET, FULL)
    )
    topics = await gateway.topic_sets.text("set", request.caller)
    content = (
        f"<tev:TopicNamespaceLocation>{_TOPIC_NAMESPACE}</tev:TopicNamespaceLocation>"
        f"<wsnt:FixedTopicSet>{fixed}</wsnt:FixedTopicSet>{topics}{dialects}"
        f"<tev:MessageContentFilterDialect>{ITEM_FILTER}</tev:MessageContentFilterDialect>"
        f"<tev:MessageContentFilterDialect>{XPATH}</tev:MessageContentFilterDialect>"
        f"<tev:MessageContentSchemaLocation>{_CONTENT_SCHEMA}</tev:MessageContentSchemaLocation>"
    )
    return _plain("GetEventPropertiesResponse", content, "EventPortType")


async def get_service_capabilities(gateway: Gateway, _request: Request, _target: Target) -> Reply:
    """The capabilities of the service."""
    return _plain("GetServiceCapabilitiesResponse", capabilities(gateway), "EventPortType")


def capabilities(gateway: Gateway) -> str:
    """The service's Capabilities element; its prefix `tev` must be declared around it."""
    # Producers are not limited; the type is an int, and some clients refuse to do without a number.
    return (
        '<tev:Capabilities WSSubscriptionPolicySupport="false" WSPullPointSupport="true"'
        ' WSPausableSubscriptionManagerInterfaceSupport="true" MaxNotificationProducers="2147483647"'
        f' MaxPullPoints="{gateway.settings.pull_points}" PersistentNotificationStorage="false"/>'
    )


async def _kept_alive(gateway: Gateway, request: Request, target: Target, wait_s: float) -> Subscription:
    async with locked_subscription(gateway, request, target) as subscription:
        if subscription.pull_point != subscription.id:
            raise UnknownResource(f"the subscription {subscription.id!r} is pushed, not pulled")
        # An expired subscription misses notifications, so it lasts until the next pull after a full wait.
        answered = gateway.now() + timedelta(seconds=wait_s)
        span = timedelta(seconds=gateway.settings.pull_subscription_s)
        if not subscription.expired(times.to_ms(answered + span)):
            return subscription
        # Twice as long as needed, so that not every pull has to write it down.
        return await replace(gateway, subscription, terminates_ms=times.to_ms(answered + 2 * span))


def _timeout_s(gateway: Gateway, operation: etree._Element) -> float:
    text = operation.findtext(_tev("Timeout"))
    if text is None:
        return 0.0
    try:
        wait_s = times.duration_s(text, gateway.now())
    except ValueError as error:
        raise InvalidRequest(f"Timeout: {error}") from error
    return min(wait_s, gateway.settings.pull_max_wait_s)


def _message_limit(operation: etree._Element) -> int:
    text = (operation.findtext(_tev("MessageLimit")) or "1").strip()
    if not text.isdecimal() or not text.isascii() or len(text) > 10:
        raise InvalidRequest(f"MessageLimit is {text[:60]!r}, a number is needed")
    return min(max(1, int(text)), limits.WINDOW)


def _plain(element: str, content: str, port_type: str) -> Reply:
    return reply_of(("tev", TEV, element), content, port_type=f"{TEV}/{port_type}", attributes=f' xmlns:wsnt="{WSNT}"')


TDS = "http://www.onvif.org/ver10/device/wsdl"

TT = "http://www.onvif.org/ver10/schema"

# The versions of the two services' WSDL that these operations are from.
_VERSION = "<tds:Version><tt:Major>2</tt:Major><tt:Minor>60</tt:Minor></tds:Version>"


def _tds(name: str) -> str:
    return f"{{{TDS}}}{name}"


async def get_system_date_and_time(gateway: Gateway, _request: Request, _target: Target) -> Reply:
    """Our clock: clients date their credentials by it."""
    now = gateway.now()
    return _reply(
        "GetSystemDateAndTime",
        "<tds:SystemDateAndTime><tt:DateTimeType>NTP</tt:DateTimeType><tt:DaylightSavings>false</tt:DaylightSavings>"
        "<tt:TimeZone><tt:TZ>UTC0</tt:TZ></tt:TimeZone><tt:UTCDateTime><tt:Time>"
        f"<tt:Hour>{now.hour}</tt:Hour><tt:Minute>{now.minute}</tt:Minute><tt:Second>{now.second}</tt:Second>"
        f"</tt:Time><tt:Date><tt:Year>{now.year}</tt:Year><tt:Month>{now.month}</tt:Month><tt:Day>{now.day}</tt:Day>"
        "</tt:Date></tt:UTCDateTime></tds:SystemDateAndTime>",
    )


async def get_services(gateway: Gateway, request: Request, _target: Target) -> Reply:
    """Where the services are."""
    detailed = (request.operation.findtext(_tds("IncludeCapability")) or "").strip() in ("1", "true")
    inside = f'<tds:Capabilities xmlns:tev="{TEV}">{capabilities(gateway)}</tds:Capabilities>' if detailed else ""
    return _reply(
        "GetServices",
        f"<tds:Service><tds:Namespace>{TDS}</tds:Namespace><tds:XAddr>{_address(gateway, Kind.DEVICE_SERVICE)}"
        f"</tds:XAddr>{_VERSION}</tds:Service>"
        f"<tds:Service><tds:Namespace>{TEV}</tds:Namespace><tds:XAddr>{_address(gateway, Kind.EVENT_SERVICE)}"
        f"</tds:XAddr>{inside}{_VERSION}</tds:Service>",
    )


async def get_capabilities(gateway: Gateway, _request: Request, _target: Target) -> Reply:
    """The same in the older form."""
    return _reply(
        "GetCapabilities",
        f"<tds:Capabilities><tt:Device><tt:XAddr>{_address(gateway, Kind.DEVICE_SERVICE)}</tt:XAddr></tt:Device>"
        f"<tt:Events><tt:XAddr>{_address(gateway, Kind.EVENT_SERVICE)}</tt:XAddr>"
        "<tt:WSSubscriptionPolicySupport>false</tt:WSSubscriptionPolicySupport>"
        "<tt:WSPullPointSupport>true</tt:WSPullPointSupport>"
        "<tt:WSPausableSubscriptionManagerInterfaceSupport>true</tt:WSPausableSubscriptionManagerInterfaceSupport>"
        "</tt:Events></tds:Capabilities>",
    )


async def get_device_information(_gateway: Gateway, _request: Request, _target: Target) -> Reply:
    """Manufacturer, model and version, which clients show."""
    return _reply(
        "GetDeviceInformation",
        "<tds:Manufacturer>Arborcast</tds:Manufacturer><tds:Model>notification broker</tds:Model>"
        "<tds:FirmwareVersion>1</tds:FirmwareVersion><tds:SerialNumber>none</tds:SerialNumber>"
        "<tds:HardwareId>none</tds:HardwareId>",
    )


def _address(gateway: Gateway, kind: Kind) -> str:
    return answers.text(gateway.own.resource(kind, ""))


def _reply(operation: str, content: str) -> Reply:
    return reply_of(("tds", TDS, f"{operation}Response"), content, attributes=f' xmlns:tt="{TT}"')


OPERATIONS: tuple[Operation, ...] = (
    Operation(_tev("CreatePullPointSubscription"), create_pull_point_subscription),
    Operation(_tev("PullMessages"), pull_messages, frozenset({Kind.SUBSCRIPTION})),
    Operation(_tev("SetSynchronizationPoint"), set_synchronization_point, AT_SUBSCRIPTION),
    Operation(_tev("GetEventProperties"), get_event_properties),
    Operation(_tev("GetServiceCapabilities"), get_service_capabilities),
    Operation(_tds("GetSystemDateAndTime"), get_system_date_and_time),
    Operation(_tds("GetServices"), get_services),
    Operation(_tds("GetCapabilities"), get_capabilities),
    Operation(_tds("GetDeviceInformation"), get_device_information),
)

PRE_AUTH = frozenset(
    (*map(_tds, ("GetSystemDateAndTime", "GetServices", "GetCapabilities")), _tev("GetServiceCapabilities"))
)
"""Operations that need no credentials in the message: ONVIF's access class of this name. Clients read the clock first,
since the time in their credentials is by it."""
