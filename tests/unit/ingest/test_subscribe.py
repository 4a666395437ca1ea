"""Subscribe: requests, grants, and repeated requests. And properties of SOAP clients: addressing, security headers,
generated code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from lxml import etree
from msgspec.structs import replace

from arborcast.ingest.elements.filters import read_delivery_policy, write_delivery_policy
from arborcast.ingest.operations import subscribing
from arborcast.ingest.settings import GatewaySettings, TopicSettings
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord
from arborcast.topic_model.subscriptions import DeliveryPolicy, XPathFilter
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from tests.support import oasis
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, only_subscription, path_of
from tests.support.guarded_gateway import WSSE


def refused(parts: GatewayParts, body: str, fault: str, *words: str) -> None:
    """The body is refused with this fault, whose reason has these words, and changes nothing."""
    before = len(parts.control.records)
    answer = parts.post(soap.envelope(body))
    assert (answer.fault, len(parts.control.records)) == (fault, before)
    assert not [each for each in words if each not in answer.reason], answer.reason
    oasis.validate(answer.body)


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_subscribe_is_recorded_and_answered(parts: GatewayParts, version: str) -> None:
    body = soap.subscribe("http://h:1/c", soap.topic_expression("t:a//."), "PT10M")
    answer = parts.post(soap.envelope(body, version))
    assert answer.status == 200
    assert answer.headers[b"content-type"] == soap.MEDIA_TYPES[version].encode()
    assert answer.root.tag == f"{{{soap.NAMESPACES[version]}}}Envelope"
    assert answer.text("CurrentTime") == "2026-01-01T00:00:00Z"
    assert answer.text("TerminationTime") == "2026-01-01T00:10:00Z"
    made = only_subscription(parts)
    assert (made.consumer.address, made.selector(), made.soap) == ("http://h:1/c", "{urn:t}a//.", version)
    assert made.address.endswith(path_of(answer))
    assert not made.addressing
    assert parts.control.records == [SubscriptionRecord(made)]


def test_granted_termination_times() -> None:
    parts = GatewayParts()
    nil, never = f"{{{soap.XSI}}}nil", "9999-12-31T23:59:59.9999999+01:00"
    answer = parts.post(soap.envelope(soap.subscribe()))
    assert answer.root.find(".//{*}TerminationTime").get(nil) == "true"  # type: ignore[union-attr]
    assert parts.table.match(TopicPath("any/topic")) == (only_subscription(parts),), "no filter selects all topics"
    parts = GatewayParts(GatewaySettings(default_termination_s=60))
    # .NET's value for "never" means no end, in each request with a time.
    made = parts.post(soap.envelope(soap.subscribe(termination=never)))
    renewed = parts.post(soap.envelope(soap.renew(never)), path_of(made))
    for answer in (made, renewed):
        oasis.validate(answer.body)
        assert answer.root.find(".//{*}TerminationTime").get(nil) == "true"  # type: ignore[union-attr]
    assert only_subscription(parts).terminates_ms is None
    assert parts.post(soap.envelope(soap.subscribe())).text("TerminationTime") == "2026-01-01T00:01:00Z"
    without = f'<wsnt:InitialTerminationTime xmlns:xsi="{soap.XSI}" xsi:nil="true"/>'
    assert parts.post(soap.envelope(soap.subscribe("http://other/", more=without))).text("TerminationTime") == ""


@pytest.mark.parametrize(
    ("text", "dialect", "normal"),
    [
        ("t:a", None, "{urn:t}a"),
        ("t:a/b", None, "{urn:t}a/b"),  # CXF's client sends no dialect
        ("t:a//.", None, "{urn:t}a//."),
        (" \n t:a/b \n ", "Concrete", "{urn:t}a/b"),
        ("t:a|t:b//*", "Full", "{urn:t}a|{urn:t}b//*"),
    ],
)
def test_topic_expressions(parts: GatewayParts, text: str, dialect: str | None, normal: str) -> None:
    parts.post(soap.envelope(soap.subscribe(filters=soap.topic_expression(text, dialect))))
    assert only_subscription(parts).selector() == normal


def test_filters_and_references_are_kept(parts: GatewayParts) -> None:
    filters = soap.content_filter(" o:order/@total > 100 ") + soap.topic_expression("t:a//.")
    filters += soap.content_filter("not(wsa:Address)", "ProducerProperties")
    assert parts.post(soap.envelope(soap.subscribe(filters=filters))).status == 200
    made = only_subscription(parts)
    assert made.content == (XPathFilter(soap.XPATH_1, "o:order/@total > 100", {"o": "urn:o"}),)
    assert made.producer == (XPathFilter(soap.XPATH_1, "not(wsa:Address)", {"wsa": soap.WSA}),)
    assert len(made.topics) == 1
    for text in ("o:a", "o:b", "o:a"):
        parts.post(soap.envelope(soap.subscribe("http://other/", soap.content_filter(text))))
    others = [each for each in parts.table.subscriptions() if each != made]
    assert sorted(each.content[0].text for each in others) == ["o:a", "o:b"], "one subscription per content filter"

    key = '<k:Key xmlns:k="urn:k">1</k:Key>'
    inner = f"<wsa:Address> http://h/c </wsa:Address><wsa:ReferenceParameters>{key}</wsa:ReferenceParameters>"
    inner = f"<wsa:EndpointReference>{inner}</wsa:EndpointReference>"
    body = f"<wsnt:Subscribe><wsnt:ConsumerReference>{inner}</wsnt:ConsumerReference></wsnt:Subscribe>"
    assert parts.post(soap.envelope(body)).status == 200
    consumers = [each.consumer for each in parts.table.subscriptions()]
    assert [each.reference_parameters for each in consumers if each.address == "http://h/c"] == [(key,)]


def cloud_events(mode: str = "", also: str = "", address: str = "http://h/c") -> str:
    return soap.subscribe(address, policy=f"<p:CloudEvents{mode}/>{also}")


def test_cloud_events(parts: GatewayParts) -> None:
    for mode, form in (("", "binary"), (' Mode="structured"', "structured"), (' Mode="batched"', "batched")):
        answer = parts.post(soap.envelope(cloud_events(mode, address=f"http://h/{form}")))
        read = parts.post(soap.envelope(soap.get_property("wsnt:SubscriptionPolicy")), path_of(answer))
        assert [each.get("Mode") for each in read.root.iter("{urn:arborcast:policy}CloudEvents")] == [form]
    forms = {each.form for each in parts.table.subscriptions()}
    assert forms == {"cloudevents-binary", "cloudevents-structured", "cloudevents-batched"}

    point = parts.post(soap.envelope("<wsnt:CreatePullPoint/>"), "/wsn/CreatePullPoint").text("Address") or ""
    parameter = "<wsa:ReferenceParameters><k:Key xmlns:k='urn:k'>1</k:Key></wsa:ReferenceParameters>"
    for body, words in (
        (cloud_events(' Mode="other"'), "Mode is binary, structured or batched, not other"),
        (cloud_events(also="<wsnt:UseRaw/>"), "two forms: choose one"),
        (cloud_events(also="<p:Queue/>"), "there is no CloudEvents"),
        (cloud_events(address=point), "GET /events/TOPIC"),
        (cloud_events().replace("</wsa:Address>", f"</wsa:Address>{parameter}"), "no SOAP header for the"),
    ):
        refused(parts, body, "UnsupportedPolicyRequestFault", words)


def test_a_repeated_subscription_is_renewed_and_its_pause_ends(parts: GatewayParts) -> None:
    request = soap.envelope(soap.subscribe(filters=soap.topic_expression("t:a"), termination="PT1M"))
    first = parts.post(request)
    parts.post(soap.envelope("<wsnt:PauseSubscription/>"), path_of(first))
    parts.later(seconds=30)
    again = parts.post(request)
    assert path_of(again) == path_of(first)
    assert again.text("TerminationTime") == "2026-01-01T00:01:30Z"
    assert (only_subscription(parts).terminates_ms, only_subscription(parts).paused) == (1_767_225_690_000, False)
    parts.gateway.own.base = "https://new.example"
    address = f"https://new.example{path_of(first)}"
    assert (parts.post(request).text("Address"), only_subscription(parts).address) == (address, address)


@pytest.mark.parametrize("clock_ms", [-1, 1])
async def test_an_equal_subscription_that_another_gateway_makes_at_the_same_time_is_renewed(
    parts: GatewayParts, monkeypatch: pytest.MonkeyPatch, clock_ms: int
) -> None:
    commit = parts.control.commit

    async def later(records: Sequence[ControlRecord]) -> int:
        monkeypatch.setattr(parts.control, "commit", commit)
        (record,) = records
        assert isinstance(record, SubscriptionRecord)
        created_ms = record.subscription.created_ms + clock_ms
        await commit([SubscriptionRecord(replace(record.subscription, id="other", created_ms=created_ms))])
        return await commit(records)

    monkeypatch.setattr(parts.control, "commit", later)
    answer = await parts.request("POST", "/wsn/NotificationBroker", soap.envelope(soap.subscribe()))
    assert (answer.status, only_subscription(parts).id) == (200, "other")


async def test_concurrent_equal_subscriptions_become_one(parts: GatewayParts) -> None:
    body = soap.envelope(soap.subscribe())
    answers = await asyncio.gather(*(parts.request("POST", "/wsn/NotificationBroker", body) for _ in range(5)))
    assert {path_of(answer) for answer in answers} == {path_of(answers[0])}
    only_subscription(parts)
    assert not parts.gateway.locks._locks


@pytest.mark.parametrize(
    "header", [*(f"wsa:{name}" for name in ("To", "Action", "MessageID", "From", "ReplyTo", "RelatesTo")), "d:Delivery"]
)
def test_reference_parameters_must_not_duplicate_headers(parts: GatewayParts, header: str) -> None:
    reference = (
        '<wsa:Address>http://h/c</wsa:Address><wsa:ReferenceParameters xmlns:d="urn:arborcast:delivery">'
        f'<k:Key xmlns:k="urn:k">1</k:Key><{header}>http://elsewhere/</{header}></wsa:ReferenceParameters>'
    )
    body = f"<wsnt:Subscribe><wsnt:ConsumerReference>{reference}</wsnt:ConsumerReference></wsnt:Subscribe>"
    refused(parts, body, "SubscribeCreationFailedFault", f"}}{header.partition(':')[2]}: every message")


TOGETHER = DeliveryPolicy(interval_ms=1_000, interval_per="subscription", deadline_ms=1_000)


def delivery(attributes: str) -> str:
    return soap.subscribe(policy=f"<p:Delivery {attributes}/>")


@pytest.mark.parametrize(
    ("attributes", "policy"),
    [
        ("", DeliveryPolicy()),
        ('Order="acceptance"', DeliveryPolicy()),
        ('Order="strict"', DeliveryPolicy(order="strict")),
        ('Reliability="adaptive" MaximumAttempts="2"', DeliveryPolicy(maximum_attempts=2)),
        ('Reliability="strict"', DeliveryPolicy(reliability="strict")),
        ('Reliability="strict" Order="strict"', DeliveryPolicy(reliability="strict", order="strict")),
        ('Reliability="timely" Lifespan="PT1S"', DeliveryPolicy(reliability="timely", lifespan_ms=1_000)),
        ('MaximumAttempts="3" Lifespan="PT2H"', DeliveryPolicy(maximum_attempts=3, lifespan_ms=7_200_000)),
        ('Deadline="PT0.5S"', DeliveryPolicy(deadline_ms=500)),
        ('Priority="5" Order="strict"', DeliveryPolicy(order="strict", priority=5)),
        ('Priority="-100"', DeliveryPolicy(priority=-100)),
        ('Deadline="PT1M" DeadlinePer="topic"', DeliveryPolicy(deadline_ms=60_000, deadline_per="topic")),
        ('MinimumInterval="PT0.1S"', DeliveryPolicy(interval_ms=100)),
        ('MinimumInterval="PT0S"', DeliveryPolicy()),
        ('MinimumInterval="P1D" IntervalPer="topic"', DeliveryPolicy(interval_ms=86_400_000)),
        ('MinimumInterval="PT1S" IntervalPer="subscription" Deadline="PT1S"', TOGETHER),
    ],
)
def test_policies_of_delivery(parts: GatewayParts, attributes: str, policy: DeliveryPolicy) -> None:
    assert parts.post(soap.envelope(delivery(attributes))).status == 200
    assert only_subscription(parts).policy == policy
    written = etree.fromstring(f"<x>{write_delivery_policy(policy)}</x>")
    assert read_delivery_policy(written) == policy, "equal in the property SubscriptionPolicy"


WRONG = {
    "Order": ("none", "Strict"),
    "Reliability": ("Timely", ""),
    "MaximumAttempts": ("0", "-1", "1001", "many"),
    "Lifespan": ("PT0S", "-PT1S", "P2Y", "tomorrow"),
    "Color": ("red",),
    "Priority": ("101", "high"),
    "Deadline": ("PT0.4S", "-PT5S", "P2Y", "soon"),
    "MinimumInterval": ("-PT1S", "P1DT0.001S", "1", "", 'PT1S" Deadline="PT0.9S'),
    "DeadlinePer": ("topic", 'message" Deadline="PT1M'),
    "IntervalPer": ("topic", 'message" MinimumInterval="PT1S'),
}


@pytest.mark.parametrize("attributes", [f'{name}="{value}"' for name, values in WRONG.items() for value in values])
def test_wrong_policies_of_delivery(parts: GatewayParts, attributes: str) -> None:
    answer = parts.post(soap.envelope(delivery(attributes)))
    assert (answer.status in (400, 500), parts.control.records) == (True, [])
    assert "p:Delivery" in answer.body.decode()


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ('Reliability="strict" MaximumAttempts="3"', "tried until they are delivered"),
        ('Reliability="timely" MaximumAttempts="1"', "pushed once"),
        ('Reliability="timely" Order="strict"', "no message waits"),
    ],
)
def test_contradictory_policies_of_delivery(parts: GatewayParts, attributes: str, words: str) -> None:
    refused(parts, delivery(attributes), "UnsupportedPolicyRequestFault", words)


def test_the_steps_of_an_expression_are_limited() -> None:
    parts = GatewayParts(GatewaySettings(expression_steps=16))
    few = "|".join(f"t:root/a{number}//b/c" for number in range(8))  # two steps each, without the anchor
    assert parts.post(soap.envelope(soap.subscribe(filters=soap.topic_expression(few)))).status == 200
    many = soap.subscribe(filters=soap.topic_expression(f"{few}|t:root//d"))
    refused(parts, many, "InvalidTopicExpressionFault", "17 steps", "more than 16")


def by_xpath(text: str, to: str = "http://one/") -> str:
    return soap.subscribe(to, f'<wsnt:TopicExpression Dialect="{soap.XPATH_1}">{text}</wsnt:TopicExpression>')


def test_the_number_of_xpath_topic_expressions_is_limited() -> None:
    parts = GatewayParts(GatewaySettings(xpath_expressions=1))
    assert parts.post(soap.envelope(by_xpath("//a"))).status == 200
    refused(parts, by_xpath("//b"), "SubscribeCreationFailedFault", "gateway.xpath_expressions")
    assert parts.post(soap.envelope(by_xpath("//a", "http://two/"))).status == 200, "the same expression"


def test_the_searches_of_an_xpath_are_limited_by_the_number_of_topics(
    parts: GatewayParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribing, "_MOST_SEARCHED", 6)
    parts.have_topics("a", "b", "c")
    assert parts.post(soap.envelope(by_xpath("//a|//b"))).status == 200
    refused(parts, by_xpath("//a|//b//c"), "InvalidTopicExpressionFault", "3 topics 3 times", "more than 6")
    parts.have_topics(*"defgh")
    refused(parts, by_xpath("//a|//c"), "InvalidTopicExpressionFault", "8 topics 2 times")
    for text in ("//a|//b", "//c", "a|b|c"):
        assert parts.post(soap.envelope(by_xpath(text, "http://two/"))).status == 200


def test_a_fixed_topic_set_is_traversed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = GatewayParts(topics=TopicSettings(fixed=True))
    parts.have_topics(*(f"{{urn:t}}a/n{number}/m/{'x' * (number + 1)}" for number in range(300)))
    visited = 0
    children = TopicTree.children

    def counted(tree: TopicTree, path: TopicPath) -> Iterator[TopicPath]:
        nonlocal visited
        visited += 1
        return children(tree, path)

    monkeypatch.setattr(TopicTree, "children", counted)
    none = "|".join(f"t:a//b{number}//c" for number in range(250))
    answer = parts.post(soap.envelope(soap.subscribe(filters=soap.topic_expression(none))))
    assert answer.fault == "TopicNotSupportedFault"
    assert visited <= 3 * 300 + 1
    assert parts.post(soap.envelope(soap.subscribe(filters=soap.topic_expression(f"{none}|t:a//xx")))).status == 200


TYPES = '<p:MessageType xmlns:p="urn:arborcast:policy" xmlns:t="urn:plant">{}</p:MessageType>'


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("t:reading {urn:plant}alarm\n t:reading", ("{urn:plant}alarm", "{urn:plant}reading")),
        ("reading", ("reading",)),
        (" * ", ()),
    ],
)
def test_types_of_message_are_a_filter(parts: GatewayParts, text: str, types: tuple[str, ...]) -> None:
    filters = soap.topic_expression("t:a") + TYPES.format(text)
    for _ in range(2):
        path = path_of(parts.post(soap.envelope(soap.subscribe(filters=filters))))
    made = only_subscription(parts)  # the second one is equal
    assert (made.types, made.selector()) == (types, "{urn:t}a")
    parts.post(soap.envelope(soap.subscribe(filters=soap.topic_expression("t:a") + TYPES.format("t:other"))))
    assert len(list(parts.table.subscriptions())) == 2
    shown = parts.post(soap.envelope(soap.get_property("p:MessageType")), path).text("MessageType")
    assert shown == (" ".join(each if each[0] == "{" else "{}" + each for each in types) or "*")
    oasis.validate(parts.post(soap.envelope(soap.PROPERTY_DOCUMENT), path).body)


@pytest.mark.parametrize(
    "filters",
    [
        *map(TYPES.format, ("", "* t:reading", "q:reading", "4", "<t:reading/>")),
        TYPES.format(" ".join(f"t:n{number}" for number in range(65))),
        TYPES.format("t:a") + TYPES.format("t:b"),
    ],
)
def test_unreadable_filters_of_types(parts: GatewayParts, filters: str) -> None:
    refused(parts, soap.subscribe(filters=filters), "InvalidFilterFault", "MessageType")


# Properties of SOAP clients.


def test_addressing_is_answered_when_it_was_used(parts: GatewayParts) -> None:
    action = "http://docs.oasis-open.org/wsn/brw-2/NotificationBroker/SubscribeRequest"
    answer = parts.post(soap.envelope(soap.subscribe(), "1.2", soap.addressing(action, "urn:uuid:42")))
    assert answer.text("Action") == action.replace("Request", "Response")
    assert answer.text("RelatesTo") == "urn:uuid:42"
    assert b"mustUnderstand" not in answer.body
    assert only_subscription(parts).addressing


def test_headers_of_ws_security_and_other_actors_are_accepted() -> None:
    security = f'<w:Security xmlns:w="{WSSE}" s:mustUnderstand="1"/>'
    for_others = '<x:H xmlns:x="urn:x" s:mustUnderstand="1" s:actor="urn:other"/>'
    assert GatewayParts().post(soap.envelope(soap.notify(), header=security + for_others)).status == 202


GENERATED = (
    '<soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/"><soap:Body><ns3:{0} xmlns="{2}"'
    ' xmlns:ns2="http://www.w3.org/2005/08/addressing" xmlns:ns3="http://docs.oasis-open.org/wsn/b-2"'
    ' xmlns:ns5="http://docs.oasis-open.org/wsn/t-1">{1}</ns3:{0}></soap:Body></soap:Envelope>'
)
GENERATED_SUBSCRIBE = (
    "<ns3:ConsumerReference><ns2:Address>http://127.0.0.1:9/x</ns2:Address></ns3:ConsumerReference><ns3:Filter>"
    f'<ns3:TopicExpression Dialect="{soap.DIALECT}Concrete">alarm/fire</ns3:TopicExpression></ns3:Filter>'
)
GENERATED_NOTIFY = (
    f'<ns3:NotificationMessage><ns3:Topic Dialect="{soap.DIALECT}Concrete">alarm/fire</ns3:Topic>'
    '<ns3:Message><order xmlns="urn:o">1</order></ns3:Message></ns3:NotificationMessage>'
)


@pytest.mark.parametrize(
    "default",
    [*(f"http://docs.oasis-open.org/{each}-2" for each in ("wsrf/bf", "wsrf/r", "wsrf/rp", "wsn/br")), soap.WSA],
)
def test_default_namespaces_do_not_apply_to_topics(parts: GatewayParts, default: str) -> None:
    assert parts.post(GENERATED.format("Subscribe", GENERATED_SUBSCRIBE, default).encode()).status == 200
    assert parts.post(GENERATED.format("Notify", GENERATED_NOTIFY, default).encode()).status == 202
    assert only_subscription(parts).selector() == "alarm/fire"
    assert [one.topic for one in parts.notifications.accepted] == [TopicPath("alarm/fire")]


@pytest.mark.parametrize(
    "body", [soap.subscribe(filters="{}"), f'<b:RegisterPublisher xmlns:b="{soap.WSN_BR}">{{}}</b:RegisterPublisher>']
)
def test_expressions_are_counted_with_their_namespaces(body: str) -> None:
    """Each process keeps them: a request of 60 kB would have become 4 MB in each."""
    name = "wsnt:TopicExpression" if "Subscribe" in body else "b:Topic"
    for count, status in ((50, 200), (100, 413)):
        parts = GatewayParts()
        one = f'<{name} Dialect="{soap.DIALECT}Concrete">p:a{{}}</{name}>'
        request = soap.envelope(body.format("".join(one.format(number) for number in range(count))))
        answer = parts.post(request.replace(b"<s:Body>", f'<s:Body xmlns:p="{"u" * 2_000}">'.encode()))
        assert (answer.status, bool(parts.control.records)) == (status, status == 200), answer.reason
