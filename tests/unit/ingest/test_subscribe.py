"""Subscribe, as a client sees it: what is asked for, what is granted, and what the same request comes to again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from lxml import etree

from arborcast.ingest.elements.filters import read_delivery_policy, write_delivery_policy
from arborcast.ingest.settings import GatewaySettings, TopicSettings
from arborcast.topic_model.records.control import SubscriptionRecord, TopicRecord
from arborcast.topic_model.subscriptions import (
    DeliveryPolicy,
    XPathFilter,
)
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from tests.support import oasis
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, only_subscription, path_of


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_subscribe_is_recorded_and_answered_in_kind(version: str) -> None:
    parts = GatewayParts()
    answer = parts.post(
        soap.envelope(soap.subscribe("http://h:1/c", soap.topic_expression("t:a//."), "PT10M"), version)
    )
    assert answer.status == 200
    assert answer.headers[b"content-type"] == soap.MEDIA_TYPES[version].encode()
    assert answer.root.tag == f"{{{soap.NAMESPACES[version]}}}Envelope"
    assert answer.text("CurrentTime") == "2026-01-01T00:00:00Z"
    assert answer.text("TerminationTime") == "2026-01-01T00:10:00Z"
    subscription = only_subscription(parts)
    assert subscription.consumer.address == "http://h:1/c"
    assert subscription.address.endswith(path_of(answer))
    assert subscription.selector() == "{urn:t}a//."
    assert subscription.soap == version
    assert not subscription.addressing
    assert parts.control.records == [SubscriptionRecord(subscription)]


def test_the_end_that_is_granted() -> None:
    parts = GatewayParts()
    nil, never = f"{{{soap.XSI}}}nil", "9999-12-31T23:59:59.9999999+01:00"
    answer = parts.post(soap.envelope(soap.subscribe()))
    assert answer.root.find(".//{*}TerminationTime").get(nil) == "true"  # type: ignore[union-attr]
    assert parts.table.match(TopicPath("any/topic")) == (only_subscription(parts),), "no filter is everything"
    parts = GatewayParts(GatewaySettings(default_termination_s=60))
    # "Never" as .NET has it is no end, wherever a time is taken.
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
        ("t:a/b", None, "{urn:t}a/b"),  # CXF's client sends no dialect, whatever it means
        ("t:a//.", None, "{urn:t}a//."),
        (" \n t:a/b \n ", "Concrete", "{urn:t}a/b"),
        ("t:a|t:b//*", "Full", "{urn:t}a|{urn:t}b//*"),
    ],
)
def test_topic_expressions(text: str, dialect: str | None, normal: str) -> None:
    parts = GatewayParts()
    parts.post(soap.envelope(soap.subscribe(filters=soap.topic_expression(text, dialect))))
    assert only_subscription(parts).selector() == normal


def test_content_and_producer_filters_are_kept_with_the_prefixes_they_use() -> None:
    parts = GatewayParts()
    filters = (
        soap.content_filter(" o:order/@total > 100 ")
        + soap.topic_expression("t:a//.")
        + soap.content_filter("not(wsa:Address)", "ProducerProperties")
    )
    assert parts.post(soap.envelope(soap.subscribe(filters=filters))).status == 200
    subscription = only_subscription(parts)
    assert subscription.content == (XPathFilter(soap.XPATH_1, "o:order/@total > 100", {"o": "urn:o"}),)
    assert subscription.producer == (XPathFilter(soap.XPATH_1, "not(wsa:Address)", {"wsa": soap.WSA}),)
    assert len(subscription.topics) == 1
    for text in ("o:a", "o:b", "o:a"):
        parts.post(soap.envelope(soap.subscribe("http://other/", soap.content_filter(text))))
    others = [each for each in parts.table.subscriptions() if each != subscription]
    assert sorted(each.content[0].text for each in others) == ["o:a", "o:b"], "one more for each content"


def test_reference_parameters_and_wrapped_references_are_kept_as_sent() -> None:
    parts = GatewayParts()
    inner = (
        "<wsa:EndpointReference><wsa:Address> http://h/c </wsa:Address><wsa:ReferenceParameters>"
        '<k:Key xmlns:k="urn:k">1</k:Key></wsa:ReferenceParameters></wsa:EndpointReference>'
    )
    body = f"<wsnt:Subscribe><wsnt:ConsumerReference>{inner}</wsnt:ConsumerReference></wsnt:Subscribe>"
    assert parts.post(soap.envelope(body)).status == 200
    consumer = only_subscription(parts).consumer
    assert consumer.address == "http://h/c"
    assert consumer.reference_parameters == ('<k:Key xmlns:k="urn:k">1</k:Key>',)


def cloud_events(mode: str = "", also: str = "", address: str = "http://h/c") -> str:
    policy = f'<p:CloudEvents xmlns:p="urn:arborcast:policy"{mode}/>{also}'
    return soap.subscribe(address, more=f"<wsnt:SubscriptionPolicy>{policy}</wsnt:SubscriptionPolicy>")


@pytest.mark.parametrize(
    ("mode", "form"),
    [
        ("", "cloudevents-binary"),
        (' Mode="structured"', "cloudevents-structured"),
        (' Mode="batched"', "cloudevents-batched"),
    ],
)
def test_cloud_events(mode: str, form: str) -> None:
    parts = GatewayParts()
    answer = parts.post(soap.envelope(cloud_events(mode)))
    assert only_subscription(parts).form == form
    ask = '<r:GetResourceProperty xmlns:r="http://docs.oasis-open.org/wsrf/rp-2">wsnt:SubscriptionPolicy</r:GetResourceProperty>'
    read = parts.post(soap.envelope(ask), path_of(answer))
    element = read.root.find(".//{urn:arborcast:policy}CloudEvents")
    assert element is not None
    assert element.get("Mode") == form.removeprefix("cloudevents-")


def test_cloud_events_that_are_not_possible() -> None:
    parts = GatewayParts()
    point = parts.post(soap.envelope("<wsnt:CreatePullPoint/>"), "/wsn/CreatePullPoint").text("Address") or ""
    parameter = "<wsa:ReferenceParameters><k:Key xmlns:k='urn:k'>1</k:Key></wsa:ReferenceParameters>"
    made = len(parts.control.records)
    for body, words in (
        (cloud_events(' Mode="other"'), "Mode is binary, structured or batched, not other"),
        (cloud_events(also="<wsnt:UseRaw/>"), "two forms: choose one"),
        (cloud_events(also='<p:Queue xmlns:p="urn:arborcast:policy"/>'), "there is no CloudEvents"),
        (cloud_events(address=point), "GET /events/TOPIC"),
        (cloud_events().replace("</wsa:Address>", f"</wsa:Address>{parameter}"), "no SOAP header for the"),
    ):
        answer = parts.post(soap.envelope(body))
        assert (answer.fault, len(parts.control.records)) == ("UnsupportedPolicyRequestFault", made)
        assert words in answer.reason


def test_the_same_subscription_again_is_the_same_one_renewed_and_its_pause_ends() -> None:
    parts = GatewayParts()
    request = soap.envelope(soap.subscribe(filters=soap.topic_expression("t:a"), termination="PT1M"))
    first = parts.post(request)
    parts.post(soap.envelope("<wsnt:PauseSubscription/>"), path_of(first))
    parts.later(seconds=30)
    again = parts.post(request)
    assert path_of(again) == path_of(first)
    assert again.text("TerminationTime") == "2026-01-01T00:01:30Z"
    assert (only_subscription(parts).terminates_ms, only_subscription(parts).paused) == (1_767_225_690_000, False)


def test_equal_subscriptions_at_the_same_moment_become_one() -> None:
    parts = GatewayParts()

    async def together() -> set[str]:
        body = soap.envelope(soap.subscribe())
        answers = await asyncio.gather(*(parts.request("POST", "/wsn/NotificationBroker", body) for _ in range(5)))
        return {path_of(answer) for answer in answers}

    assert len(asyncio.run(together())) == 1
    only_subscription(parts)
    assert len(parts.gateway.locks) == 0


@pytest.mark.parametrize(
    "header",
    [*(f"wsa:{name}" for name in ("To", "Action", "MessageID", "From", "ReplyTo", "RelatesTo")), "d:Delivery"],
)
def test_a_reference_parameter_that_would_double_a_header_is_refused(header: str) -> None:
    parts = GatewayParts()
    reference = (
        '<wsa:Address>http://h/c</wsa:Address><wsa:ReferenceParameters xmlns:d="urn:arborcast:delivery">'
        f'<k:Key xmlns:k="urn:k">1</k:Key><{header}>http://elsewhere/</{header}></wsa:ReferenceParameters>'
    )
    body = f"<wsnt:Subscribe><wsnt:ConsumerReference>{reference}</wsnt:ConsumerReference></wsnt:Subscribe>"
    answer = parts.post(soap.envelope(body))
    assert answer.fault == "SubscribeCreationFailedFault"
    assert f"}}{header.partition(':')[2]}: every message" in answer.reason
    assert parts.control.records == []


def asking_for(attributes: str) -> bytes:
    policy = f'<p:Delivery xmlns:p="urn:arborcast:policy" {attributes}/>'
    return soap.envelope(soap.subscribe(more=f"<wsnt:SubscriptionPolicy>{policy}</wsnt:SubscriptionPolicy>"))


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
        (
            'MaximumAttempts="3" Lifespan="PT2H"',
            DeliveryPolicy(maximum_attempts=3, lifespan_ms=7_200_000),
        ),
        ('Deadline="PT0.5S"', DeliveryPolicy(deadline_ms=500)),
        ('Priority="5" Order="strict"', DeliveryPolicy(order="strict", priority=5)),
        ('Priority="-100"', DeliveryPolicy(priority=-100)),
        ('Deadline="PT1M" DeadlinePer="topic"', DeliveryPolicy(deadline_ms=60_000, deadline_per="topic")),
        ('MinimumInterval="PT0.1S"', DeliveryPolicy(interval_ms=100)),
        ('MinimumInterval="PT0S"', DeliveryPolicy()),
        ('MinimumInterval="P1D" IntervalPer="topic"', DeliveryPolicy(interval_ms=86_400_000)),
        (
            'MinimumInterval="PT1S" IntervalPer="subscription" Deadline="PT1S"',
            DeliveryPolicy(interval_ms=1_000, interval_per="subscription", deadline_ms=1_000),
        ),
    ],
)
def test_a_subscriber_says_how_hard_to_try(attributes: str, policy: DeliveryPolicy) -> None:
    parts = GatewayParts()
    assert parts.post(asking_for(attributes)).status == 200
    assert only_subscription(parts).policy == policy
    written = etree.fromstring(f"<x>{write_delivery_policy(policy)}</x>")
    assert read_delivery_policy(written) == policy, "as the property SubscriptionPolicy shows it"


@pytest.mark.parametrize(
    "attributes",
    [
        'Order="none"',
        'Order="Strict"',
        'Reliability="Timely"',
        'Reliability=""',
        'MaximumAttempts="0"',
        'MaximumAttempts="-1"',
        'MaximumAttempts="1001"',
        'MaximumAttempts="many"',
        'Lifespan="PT0S"',
        'Lifespan="-PT1S"',
        'Lifespan="P2Y"',
        'Lifespan="tomorrow"',
        'Order="strict" Color="red"',
        'Priority="101"',
        'Priority="high"',
        'Deadline="PT0.4S"',
        'Deadline="-PT5S"',
        'Deadline="P2Y"',
        'Deadline="soon"',
        'DeadlinePer="topic"',
        'Deadline="PT1M" DeadlinePer="message"',
        'MinimumInterval="-PT1S"',
        'MinimumInterval="P1DT0.001S"',
        'MinimumInterval="1"',
        'MinimumInterval=""',
        'IntervalPer="topic"',
        'MinimumInterval="PT1S" IntervalPer="message"',
        'MinimumInterval="PT1S" Deadline="PT0.9S"',
    ],
)
def test_what_cannot_be_delivered_so_is_refused(attributes: str) -> None:
    parts = GatewayParts()
    answer = parts.post(asking_for(attributes))
    assert answer.status in (400, 500)
    assert "p:Delivery" in answer.body.decode()
    assert not list(parts.table.subscriptions())


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ('Reliability="strict" MaximumAttempts="3"', "tried until they are delivered"),
        ('Reliability="timely" MaximumAttempts="1"', "pushed once"),
        ('Reliability="timely" Order="strict"', "nothing waits"),
    ],
)
def test_a_delivery_that_contradicts_itself_is_refused(attributes: str, words: str) -> None:
    parts = GatewayParts()
    answer = parts.post(asking_for(attributes))
    assert answer.fault == "UnsupportedPolicyRequestFault"
    assert words in answer.reason
    assert "<wsnt:UnsupportedPolicy" in answer.body.decode()
    assert (parts.control.records, list(parts.table.subscriptions())) == ([], [])


def test_an_expression_may_have_so_many_steps_behind_wildcards() -> None:
    parts = GatewayParts(GatewaySettings(expression_steps=16))
    few = "|".join(f"t:root/a{number}//b/c" for number in range(8))  # two steps each, the anchor not counted
    many = f"{few}|t:root//d"
    assert parts.post(soap.envelope(soap.subscribe(filters=soap.topic_expression(few)))).status == 200
    answer = parts.post(soap.envelope(soap.subscribe(filters=soap.topic_expression(many))))
    assert answer.fault == "InvalidTopicExpressionFault"
    assert "17 steps" in answer.reason
    assert "more than 16" in answer.reason
    assert len(parts.control.records) == 1


def test_a_fixed_topic_set_is_walked_once_for_all_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = GatewayParts(topics=TopicSettings(fixed=True))
    for number in range(300):
        parts.table.apply(TopicRecord(TopicPath(f"{{urn:t}}a/n{number}/m/{'x' * (number + 1)}")))
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
def test_types_of_message_are_a_filter(text: str, types: tuple[str, ...]) -> None:
    parts = GatewayParts()
    filters = soap.topic_expression("t:a") + TYPES.format(text)
    for _ in range(2):
        path = path_of(parts.post(soap.envelope(soap.subscribe(filters=filters))))
    subscription = only_subscription(parts)  # the second was equal
    assert (subscription.types, subscription.selector()) == (types, "{urn:t}a")
    parts.post(soap.envelope(soap.subscribe(filters=soap.topic_expression("t:a") + TYPES.format("t:other"))))
    assert len(list(parts.table.subscriptions())) == 2
    ask = '<r:GetResourceProperty xmlns:r="http://docs.oasis-open.org/wsrf/rp-2" xmlns:p="urn:arborcast:policy">{}</{}>'
    shown = parts.post(soap.envelope(ask.format("p:MessageType", "r:GetResourceProperty")), path).text("MessageType")
    assert shown == (" ".join(each if each[0] == "{" else "{}" + each for each in types) or "*")
    whole = ask.replace("GetResourceProperty", "GetResourcePropertyDocument")
    oasis.validate(parts.post(soap.envelope(whole.format("", "r:GetResourcePropertyDocument")), path).body)


@pytest.mark.parametrize(
    "filters",
    [
        TYPES.format(""),
        TYPES.format("* t:reading"),
        TYPES.format("q:reading"),
        TYPES.format("4"),
        TYPES.format("<t:reading/>"),
        TYPES.format(" ".join(f"t:n{number}" for number in range(65))),
        TYPES.format("t:a") + TYPES.format("t:b"),
    ],
)
def test_a_filter_of_types_that_cannot_be_read_is_refused_and_nothing_is_created(filters: str) -> None:
    parts = GatewayParts()
    answer = parts.post(soap.envelope(soap.subscribe(filters=filters)))
    assert answer.fault == "InvalidFilterFault"
    assert "MessageType" in answer.reason
    oasis.validate(answer.body)
    assert parts.control.records == []
