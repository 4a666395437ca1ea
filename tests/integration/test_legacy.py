"""The older system's clients and the standard's, on both sides of one engine: real gateway, Kafka, Spark, receivers."""

from __future__ import annotations

import pytest
from lxml import etree

from tests.support import legacy_messages as legacy
from tests.support import soap_messages as soap
from tests.support.gateway_process import GatewayRun, post
from tests.support.receiver import Receiver

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ALARM = "all:alarm:alarm1"


def send(gateway: GatewayRun, text: str) -> str:
    """The string result."""
    answer = legacy.post(f"{gateway.base}/wsnprocess/", text)
    assert answer.status_code == 200, answer.text
    return etree.fromstring(answer.content).findtext(".//{*}WsnProcessResponse") or ""


def text_pushed(body: bytes) -> str:
    """The text that an old receiver reads from a push."""
    (operation,) = etree.fromstring(body).find("{*}Body")  # type: ignore[misc]
    assert operation.tag == "{http://org.apache.servicemix.wsn.push}notificationProcess"
    return operation.text or ""


def test_all_four_ways_between_old_and_new(gateway: GatewayRun, receiver: Receiver) -> None:
    assert "ns2:Address" in send(gateway, legacy.subscribe("all:alarm", receiver.url("/old")))
    assert "ns2:Address" in send(gateway, legacy.subscribe("all:alarm:alarm2", receiver.url("/other")))
    dummy = "http://localhost:12345/only/register/use"
    assert "ns2:Address" in send(gateway, legacy.subscribe(ALARM, dummy))
    expression = soap.topic_expression("all/alarm//.")
    post(gateway.broker, soap.subscribe(receiver.url("/new"), expression))

    assert send(gateway, legacy.notify(ALARM, "<level>3</level>")) == "success!"
    assert send(gateway, legacy.notify(ALARM, "door & 窗")) == "success!"
    modern = soap.message("all/alarm/alarm1", '<o:order xmlns:o="urn:o"><![CDATA[1 & 2]]></o:order>')
    post(gateway.broker, soap.notify(modern))

    old, new = receiver.wait_for(3, "/old"), receiver.wait_for(1, "/new")
    assert [text_pushed(request.body) for request in old] == [
        "<level>3</level>",
        "door & 窗",
        '<o:order xmlns:o="urn:o"><![CDATA[1 & 2]]></o:order>',
    ]
    assert {request.headers["content-type"] for request in old} == {"text/xml; charset=UTF-8"}
    assert all(request.body.startswith(b"<soapenv:Envelope") for request in old)

    def payloads() -> list[etree._Element]:
        found = []
        for request in receiver.received("/new"):
            found += [message[0] for message in etree.fromstring(request.body).iter(f"{{{soap.WSNT}}}Message")]
        return found

    while len(payloads()) < 3:
        new = receiver.wait_for(len(new) + 1, "/new")
    assert [(each.tag, each.text) for each in payloads()] == [
        ("level", "3"),
        ("{urn:arborcast:legacy}Content", "door & 窗"),
        ("{urn:o}order", "1 & 2"),
    ]
    assert receiver.received("/other") == []

    assert send(gateway, legacy.unsubscribe("all:alarm", receiver.url("/old"))) == "success"
    assert send(gateway, legacy.notify("all:alarm:alarm2", "last")) == "success!"
    assert text_pushed(receiver.wait_for(1, "/other")[0].body) == "last"
    assert len(receiver.received("/old")) == 3
