"""Publishers that register at the gateway process over a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests
from lxml import etree

from arborcast.core.settings import KafkaSettings
from tests.support import soap_messages as soap
from tests.support.gateway_process import GatewayRun, address, gateway_run, post
from tests.support.publisher import Publisher
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


def register(gateway: GatewayRun, topic: str, **more: str) -> list[str]:
    """The addresses of the registration and of the consumer."""
    answer = etree.fromstring(post(gateway.broker, soap.register(topic, **more)).content)
    references = "PublisherRegistrationReference", "ConsumerReference"
    return [str(answer.findtext(f".//{{*}}{name}/{{*}}Address")) for name in references]


def subscribe(gateway: GatewayRun, topic: str) -> str:
    body = soap.subscribe("http://127.0.0.1:9/consumer", soap.topic_expression(topic))
    return address(post(gateway.broker, body))


def refusal(url: str, body: str) -> str:
    answer = requests.post(url, data=soap.envelope(body), timeout=120)
    assert answer.status_code == 500, answer.text
    return answer.text


@pytest.mark.chaos
def test_demand_and_required_registration_survive_kill_9(tmp_path: Path, kafka_settings: KafkaSettings) -> None:
    """Subscribed at the publisher with the first subscriber; after kill -9 the next process ends the subscription."""
    with gateway_run(tmp_path, kafka_settings, requires_registration="true") as gateway, Publisher() as publisher:
        message = soap.notify(soap.message("t:a", "<n>1</n>"))
        refusal(gateway.broker, message)
        registration, consumer = register(gateway, "plant/line1", publisher=publisher.url, demand="true")
        assert "no registration of this one covers the topic" in refusal(consumer, message)
        _, other = register(gateway, "//*")
        post(other, soap.notify(soap.message("a", "<n>1</n>")))
        assert publisher.publish("plant/line1", "<n>unwanted</n>") == 0
        subscription = subscribe(gateway, "plant//.")
        wait_until(lambda: len(publisher.subscriptions) == 1, lambda: publisher.operations)
        assert publisher.publish("plant/line1", "<n>1</n>") == 1

        # Topics, registrations, subscription, and the registration with its subscription at the publisher.
        gateway.wait_for(lambda: gateway.metric("arborcast_control_position") >= 6, "recorded")
        gateway.kill()
        gateway.start()
        post(other, soap.notify(soap.message("a", "<n>2</n>")))
        post(subscription, "<wsnt:Unsubscribe/>")
        wait_until(lambda: "PauseSubscription" in publisher.operations, lambda: publisher.operations)
        assert publisher.publish("plant/line1", "<n>nobody</n>") == 0
        subscribe(gateway, "plant/line1")
        wait_until(lambda: "ResumeSubscription" in publisher.operations, lambda: publisher.operations)
        assert publisher.publish("plant/line1", "<n>2</n>") == 1
        post(registration, f'<b:DestroyRegistration xmlns:b="{soap.WSN_BR}"/>')
        wait_until(lambda: publisher.subscriptions == {}, lambda: publisher.operations)
        assert publisher.operations == ["Subscribe", "PauseSubscription", "ResumeSubscription", "Unsubscribe"]
        assert "ResourceUnknownFault" in refusal(registration, message)
