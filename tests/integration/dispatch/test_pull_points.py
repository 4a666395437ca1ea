"""From a Notify at the gateway into a pull point and out of it: real Kafka, real Spark, a real gateway process."""

from __future__ import annotations

from functools import partial

import pytest
import requests
from lxml import etree

from arborcast.ingest.operations.pull_points import PULL
from tests.support import soap_messages as soap
from tests.support.dispatch_job import RunningJob, attempt_rows
from tests.support.gateway_process import GatewayRun, address, post
from tests.support.oasis import validate
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def notify(gateway: GatewayRun, topic: str, number: int) -> None:
    post(gateway.broker, soap.notify(soap.message(topic, f"<n>{number}</n>")))


def numbers(answer: requests.Response) -> list[int]:
    return [int(element.text or "") for element in etree.fromstring(answer.content).iterfind(".//n")]


def pull(url: str) -> requests.Response:
    return post(url, f'<wsnt:GetMessages xmlns:p="{PULL}" p:Wait="PT30S"/>')


def pull_all(url: str, expected: int) -> list[int]:
    found: list[int] = []

    def all_there() -> bool:
        found.extend(numbers(pull(url)))
        return len(found) >= expected

    wait_until(all_there, lambda: f"{len(found)} of {expected}")
    return found


def test_a_pull_point_gets_the_matches_of_its_subscriptions(gateway: GatewayRun, job: RunningJob) -> None:
    url = address(post(f"{gateway.base}/wsn/CreatePullPoint", "<wsnt:CreatePullPoint/>"))
    one = address(post(gateway.broker, soap.subscribe(url, soap.topic_expression("t:a//."))))
    post(gateway.broker, soap.subscribe(url, soap.topic_expression("t:b")))
    for number in range(20):
        notify(gateway, "t:a/x", number)
    notify(gateway, "t:other", 100)
    assert pull_all(url, 20) == list(range(20))

    notify(gateway, "t:a", 20)
    answer = pull(url)
    validate(answer.content)
    message = etree.fromstring(answer.content).find(".//{*}NotificationMessage")
    assert message is not None
    assert message.findtext("{*}SubscriptionReference/{*}Address") == one
    topic = message.find("{*}Topic")
    assert topic is not None
    prefix, _, name = (topic.text or "").partition(":")
    assert (topic.nsmap[prefix], name) == ("urn:t", "a")

    def rows() -> list[tuple[str, int]]:
        return [(row["state"], row["number"]) for row in attempt_rows(job.settings, 21) if row["endpoint"] == url]

    wait_until(lambda: len(rows()) >= 21, rows)
    assert rows() == [("delivered", 1)] * 21

    before = gateway.metric("arborcast_subscriptions")
    post(url, "<wsnt:DestroyPullPoint/>")
    notify(gateway, "t:a", 21)
    refused = requests.post(one, data=soap.envelope(soap.renew("PT1M")), timeout=60)
    assert "ResourceUnknownFault" in refused.text
    assert gateway.metric("arborcast_subscriptions") == before - 2


RIM = "urn:oasis:names:tc:ebxml-regrep:xsd:rim:3.0"
# As the ONVIF profile has it.
request = partial(post, version="1.2")

PATIENT_SCHEME = "urn:uuid:58a6f841-87b3-4a3e-92fd-a8ffeff98427"


def entry(name: str, patient: str) -> str:
    identifier = f'<rim:ExternalIdentifier identificationScheme="{PATIENT_SCHEME}" value="{patient}"/>'
    return f'<rim:ExtrinsicObject id="{name}">{identifier}</rim:ExtrinsicObject>'


def test_a_dsub_reference_reaches_the_pull_point(gateway: GatewayRun) -> None:
    """IHE DSUB, from the publish of a registry."""
    url = address(request(f"{gateway.base}/wsn/CreatePullPoint", "<wsnt:CreatePullPoint/>"))
    slot = (
        "<rim:Slot name=\"$XDSDocumentEntryPatientId\"><rim:ValueList><rim:Value>'p2^^^&amp;1.2&amp;ISO'</rim:Value>"
        "</rim:ValueList></rim:Slot>"
    )
    query = f'<rim:AdhocQuery xmlns:rim="{RIM}" id="urn:uuid:aa2332d0-f8fe-11e0-be50-0800200c9a66">{slot}'
    simple = f'<wsnt:TopicExpression Dialect="{soap.DIALECT}Simple">ihe:MinimalDocumentEntry</wsnt:TopicExpression>'
    subscription = address(request(gateway.broker, soap.subscribe(url, f"{simple}{query}</rim:AdhocQuery>")))
    entries = "".join(entry(f"d{number}", f"p{number}^^^&amp;1.2&amp;ISO") for number in (1, 2, 3))
    request(
        gateway.broker,
        "<wsnt:Notify><wsnt:NotificationMessage><wsnt:ProducerReference><wsa:Address>urn:oid:1.2.3</wsa:Address>"
        "</wsnt:ProducerReference><wsnt:Message>"
        f'<l:SubmitObjectsRequest xmlns:l="urn:oasis:names:tc:ebxml-regrep:xsd:lcm:3.0" xmlns:rim="{RIM}">'
        f"<rim:RegistryObjectList>{entries}</rim:RegistryObjectList></l:SubmitObjectsRequest>"
        "</wsnt:Message></wsnt:NotificationMessage></wsnt:Notify>",
    )
    pull = '<wsnt:GetMessages xmlns:p="urn:arborcast:pull" p:Wait="PT30S"/>'
    message = wait_until(lambda: b"ObjectRef" in (found := request(url, pull).content) and found, "a reference")
    references = etree.fromstring(message).iterfind(f".//{{{RIM}}}ObjectRef")
    assert [each.get("id") for each in references] == ["d2"]
    assert b"ExternalIdentifier" not in message
    assert b">ihe:MinimalDocumentEntry</wsnt:Topic>" in message
    request(subscription, "<wsnt:Unsubscribe/>")
