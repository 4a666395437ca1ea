"""Client and listener over real HTTP, against the gateway's application."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import requests

from arborcast.client import Client, Credentials, Delivery, FaultReceived, FuturesClient, HttpAnswer
from arborcast.client.listener import Listener, ReceivedMessage, read_push
from arborcast.client.testing import MemoryTransport
from arborcast.core.errors import ConfigError
from arborcast.topic_model.subscriptions import DeliveryPolicy, SoapVersion
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts
from tests.support.guarded_gateway import Clock, guarded
from tests.support.served_app import served

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_the_life_of_a_subscription(parts: GatewayParts, url: str, version: SoapVersion) -> None:
    with Client(url, soap=version) as client:
        subscription = client.subscribe("plant:line//.", to="http://h/", lasts=timedelta(minutes=10))
        assert subscription.terminates == datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
        (known,) = parts.table.subscriptions()
        assert (known.selector(), known.soap, known.address) == ("plant/line//.", version, subscription.address)
        later = datetime(2026, 6, 1, tzinfo=UTC)
        assert client.renew(subscription.address, later).terminates == later
        assert client.renew(subscription.address, None).terminates is None
        client.pause(subscription.address)
        assert parts.table.get(known.id).paused  # type: ignore[union-attr]
        client.resume(subscription.address)
        client.unsubscribe(subscription.address)
        assert list(parts.table.subscriptions()) == []
        with pytest.raises(FaultReceived) as unknown:
            client.unsubscribe(f"{url}/wsn/subscriptions/x")
        assert unknown.value.fault == "ResourceUnknownFault"
        assert "no subscription 'x'" in unknown.value.reason
        with pytest.raises(FaultReceived) as nameless:
            client.notify("a", "<n/><n/>")
        assert nameless.value.fault == ""
        assert "exactly one" in nameless.value.reason

        point = client.create_pull_point()
        assert client.get_messages(point, 5, wait_s=0.01) == []
        client.destroy_pull_point(point)
        with pytest.raises(FaultReceived) as caught:
            client.get_messages(point)
        assert caught.value.fault == "ResourceUnknownFault"
        assert client.current_message("a") is None


APART = Delivery(minimum_interval=timedelta(milliseconds=1_500))
DELIVERIES = [
    (Delivery(True, 3, timedelta(hours=2)), DeliveryPolicy(order="strict", maximum_attempts=3, lifespan_ms=7_200_000)),
    (APART, DeliveryPolicy(interval_ms=1_500)),
    (replace(APART, interval_per_topic=False), DeliveryPolicy(interval_ms=1_500, interval_per="subscription")),
    (Delivery.of("signal"), DeliveryPolicy(reliability="timely", lifespan_ms=1_000)),
    (Delivery.of("command"), DeliveryPolicy(reliability="strict")),
    (Delivery.of("state"), DeliveryPolicy(interval_ms=1_000)),
    (Delivery.of("event"), DeliveryPolicy(reliability="strict")),
    (Delivery.of("request"), DeliveryPolicy(reliability="strict", deadline_ms=5_000)),
]


def test_a_delivery_becomes_the_policy_of_the_subscription(parts: GatewayParts, url: str) -> None:
    with Client(url) as client:
        for delivery, policy in DELIVERIES:
            made = client.subscribe("a", to="http://h/1", delivery=delivery)
            (subscription,) = parts.table.subscriptions()
            assert subscription.policy == policy, delivery
            client.unsubscribe(made)
    with pytest.raises(ConfigError, match="'rumour' is not a kind of information"):
        Delivery.of(cast(Any, "rumour"))


def test_payloads_are_published_unchanged(parts: GatewayParts, url: str) -> None:
    with Client(f"{url}/wsn/NotificationBroker") as client:
        first = client.notify("p:a/b", "<?xml version='1.0'?>\n<n a='1'/>", namespaces={"p": "urn:p"})
        others = client.notify_all([("a", b"<n>1</n>"), ("b", "<n>é</n>")])
    assert [first, *others] == [one.id for one in parts.notifications.accepted]
    published = [(one.topic, one.payload.decode()) for one in parts.notifications.accepted]
    assert published == [("{urn:p}a/b", "<n a='1'/>"), ("a", "<n>1</n>"), ("b", "<n>é</n>")]


@pytest.mark.parametrize(
    ("header", "expected"), [("-,r1", ["", "r1"]), ("r1,r1", ["r1", "r1"]), ("r1", ["r1", ""]), ("-,r1,r2", ["", "r1"])]
)
def test_a_listener_marks_replayed_messages(header: str, expected: list[str]) -> None:
    got: list[ReceivedMessage] = []
    headers = {"Arborcast-Notification-Id": "n1,n2", "Arborcast-Attempt": "3", "Arborcast-Replay": header}
    body = soap.envelope(soap.notify(soap.message(payload="<a/>"), soap.message(payload="<b/>")))
    with Listener(got.append) as listener:
        requests.post(listener.url, body, headers=headers, timeout=60)
    assert [message.replay for message in got] == expected


def test_a_raw_push_is_the_payload() -> None:
    assert read_push(soap.envelope('<o:n xmlns:o="urn:o"/>'), b"") == [ReceivedMessage(b'<o:n xmlns:o="urn:o"/>')]


def test_credentials_go_to_the_broker_only(tmp_path: Path) -> None:
    with served(guarded(tmp_path, Clock())) as port:
        url = f"http://127.0.0.1:{port}"
        with Client(url) as stranger, pytest.raises(FaultReceived, match="authentication is required") as refused:
            stranger.notify("{urn:t}a/b", "<x/>")
        assert refused.value.status == 401
        with Client(url, credentials=Credentials("anna", "no")) as wrong, pytest.raises(FaultReceived):
            wrong.notify("{urn:t}a/b", "<x/>")
        with Client(url, credentials=Credentials("anna", "pa")) as anna:
            anna.notify("{urn:t}a/b", "<x/>")
        with FuturesClient(url, credentials=Credentials("bert", "pb")) as bert:
            bert.notify("{urn:t}a/b", "<x/>").result()
    transport = MemoryTransport(HttpAnswer(202), HttpAnswer(202))
    with Client("http://broker", transport=transport, credentials=Credentials("anna", "pa")) as anna:
        anna.notify("{urn:t}a/b", "<x/>")
        anna.notify("{urn:t}a/b", "<x/>", to="http://consumer/")
    assert ["Authorization" in each.headers for each in transport.sent] == [True, False]
