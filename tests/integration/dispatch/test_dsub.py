"""IHE DSUB from a registry's publish to a pull point and a push: real Kafka, real Spark, the real gateway process."""

from __future__ import annotations

from functools import partial

import pytest
from lxml import etree

from tests.support import soap_messages as soap
from tests.support.gateway_process import GatewayRun, address, post
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

RIM = "urn:oasis:names:tc:ebxml-regrep:xsd:rim:3.0"
# As the profile has it.
ask = partial(post, version="1.2")

PATIENT_SCHEME = "urn:uuid:58a6f841-87b3-4a3e-92fd-a8ffeff98427"


def entry(name: str, patient: str) -> str:
    identifier = f'<rim:ExternalIdentifier identificationScheme="{PATIENT_SCHEME}" value="{patient}"/>'
    return f'<rim:ExtrinsicObject id="{name}">{identifier}</rim:ExtrinsicObject>'


def test_a_reference_reaches_the_pull_point_of_who_asked_for_the_patient(gateway: GatewayRun) -> None:
    url = address(ask(f"{gateway.base}/wsn/CreatePullPoint", "<wsnt:CreatePullPoint/>"))
    slot = (
        "<rim:Slot name=\"$XDSDocumentEntryPatientId\"><rim:ValueList><rim:Value>'p2^^^&amp;1.2&amp;ISO'</rim:Value>"
        "</rim:ValueList></rim:Slot>"
    )
    query = f'<rim:AdhocQuery xmlns:rim="{RIM}" id="urn:uuid:aa2332d0-f8fe-11e0-be50-0800200c9a66">{slot}'
    simple = f'<wsnt:TopicExpression Dialect="{soap.DIALECT}Simple">ihe:MinimalDocumentEntry</wsnt:TopicExpression>'
    subscription = address(ask(gateway.broker, soap.subscribe(url, f"{simple}{query}</rim:AdhocQuery>")))
    entries = "".join(entry(f"d{number}", f"p{number}^^^&amp;1.2&amp;ISO") for number in (1, 2, 3))
    ask(
        gateway.broker,
        "<wsnt:Notify><wsnt:NotificationMessage><wsnt:ProducerReference><wsa:Address>urn:oid:1.2.3</wsa:Address>"
        "</wsnt:ProducerReference><wsnt:Message>"
        f'<l:SubmitObjectsRequest xmlns:l="urn:oasis:names:tc:ebxml-regrep:xsd:lcm:3.0" xmlns:rim="{RIM}">'
        f"<rim:RegistryObjectList>{entries}</rim:RegistryObjectList></l:SubmitObjectsRequest>"
        "</wsnt:Message></wsnt:NotificationMessage></wsnt:Notify>",
    )
    pull = '<wsnt:GetMessages xmlns:p="urn:arborcast:pull" p:Wait="PT30S"/>'
    message = wait_until(lambda: b"ObjectRef" in (found := ask(url, pull).content) and found, "a reference")
    references = etree.fromstring(message).iterfind(f".//{{{RIM}}}ObjectRef")
    assert [each.get("id") for each in references] == ["d2"]
    assert b"ExternalIdentifier" not in message
    assert b">ihe:MinimalDocumentEntry</wsnt:Topic>" in message
    ask(subscription, "<wsnt:Unsubscribe/>")
