"""From a Notify at the gateway into a pull point and out of it: real Kafka, real Spark, a real gateway process."""

from __future__ import annotations

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

TEV = "http://www.onvif.org/ver10/events/wsdl"


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


def test_an_onvif_client_waits_for_its_messages(gateway: GatewayRun) -> None:
    """The first test: its subscription is to all topics."""
    body = f'<tev:CreatePullPointSubscription xmlns:tev="{TEV}"/>'
    url = address(post(f"{gateway.base}/onvif/event_service", body))
    request = (
        f'<tev:PullMessages xmlns:tev="{TEV}"><tev:Timeout>PT30S</tev:Timeout>'
        "<tev:MessageLimit>10</tev:MessageLimit></tev:PullMessages>"
    )
    for number in range(10):
        notify(gateway, "t:a", number)
        # On a slow machine its time may be over before the first batch.
        assert wait_until(lambda: numbers(post(url, request))) == [number]
    post(url, "<wsnt:Unsubscribe/>")
    refused = requests.post(url, data=soap.envelope(request), timeout=60)
    assert "ResourceUnknownFault" in refused.text


def test_a_pull_point_gets_the_matches_of_its_subscriptions(gateway: GatewayRun, job: RunningJob) -> None:
    url = address(post(f"{gateway.base}/wsn/CreatePullPoint", "<wsnt:CreatePullPoint/>"))
    one = address(post(gateway.broker, soap.subscribe(url, soap.topic_expression("t:a//."))))
    post(gateway.broker, soap.subscribe(url, soap.topic_expression("t:b")))
    for number in range(20):
        notify(gateway, "t:a/x", number)
    notify(gateway, "t:other", 100)
    assert pull_all(url, 20) == list(range(20))

    notify(gateway, "t:a", 20)
    validate(pull(url).content)

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
