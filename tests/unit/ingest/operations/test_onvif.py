"""ONVIF's services: SOAP 1.2, the action in the media type, unchecked credentials."""

from __future__ import annotations

import asyncio

import pytest
from lxml import etree

from arborcast.ingest.settings import GatewaySettings
from arborcast.topic_model.expressions.conditions import compile_condition, parse_document
from arborcast.topic_model.expressions.item_filter import ITEM_FILTER
from arborcast.topic_model.records.control import TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support import soap_messages as soap
from tests.support.framed import stored
from tests.support.gateway_parts import GatewayParts, HttpAnswer, only_subscription
from tests.support.guarded_gateway import token
from tests.support.oasis import validate_element

TEV = "http://www.onvif.org/ver10/events/wsdl"
TDS = "http://www.onvif.org/ver10/device/wsdl"
EVENTS = "/onvif/event_service"
DEVICE = "/onvif/device_service"


def post(parts: GatewayParts, body: str, path: str = EVENTS, action: str = "") -> HttpAnswer:
    """One request in the form of onvif-zeep-async."""
    header = (
        f"<wsa:Action>{action}</wsa:Action><wsa:MessageID>urn:uuid:1</wsa:MessageID>"
        f"<wsa:To>http://127.0.0.1:8080{path}</wsa:To>{token('user', 'ZGlnZXN0')}"
    )
    media_type = f'application/soap+xml; charset=utf-8; action="{action}"'
    return parts.post(soap.envelope(body, "1.2", header), path, Content_Type=media_type)


def create(parts: GatewayParts, inside: str = "") -> str:
    """The path of a new pull point subscription."""
    body = f'<tev:CreatePullPointSubscription xmlns:tev="{TEV}">{inside}</tev:CreatePullPointSubscription>'
    answer = post(parts, body, action=f"{TEV}/EventPortType/CreatePullPointSubscriptionRequest")
    assert answer.status == 200, answer.reason
    assert answer.text("Action") == f"{TEV}/EventPortType/CreatePullPointSubscriptionResponse"
    return (answer.text("Address") or "").removeprefix("http://127.0.0.1:8080")


def pull(parts: GatewayParts, path: str, limit: int = 10, timeout: str = "PT0S") -> HttpAnswer:
    body = (
        f'<tev:PullMessages xmlns:tev="{TEV}"><tev:Timeout>{timeout}</tev:Timeout>'
        f"<tev:MessageLimit>{limit}</tev:MessageLimit></tev:PullMessages>"
    )
    return post(parts, body, path, f"{TEV}/PullPointSubscription/PullMessagesRequest")


def deliver(parts: GatewayParts, path: str, *numbers: int) -> None:
    """Stores messages like dispatch."""
    messages = [stored("t:a/b", f"<n>{number}</n>", "") for number in numbers]
    asyncio.run(parts.pull_log.commit([(path.rpartition("/")[2], message) for message in messages]))


def numbers(answer: HttpAnswer) -> list[int]:
    assert answer.status == 200, answer.reason
    return [int(element.text or "") for element in answer.root.iterfind(".//n")]


def test_the_subscription_is_its_own_pull_point(parts: GatewayParts) -> None:
    path = create(parts, "<tev:InitialTerminationTime>PT10M</tev:InitialTerminationTime>")
    subscription = only_subscription(parts)
    assert path == f"/wsn/subscriptions/{subscription.id}"
    assert subscription.pull_point == subscription.id
    assert subscription.terminates_ms == round(parts.now.timestamp() * 1000) + 600_000
    (content,) = post(parts, f'<tev:CreatePullPointSubscription xmlns:tev="{TEV}"/>').root.iterfind(".//{*}Body/*")
    assert [(child.tag, child.text) for child in list(content)[1:]] == [
        (f"{{{soap.WSNT}}}CurrentTime", "2026-01-01T00:00:00Z"),
        (f"{{{soap.WSNT}}}TerminationTime", "2026-01-01T00:01:00Z"),
    ], "pull_subscription_s by default"
    assert content[0].tag == f"{{{TEV}}}SubscriptionReference"
    assert len({each.id for each in parts.table.subscriptions()}) == 2, "equal requests create two subscriptions"


def test_an_item_filter_together_with_a_concrete_set(parts: GatewayParts) -> None:
    content = 'boolean(//tt:SimpleItem[@Name="IsMotion" and @Value="true"])'
    filters = (
        '<wsnt:TopicExpression xmlns:t="urn:t" Dialect="http://www.onvif.org/ver10/tev/topicExpression/ConcreteSet">'
        f't:a/b|t:c//.</wsnt:TopicExpression><wsnt:MessageContent Dialect="{ITEM_FILTER}">%s</wsnt:MessageContent>'
    )
    wrong = f"<tev:Filter>{filters % 'x'}</tev:Filter>"
    body = f'<tev:CreatePullPointSubscription xmlns:tev="{TEV}">{wrong}</tev:CreatePullPointSubscription>'
    assert post(parts, body).fault == "InvalidMessageContentExpressionFault"
    assert list(parts.table.subscriptions()) == []
    create(parts, f"<tev:Filter>{filters % content}</tev:Filter>")
    assert parts.post(soap.envelope(soap.subscribe(filters=filters % content))).status == 200
    pulled, pushed = parts.table.match(TopicPath("{urn:t}a/b"))
    (condition,) = pushed.content
    assert pulled.content == (condition,)
    message = '<m:M xmlns:m="http://www.onvif.org/ver10/schema"><m:SimpleItem Name="IsMotion" Value="%s"/></m:M>'
    compiled = compile_condition(condition)
    holds = [compiled.holds(parse_document((message % value).encode())) for value in ("true", "false")]
    assert holds == [True, False]


def test_messages_are_pulled_in_order_and_once(parts: GatewayParts) -> None:
    path = create(parts)
    deliver(parts, path, 1, 2, 3)
    answer = pull(parts, path, limit=2)
    (content,) = answer.root.iterfind(".//{*}Body/*")
    names = [etree.QName(child).localname for child in content]
    assert names == ["CurrentTime", "TerminationTime", "NotificationMessage", "NotificationMessage"]
    assert numbers(answer) == [1, 2]
    assert answer.text("Action") == f"{TEV}/PullPointSubscription/PullMessagesResponse"
    assert [numbers(pull(parts, path)) for _ in range(2)] == [[3], []]
    for name, text in (("Timeout", "soon"), ("MessageLimit", "-1")):
        body = f'<tev:PullMessages xmlns:tev="{TEV}"><tev:{name}>{text}</tev:{name}></tev:PullMessages>'
        answer = post(parts, body, path)
        assert (answer.status, answer.fault, text in answer.reason) == (500, "Sender", True)


def test_pulls_extend_the_subscription() -> None:
    parts = GatewayParts(GatewaySettings(pull_subscription_s=60))
    path = create(parts, "<tev:InitialTerminationTime>PT90S</tev:InitialTerminationTime>")
    assert pull(parts, path).text("TerminationTime") == "2026-01-01T00:01:30Z"
    parts.later(seconds=31)
    answer = pull(parts, path)
    assert answer.text("CurrentTime") == "2026-01-01T00:00:31Z"
    assert answer.text("TerminationTime") == "2026-01-01T00:02:31Z", "59 seconds are left"
    appended = len(parts.control.records)
    pull(parts, path)
    assert len(parts.control.records) == appended, "not each pull has a record"
    parts.later(seconds=20)
    deliver(parts, path, 1)
    answer = pull(parts, path, timeout="PT50S")
    assert answer.text("TerminationTime") == "2026-01-01T00:03:41Z", "it does not expire during or after the wait"
    # The schema requires a time, also without an end.
    path = create(parts, "<tev:InitialTerminationTime>9999-12-31T23:59:59Z</tev:InitialTerminationTime>")
    assert pull(parts, path).text("TerminationTime") == "9000-01-01T00:00:00Z"


@pytest.mark.parametrize("nil", ["true", "1"])
def test_a_nil_termination_is_the_default(parts: GatewayParts, nil: str) -> None:
    """.NET and gSOAP write it for a value that is not set."""
    attributes = f'xmlns:xsi="{soap.XSI}" xsi:nil="{nil}"'
    path = create(parts, f"<tev:InitialTerminationTime {attributes}/>")
    now_ms = round(parts.now.timestamp() * 1000)
    assert only_subscription(parts).terminates_ms == now_ms + parts.gateway.settings.pull_subscription_s * 1000
    parts.later(seconds=31)
    renewed = post(parts, f"<wsnt:Renew><wsnt:TerminationTime {attributes}/></wsnt:Renew>", path)
    assert renewed.text("TerminationTime") == "2026-01-01T00:01:31Z"


def test_a_synchronization_point_renew_and_unsubscribe(parts: GatewayParts) -> None:
    path = create(parts)
    synchronize = f'<tev:SetSynchronizationPoint xmlns:tev="{TEV}"/>'
    answer = post(parts, synchronize, path)
    assert answer.root.find(f".//{{{TEV}}}SetSynchronizationPointResponse") is not None
    assert post(parts, synchronize, "/wsn/subscriptions/x").fault == "ResourceUnknownFault"
    assert post(parts, soap.renew("PT5M"), path).text("TerminationTime") == "2026-01-01T00:05:00Z"

    async def end() -> HttpAnswer:
        """Unsubscribe while a pull waits."""
        body = f'<tev:PullMessages xmlns:tev="{TEV}"><tev:Timeout>PT60S</tev:Timeout></tev:PullMessages>'
        waiting = asyncio.create_task(parts.request("POST", path, soap.envelope(body, "1.2")))
        while not parts.pulls.waiting_clients:
            await asyncio.sleep(0)
        ended = await parts.request("POST", path, soap.envelope("<wsnt:Unsubscribe/>", "1.2"))
        assert ended.status == 200
        await parts.pulls.sweep(parts.control.catch_up)
        return await asyncio.wait_for(waiting, 45)

    assert asyncio.run(end()).fault == "ResourceUnknownFault"
    assert pull(parts, path).fault == "ResourceUnknownFault"


def test_other_subscriptions_cannot_be_pulled(parts: GatewayParts) -> None:
    parts.post(soap.envelope(soap.subscribe()))
    for name in (only_subscription(parts).id, "x"):
        assert pull(parts, f"/wsn/subscriptions/{name}").fault == "ResourceUnknownFault"
    assert pull(parts, EVENTS).fault == "ActionNotSupported"


def test_event_properties(parts: GatewayParts) -> None:
    parts.post(soap.envelope(soap.notify()))
    onvif = "http://www.onvif.org/ver10/topics"
    parts.table.apply(TopicRecord(TopicPath(f"{{{onvif}}}RuleEngine/Motion")))
    parts.table.apply(TopicRecord(TopicPath(f"{{{onvif}}}Device/{{urn:vendor}}Sensor"), prefixes="tns1 vendor"))
    answer = post(parts, f'<tev:GetEventProperties xmlns:tev="{TEV}"/>')
    (content,) = answer.root.iterfind(".//{*}Body/*")
    names = [etree.QName(child).localname for child in content]
    dialects = ["TopicExpressionDialect"] * 3 + ["MessageContentFilterDialect"] * 2
    assert names == ["TopicNamespaceLocation", "FixedTopicSet", "TopicSet", *dialects, "MessageContentSchemaLocation"]
    assert answer.text("FixedTopicSet") == "false"
    assert content.find(".//{urn:t}a/b") is not None
    validate_element(content[2])
    assert b"<tns1:RuleEngine" in answer.body
    assert b"<vendor:Sensor" in answer.body


def test_the_device_service(parts: GatewayParts) -> None:
    more = "<d:IncludeCapability>true</d:IncludeCapability>"
    answer = post(parts, f'<d:GetServices xmlns:d="{TDS}">{more}</d:GetServices>', DEVICE)
    assert {
        service.findtext(f"{{{TDS}}}Namespace"): service.findtext(f"{{{TDS}}}XAddr")
        for service in answer.root.iterfind(f".//{{{TDS}}}Service")
    } == {TDS: f"http://127.0.0.1:8080{DEVICE}", TEV: f"http://127.0.0.1:8080{EVENTS}"}
    assert [each.get("WSPullPointSupport") for each in answer.root.iter(f"{{{TEV}}}Capabilities")] == ["true"]
    clock = post(parts, f'<d:GetSystemDateAndTime xmlns:d="{TDS}"/>', DEVICE)
    times = [clock.text(name) for name in ("Year", "Month", "Day", "Hour", "Minute", "Second")]
    assert times == ["2026", "1", "1", "0", "0", "0"]
    older = post(parts, f'<d:GetCapabilities xmlns:d="{TDS}"/>', DEVICE)
    assert f"http://127.0.0.1:8080{EVENTS}" in [element.text for element in older.root.iterfind(".//{*}XAddr")]
