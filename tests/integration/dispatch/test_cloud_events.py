"""CloudEvents of the project's SDK in both directions."""

from __future__ import annotations

import json

import pytest
import requests
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http_event, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from lxml import etree

from arborcast.client import Client
from tests.support.dispatch_job import IN_BOTH_MODES, Own
from tests.support.gateway_process import GatewayRun
from tests.support.receiver import Received, Receiver
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, IN_BOTH_MODES]


def publish(gateway: GatewayRun, event: CloudEvent, mode: str = "structured") -> None:
    message = (to_binary_event if mode == "binary" else to_structured_event)(event)
    answer = requests.post(f"{gateway.base}/publish", headers=message.headers, data=message.body, timeout=60)
    assert answer.status_code == 202, answer.text


def order(root: str, number: int) -> CloudEvent:
    attributes = {"id": str(number), "source": "/shop", "type": "com.example.order", "subject": f"{root}/orders"}
    attributes |= {"specversion": "1.0", "datacontenttype": "application/json", "sequence": f"{number:06}"}
    return CloudEvent(attributes, {"n": number})


def read(request: Received) -> BaseCloudEvent:
    return from_http_event(HTTPMessage(request.headers, request.body))


def numbers(requests: list[Received], mode: str) -> list[int]:
    if mode == "batched":
        return [each["data"]["n"] for request in requests for each in json.loads(request.body)]
    return [data["n"] for request in requests if isinstance(data := read(request).get_data(), dict)]


def test_every_mode_in_and_out(gateway: GatewayRun, receiver: Receiver, own: Own) -> None:
    """Beside a subscriber with SOAP."""
    root, modes = own.topic("shop"), ("binary", "structured", "batched")
    with Client(gateway.broker) as client:
        for mode in modes:
            client.subscribe(f"{root}//.", to=receiver.url(f"/{mode}"), cloudevents=mode)
        client.subscribe(f"{root}//.", to=receiver.url("/soap"))
    for number in range(20):
        publish(gateway, order(root, number), ("binary", "structured")[number % 2])
    wait_until(lambda: all(len(numbers(receiver.received(f"/{mode}"), mode)) >= 20 for mode in modes), "twenty each")
    for mode in modes:
        assert numbers(receiver.received(f"/{mode}"), mode) == list(range(20))
    first = read(receiver.received("/binary")[0]).get_attributes()
    assert (first["source"], first["type"], first["subject"]) == (gateway.base, "com.example.order", f"{root}/orders")
    assert first["sequence"] == "000000"
    assert first["id"] == receiver.received("/binary")[0].headers["arborcast-notification-id"]
    wait_until(lambda: len(receiver.names("/soap")) == 20, "twenty with SOAP")
    payload = etree.fromstring(receiver.received("/soap")[0].body).find(".//{*}Message/*")
    assert payload is not None
    assert json.loads(payload.text or "") == {"n": 0}
