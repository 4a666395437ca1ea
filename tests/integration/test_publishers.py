"""Publishers that register at the gateway process over a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests
from lxml import etree

from arborcast.core.settings import KafkaSettings
from tests.support import soap_messages as soap
from tests.support.gateway_process import GatewayRun, gateway_run
from tests.support.publisher import Publisher
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

BR = "http://docs.oasis-open.org/wsn/br-2"
CONSUMER = "http://127.0.0.1:9/consumer"


def post(url: str, body: str) -> requests.Response:
    return requests.post(url, data=soap.envelope(body), headers={"Content-Type": soap.MEDIA_TYPES["1.1"]}, timeout=120)


def register(gateway: GatewayRun, topic: str, more: str = "") -> tuple[str, str]:
    """The addresses of the registration and of the consumer."""
    body = (
        f'<b:RegisterPublisher xmlns:b="{BR}">{more}<b:Topic Dialect="{soap.DIALECT}Full">{topic}</b:Topic>'
        f"{'<b:Demand>true</b:Demand>' if more else ''}</b:RegisterPublisher>"
    )
    answer = post(gateway.broker, body)
    assert answer.status_code == 200, answer.text
    root = etree.fromstring(answer.content)
    registration = root.findtext(f".//{{{BR}}}PublisherRegistrationReference/{{*}}Address")
    consumer = root.findtext(f".//{{{BR}}}ConsumerReference/{{*}}Address")
    assert registration
    assert consumer
    return registration, consumer


def subscribe(gateway: GatewayRun, topic: str) -> str:
    answer = post(gateway.broker, soap.subscribe(CONSUMER, soap.topic_expression(topic)))
    address = etree.fromstring(answer.content).findtext(".//{*}SubscriptionReference/{*}Address")
    assert address
    return address


@pytest.mark.chaos
def test_demand_and_required_registration_survive_kill_9(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    """Subscribed at the publisher with the first subscriber; after kill -9 the next process ends the subscription."""
    with gateway_run(tmp_path, kafka_settings, requires_registration="true") as gateway, Publisher() as publisher:
        message = soap.notify(soap.message("t:a", "<n>1</n>"))
        assert post(gateway.broker, message).status_code == 500
        reference = f"<b:PublisherReference><wsa:Address>{publisher.url}</wsa:Address></b:PublisherReference>"
        registration, consumer = register(gateway, "plant/line1", reference)
        answer = post(consumer, message)
        assert answer.status_code == 500
        assert "no registration of this one covers the topic" in answer.text
        _, other = register(gateway, "//*")
        assert post(other, soap.notify(soap.message("a", "<n>1</n>"))).status_code == 202
        assert publisher.publish("plant/line1", "<n>unwanted</n>") == 0
        subscription = subscribe(gateway, "plant//.")
        wait_until(lambda: len(publisher.subscriptions) == 1, lambda: publisher.operations)
        assert publisher.publish("plant/line1", "<n>1</n>") == 1

        # Topics, registrations, subscription, and the registration with its subscription at the publisher.
        gateway.wait_for(lambda: gateway.metric("arborcast_control_position") >= 6, "recorded")
        gateway.kill()
        gateway.start()
        assert post(other, soap.notify(soap.message("a", "<n>2</n>"))).status_code == 202
        assert post(subscription, "<wsnt:Unsubscribe/>").status_code == 200
        wait_until(lambda: "PauseSubscription" in publisher.operations, lambda: publisher.operations)
        assert publisher.publish("plant/line1", "<n>nobody</n>") == 0
        subscribe(gateway, "plant/line1")
        wait_until(lambda: "ResumeSubscription" in publisher.operations, lambda: publisher.operations)
        assert publisher.publish("plant/line1", "<n>2</n>") == 1
        assert post(registration, f'<b:DestroyRegistration xmlns:b="{BR}"/>').status_code == 200
        wait_until(lambda: publisher.subscriptions == {}, lambda: publisher.operations)
        assert publisher.operations == ["Subscribe", "PauseSubscription", "ResumeSubscription", "Unsubscribe"]
        assert "ResourceUnknownFault" in post(registration, message).text
