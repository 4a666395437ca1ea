"""Habits of SOAP clients, whatever they ask for: addressing, security headers, what generated code adds."""

from __future__ import annotations

import pytest

from arborcast.topic_model.topics import TopicPath
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, only_subscription


def test_addressing_is_answered_when_it_was_used() -> None:
    parts = GatewayParts()
    action = "http://docs.oasis-open.org/wsn/brw-2/NotificationBroker/SubscribeRequest"
    answer = parts.post(soap.envelope(soap.subscribe(), "1.2", soap.addressing(action, "urn:uuid:42")))
    assert answer.text("Action") == action.replace("Request", "Response")
    assert answer.text("RelatesTo") == "urn:uuid:42"
    assert b"mustUnderstand" not in answer.body
    assert only_subscription(parts).addressing


def test_security_headers_and_those_for_others_are_let_through() -> None:
    security = (
        '<w:Security xmlns:w="http://docs.oasis-open.org/wss/2004/01/'
        'oasis-200401-wss-wssecurity-secext-1.0.xsd" s:mustUnderstand="1"/>'
    )
    for_others = '<x:H xmlns:x="urn:x" s:mustUnderstand="1" s:actor="urn:somebody"/>'
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
