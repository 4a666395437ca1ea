"""Subscribe, Renew, Unsubscribe, Pause, Resume and Notify, as a client sees them."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from ingest.settings import GatewaySettings
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from topic_model.errors import InfrastructureError
from topic_model.records import SubscriptionEnded, SubscriptionRecord, SubscriptionSuspended, Tombstone, TopicRecord
from topic_model.settings import TopicSettings
from topic_model.subscriptions import DeliveryPolicy, Subscription, XPathFilter
from topic_model.topics import TopicPath


def path_of(answer: HttpAnswer) -> str:
    """Where the subscription of a SubscribeResponse is managed."""
    address = answer.root.findtext(".//{*}SubscriptionReference/{*}Address")
    assert address is not None
    assert address.startswith("http://127.0.0.1:8080/wsn/subscriptions/")
    return urlsplit(address).path


def only_subscription(parts: GatewayParts) -> Subscription:
    (subscription,) = parts.table.subscriptions()
    return subscription


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


def test_no_filter_is_everything_and_no_time_is_no_end() -> None:
    parts = GatewayParts()
    answer = parts.post(soap.envelope(soap.subscribe()))
    assert answer.root.find(".//{*}TerminationTime").get(f"{{{soap.XSI}}}nil") == "true"  # type: ignore[union-attr]
    assert parts.table.match(TopicPath("any/topic")) == (only_subscription(parts),)


def test_the_default_termination_is_granted_unless_nil_is_asked_for() -> None:
    parts = GatewayParts(GatewaySettings(default_termination_s=60))
    assert parts.post(soap.envelope(soap.subscribe())).text("TerminationTime") == "2026-01-01T00:01:00Z"
    nil = f'<wsnt:InitialTerminationTime xmlns:xsi="{soap.XSI}" xsi:nil="true"/>'
    assert parts.post(soap.envelope(soap.subscribe("http://other/", more=nil))).text("TerminationTime") == ""


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


# As Apache CXF's clients write that are made from the WSDL: every namespace of the schemas, one of them as the default.
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
    [
        "http://docs.oasis-open.org/wsrf/bf-2",
        "http://docs.oasis-open.org/wsrf/r-2",
        "http://docs.oasis-open.org/wsrf/rp-2",
        "http://docs.oasis-open.org/wsn/br-2",
        "http://www.w3.org/2005/08/addressing",
    ],
)
def test_the_default_namespace_of_a_generated_client_is_not_its_topics(default: str) -> None:
    parts = GatewayParts()
    assert parts.post(GENERATED.format("Subscribe", GENERATED_SUBSCRIBE, default).encode()).status == 200
    assert parts.post(GENERATED.format("Notify", GENERATED_NOTIFY, default).encode()).status == 202
    assert only_subscription(parts).selector() == "alarm/fire"
    assert [one.topic for one in parts.notifications.accepted] == [TopicPath("alarm/fire")]


def test_several_topic_expressions_are_all_kept() -> None:
    parts = GatewayParts()
    filters = soap.topic_expression("t:a//.") + soap.topic_expression("t://b")
    parts.post(soap.envelope(soap.subscribe(filters=filters)))
    assert len(only_subscription(parts).topics) == 2


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


def test_subscriptions_that_differ_in_content_only_are_two() -> None:
    parts = GatewayParts()
    for text in ("o:a", "o:b", "o:a"):
        parts.post(soap.envelope(soap.subscribe(filters=soap.content_filter(text))))
    assert sorted(each.content[0].text for each in parts.table.subscriptions()) == ["o:a", "o:b"]


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


def test_raw_delivery() -> None:
    parts = GatewayParts()
    parts.post(soap.envelope(soap.subscribe(more="<wsnt:SubscriptionPolicy><wsnt:UseRaw/></wsnt:SubscriptionPolicy>")))
    assert only_subscription(parts).form == "raw"


def test_the_same_subscription_again_is_the_same_one_renewed() -> None:
    parts = GatewayParts()
    request = soap.envelope(soap.subscribe(filters=soap.topic_expression("t:a"), termination="PT1M"))
    first = parts.post(request)
    parts.later(seconds=30)
    again = parts.post(request)
    assert path_of(again) == path_of(first)
    assert again.text("TerminationTime") == "2026-01-01T00:01:30Z"
    assert only_subscription(parts).terminates_ms == 1_767_225_690_000


def test_the_same_subscription_without_end_needs_no_further_record() -> None:
    parts = GatewayParts()
    for _ in range(3):
        parts.post(soap.envelope(soap.subscribe()))
    assert len(parts.control.records) == 1


def test_equal_subscriptions_at_the_same_moment_become_one() -> None:
    parts = GatewayParts()

    async def together() -> set[str]:
        body = soap.envelope(soap.subscribe())
        answers = await asyncio.gather(*(parts.request("POST", "/wsn/NotificationBroker", body) for _ in range(5)))
        return {path_of(answer) for answer in answers}

    assert len(asyncio.run(together())) == 1
    only_subscription(parts)
    assert len(parts.gateway.locks) == 0


def test_subscribing_again_ends_a_pause() -> None:
    parts = GatewayParts()
    request = soap.envelope(soap.subscribe())
    path = path_of(parts.post(request))
    parts.post(soap.envelope("<wsnt:PauseSubscription/>"), path)
    parts.post(request)
    assert not only_subscription(parts).paused


def test_pause_and_resume() -> None:
    parts = GatewayParts()
    path = path_of(parts.post(soap.envelope(soap.subscribe())))
    answer = parts.post(soap.envelope("<wsnt:PauseSubscription/>"), path)
    assert answer.root.find(".//{*}PauseSubscriptionResponse") is not None
    assert only_subscription(parts).paused
    answer = parts.post(soap.envelope("<wsnt:ResumeSubscription/>"), path)
    assert answer.root.find(".//{*}ResumeSubscriptionResponse") is not None
    assert not only_subscription(parts).paused


def test_resume_takes_a_suspension_back() -> None:
    parts = GatewayParts()
    path = path_of(parts.post(soap.envelope(soap.subscribe())))
    parts.suspensions.apply(SubscriptionSuspended(only_subscription(parts).id, "refused", 1, 2))

    parts.post(soap.envelope("<wsnt:ResumeSubscription/>"), path)

    assert len(parts.suspensions) == 0


def test_subscribing_again_takes_a_suspension_back() -> None:
    parts = GatewayParts()
    request = soap.envelope(soap.subscribe())
    parts.post(request)
    parts.suspensions.apply(SubscriptionSuspended(only_subscription(parts).id, "refused", 1, 2))

    parts.post(request)

    assert len(parts.suspensions) == 0


def test_the_end_of_a_suspended_subscription_leaves_nothing_behind() -> None:
    parts = GatewayParts()
    path = path_of(parts.post(soap.envelope(soap.subscribe())))
    name = only_subscription(parts).id
    parts.suspensions.apply(SubscriptionSuspended(name, "refused", 1, 2))

    parts.post(soap.envelope("<wsnt:Unsubscribe/>"), path)

    assert parts.control.records[-2:] == [Tombstone(f"sub:{name}"), Tombstone(f"susp:{name}")]


def test_renew_answers_the_termination_time_first() -> None:
    parts = GatewayParts()
    path = path_of(parts.post(soap.envelope(soap.subscribe(termination="PT1M"))))
    parts.later(seconds=10)
    answer = parts.post(soap.envelope(soap.renew("PT5M")), path)
    response = answer.root.find(".//{*}RenewResponse")
    assert response is not None
    assert [child.tag.rpartition("}")[2] for child in response] == ["TerminationTime", "CurrentTime"]
    assert answer.text("TerminationTime") == "2026-01-01T00:05:10Z"
    assert answer.text("CurrentTime") == "2026-01-01T00:00:10Z"


def test_renew_with_a_time_that_is_over_changes_nothing() -> None:
    parts = GatewayParts()
    path = path_of(parts.post(soap.envelope(soap.subscribe(termination="PT1M"))))
    answer = parts.post(soap.envelope(soap.renew("2025-01-01T00:00:00Z")), path)
    assert answer.fault == "UnacceptableTerminationTimeFault"
    assert answer.text("MinimumTime") == "2026-01-01T00:00:00Z"
    assert len(parts.control.records) == 1


def test_an_expired_subscription_can_be_renewed_within_the_grace_time_only() -> None:
    parts = GatewayParts(GatewaySettings(expiry_grace_s=60))
    path = path_of(parts.post(soap.envelope(soap.subscribe(termination="PT1M"))))
    parts.later(seconds=119)
    assert parts.post(soap.envelope(soap.renew("PT1M")), path).status == 200
    parts.later(seconds=120)
    assert parts.post(soap.envelope(soap.renew("PT1M")), path).fault == "ResourceUnknownFault"


def test_unsubscribe_ends_with_a_reason_and_leaves_nothing() -> None:
    parts = GatewayParts()
    path = path_of(parts.post(soap.envelope(soap.subscribe())))
    identifier = path.rpartition("/")[2]
    answer = parts.post(soap.envelope("<wsnt:Unsubscribe/>"), path)
    assert answer.root.find(".//{*}UnsubscribeResponse") is not None
    assert parts.control.records[1:] == [
        SubscriptionEnded(identifier, "unsubscribed", 1_767_225_600_000),
        Tombstone(f"sub:{identifier}"),
    ]
    assert list(parts.table.subscriptions()) == []
    assert parts.post(soap.envelope("<wsnt:Unsubscribe/>"), path).fault == "ResourceUnknownFault"


@pytest.mark.parametrize("where", ["body", "header"])
def test_a_subscription_named_in_the_message_is_found_at_the_brokers_address(where: str) -> None:
    parts = GatewayParts()
    address = "http://127.0.0.1:8080" + path_of(parts.post(soap.envelope(soap.subscribe())))
    reference = f"<wsnt:SubscriptionReference><wsa:Address>{address}</wsa:Address></wsnt:SubscriptionReference>"
    body = f"<wsnt:Unsubscribe>{reference if where == 'body' else ''}</wsnt:Unsubscribe>"
    header = soap.addressing("urn:any", to=address) if where == "header" else ""
    assert parts.post(soap.envelope(body, header=header)).status == 200
    assert list(parts.table.subscriptions()) == []


def test_a_notify_is_stored_in_order_and_answered_with_an_empty_202() -> None:
    parts = GatewayParts()
    messages = [soap.message("t:a/b", f"<n>{number}</n>") for number in range(3)]
    answer = parts.post(soap.envelope(soap.notify(*messages), header=soap.addressing("urn:any", "urn:uuid:7")))
    assert (answer.status, answer.body) == (202, b"")
    accepted = parts.notifications.accepted
    assert [one.payload for one in accepted] == [b"<n>0</n>", b"<n>1</n>", b"<n>2</n>"]
    assert {one.topic for one in accepted} == {"{urn:t}a/b"}
    assert {one.message_id for one in accepted} == {"urn:uuid:7"}
    assert {one.accepted_ms for one in accepted} == {1_767_225_600_000}
    assert [one.id for one in accepted] == sorted({one.id for one in accepted})


def test_a_producer_reference_is_kept_as_sent() -> None:
    parts = GatewayParts()
    reference = "<wsnt:ProducerReference><wsa:Address>urn:oid:1</wsa:Address></wsnt:ProducerReference>"
    message = soap.message().replace("<wsnt:Message>", reference + "<wsnt:Message>")
    parts.post(soap.envelope(soap.notify(message)))
    assert parts.notifications.accepted[0].producer.endswith(
        b"<wsa:Address>urn:oid:1</wsa:Address></wsnt:ProducerReference>"
    )


def test_a_path_labelled_simple_is_accepted_in_notify() -> None:
    parts = GatewayParts()
    assert parts.post(soap.envelope(soap.notify(soap.message("t:a/b/c", dialect="Simple")))).status == 202


def test_new_topics_are_recorded_before_the_notification() -> None:
    parts = GatewayParts()
    parts.control.error = InfrastructureError("no broker", retry_after=3)
    answer = parts.post(soap.envelope(soap.notify()))
    assert answer.status == 503
    assert parts.notifications.accepted == []
    parts.control.error = None
    parts.post(soap.envelope(soap.notify()))
    assert parts.control.records == [TopicRecord(TopicPath("{urn:t}a/b"))]
    parts.post(soap.envelope(soap.notify()))
    assert len(parts.control.records) == 1
    assert len(parts.notifications.accepted) == 2


def test_a_new_topic_is_recorded_once_however_many_notify_on_it() -> None:
    parts = GatewayParts()

    async def together() -> list[int]:
        body = soap.envelope(soap.notify())
        answers = await asyncio.gather(*(parts.request("POST", "/wsn/NotificationBroker", body) for _ in range(5)))
        return [answer.status for answer in answers]

    assert asyncio.run(together()) == [202] * 5
    assert len(parts.control.records) == 1


def test_a_fixed_topic_set_refuses_unknown_topics_on_both_sides() -> None:
    parts = GatewayParts(topics=TopicSettings(fixed=True))
    parts.table.apply(TopicRecord(TopicPath("{urn:t}a")))
    assert parts.post(soap.envelope(soap.notify(soap.message("t:a")))).status == 202
    assert parts.post(soap.envelope(soap.notify(soap.message("t:b")))).fault == "TopicNotSupportedFault"
    known = soap.envelope(soap.subscribe(filters=soap.topic_expression("t:a//.")))
    unknown = soap.envelope(soap.subscribe(filters=soap.topic_expression("t:b//.")))
    assert parts.post(known).status == 200
    assert parts.post(unknown).fault == "TopicNotSupportedFault"
    assert len(parts.notifications.accepted) == 1


@pytest.mark.parametrize("soap_version", ["1.1", "1.2"])
def test_kafka_away_is_503_with_retry_after(soap_version: str) -> None:
    parts = GatewayParts()
    parts.post(soap.envelope(soap.notify()))
    parts.notifications.error = InfrastructureError("the broker is away", retry_after=3)
    answer = parts.post(soap.envelope(soap.notify(), soap_version))
    assert answer.status == 503
    assert answer.headers[b"retry-after"] == b"3"
    assert answer.fault == {"1.1": "Server", "1.2": "Receiver"}[soap_version]
    assert answer.reason == "the broker is away"


def test_addressing_is_answered_when_it_was_used() -> None:
    parts = GatewayParts()
    action = "http://docs.oasis-open.org/wsn/brw-2/NotificationBroker/SubscribeRequest"
    answer = parts.post(soap.envelope(soap.subscribe(), "1.2", soap.addressing(action, "urn:uuid:42")))
    assert answer.text("Action") == action.replace("Request", "Response")
    assert answer.text("RelatesTo") == "urn:uuid:42"
    assert b"mustUnderstand" not in answer.body
    assert only_subscription(parts).addressing


def test_faults_are_addressed_too() -> None:
    answer = GatewayParts().post(
        soap.envelope("<wsnt:Unsubscribe/>", header=soap.addressing("urn:any", "urn:uuid:42")),
        "/wsn/subscriptions/x",
    )
    assert answer.text("Action") == "http://docs.oasis-open.org/wsrf/fault"
    assert answer.text("RelatesTo") == "urn:uuid:42"


def test_security_headers_and_those_for_others_are_let_through() -> None:
    security = (
        '<w:Security xmlns:w="http://docs.oasis-open.org/wss/2004/01/'
        'oasis-200401-wss-wssecurity-secext-1.0.xsd" s:mustUnderstand="1"/>'
    )
    for_others = '<x:H xmlns:x="urn:x" s:mustUnderstand="1" s:actor="urn:somebody"/>'
    assert GatewayParts().post(soap.envelope(soap.notify(), header=security + for_others)).status == 202


_TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.mark.parametrize(("header", "kept"), [(_TRACE, _TRACE), ("", ""), ("not one", "")])
def test_the_trace_of_a_publisher_is_kept_and_a_damaged_one_is_no_reason_to_refuse(header: str, kept: str) -> None:
    parts = GatewayParts()
    answer = parts.post(soap.envelope(soap.notify(soap.message(), soap.message())), traceparent=header)
    assert answer.status == 202
    assert [each.traceparent for each in parts.notifications.accepted] == [kept, kept]


def test_of_two_traces_none_is_believed() -> None:
    parts = GatewayParts()
    parts.post(soap.envelope(soap.notify()), traceparent=_TRACE, Traceparent=_TRACE)
    assert [each.traceparent for each in parts.notifications.accepted] == [""]


def asking_for(attributes: str) -> str:
    policy = f'<p:Delivery xmlns:p="urn:arborcast:policy" {attributes}/>'
    return soap.envelope(soap.subscribe(more=f"<wsnt:SubscriptionPolicy>{policy}</wsnt:SubscriptionPolicy>"))


@pytest.mark.parametrize(
    ("attributes", "policy"),
    [
        ("", DeliveryPolicy()),
        ('Order="acceptance"', DeliveryPolicy()),
        ('Order="strict"', DeliveryPolicy(order="strict")),
        (
            'MaximumAttempts="3" Lifespan="PT2H"',
            DeliveryPolicy(maximum_attempts=3, lifespan_ms=7_200_000),
        ),
    ],
)
def test_a_subscriber_says_how_hard_to_try(attributes: str, policy: DeliveryPolicy) -> None:
    parts = GatewayParts()
    assert parts.post(asking_for(attributes)).status == 200
    assert only_subscription(parts).policy == policy


@pytest.mark.parametrize(
    "attributes",
    [
        'Order="none"',
        'Order="Strict"',
        'MaximumAttempts="0"',
        'MaximumAttempts="-1"',
        'MaximumAttempts="1001"',
        'MaximumAttempts="many"',
        'Lifespan="PT0S"',
        'Lifespan="-PT1S"',
        'Lifespan="P2Y"',
        'Lifespan="tomorrow"',
        'Order="strict" Color="red"',
    ],
)
def test_what_cannot_be_delivered_so_is_refused(attributes: str) -> None:
    parts = GatewayParts()
    answer = parts.post(asking_for(attributes))
    assert answer.status in (400, 500)
    assert "p:Delivery" in answer.body.decode()
    assert not list(parts.table.subscriptions())
