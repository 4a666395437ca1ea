"""Pushed CloudEvents as the SDK of the project reads them, signed as Standard Webhooks verifies."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from lxml import etree
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from arborcast.core.security.keyring import KeyRing
from arborcast.core.security.signatures import PREFIX, new_secret
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import Vault
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushRequest
from arborcast.ingest.elements.properties import producer_with
from arborcast.topic_model.cloud_events import DEFAULT_TYPE
from arborcast.topic_model.legacy_content import wrap
from arborcast.topic_model.records.notifications import Notification, replayed
from arborcast.topic_model.subscriptions import EndpointReference, Protection, SigningSecret, Subscription
from arborcast.topic_model.topics import TopicPath

Mode = Literal["cloudevents-binary", "cloudevents-structured", "cloudevents-batched"]

SINGLE: tuple[Mode, ...] = ("cloudevents-binary", "cloudevents-structured")
MODES: tuple[Mode, ...] = (*SINGLE, "cloudevents-batched")

KEYS = KeyRing({"k1": b"k" * 32})
XML = '<p:x xmlns:p="urn:p">ä</p:x>'.encode()


def subscription(form: Mode, **more: Any) -> Subscription:
    address = "https://broker.example:8443/base/wsn/subscriptions/s1"
    return Subscription("s1", EndpointReference("https://consumer/"), address, form=form, **more)


def notification(name: str = "n1", payload: bytes = XML, **more: Any) -> Notification:
    return Notification(name, TopicPath("{urn:t}a/b"), payload, 1_700_000_000_123, **more)


def pushed(form: Mode, *notifications: Notification) -> PushRequest:
    return Envelope(subscription(form)).request(notifications, 2)


def read(request: PushRequest) -> BaseCloudEvent:
    return from_http_event(HTTPMessage(dict(request.headers), request.body))


def data_of(event: BaseCloudEvent) -> Any:
    data = event.get_data()
    return data.encode() if isinstance(data, str) else data


@pytest.mark.parametrize("form", SINGLE)
def test_what_an_event_says(form: Mode) -> None:
    event = read(pushed(form, notification(type="{urn:p}x")))
    assert dict(event.get_attributes()) == {
        "specversion": "1.0",
        "id": "n1",
        "source": "https://broker.example:8443/base",
        "type": "{urn:p}x",
        "subject": "{urn:t}a/b",
        "time": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "datacontenttype": "application/xml",
    }
    assert data_of(event) == XML


@pytest.mark.parametrize("form", SINGLE)
@pytest.mark.parametrize("text", ['{"n": ["ä", 1.50]}', "5", '"a"', "null"])
def test_json_is_the_json_that_was_published(form: Mode, text: str) -> None:
    request = pushed(form, notification(payload=wrap(text, {}), type="{urn:arborcast:legacy}Content"))
    event = read(request)
    assert event.get_type() == DEFAULT_TYPE
    assert text.encode() in request.body
    if text != "null":
        assert event.get_data() == json.loads(text)


def test_text_and_mixed_content() -> None:
    assert dict(pushed("cloudevents-binary", notification(payload=wrap("a &amp; b", {}))).headers)["Content-Type"] == (
        "text/plain; charset=utf-8"
    )
    assert pushed("cloudevents-binary", notification(payload=wrap("a &amp; b", {}))).body == b"a & b"
    mixed = wrap("a<b/>", {})
    request = pushed("cloudevents-binary", notification(payload=mixed))
    assert request.body == mixed
    assert dict(request.headers)["ce-type"] == "{urn:arborcast:legacy}Content"


def test_text_that_looks_like_json_is_the_text_that_was_published() -> None:
    producer = producer_with({"ce-datacontenttype": "text/plain"})
    request = pushed("cloudevents-structured", notification(payload=wrap("5", {}), producer=producer))
    assert json.loads(request.body)["data"] == "5"


@pytest.mark.parametrize("form", SINGLE)
def test_attributes_of_the_publisher(form: Mode) -> None:
    values = {"ce-sequence": "42", "ce-dataschema": "urn:s", "ce-type": "com.example/x y", "ce-id": "theirs"}
    others = {"ce-Bad\r\nX": "1", "plain": "2", "ce-data": "3", "ce-quoted": 'a "100%" ü'}
    event = read(pushed(form, notification(producer=producer_with(values | {"ce-quoted": others["ce-quoted"]}))))
    found = dict(event.get_attributes())
    assert (found["id"], found["type"], found["dataschema"]) == ("n1", "com.example/x y", "urn:s")
    assert (found["sequence"], found["quoted"]) == ("42", 'a "100%" ü')
    request = pushed(form, notification(producer=producer_with(others)))
    assert not any("\n" in name or "\n" in value for name, value in request.headers)
    assert set(read(request).get_attributes()) & {"plain", "bad", "data"} == set()
    assert request.body.count(b'"data":') == (form == "cloudevents-structured"), "of two, readers take one or the other"


def test_a_batch_has_all_of_them() -> None:
    request = pushed("cloudevents-batched", notification("n1"), notification("n2", wrap("[1]", {})))
    assert dict(request.headers)["Content-Type"] == "application/cloudevents-batch+json; charset=utf-8"
    first, second = json.loads(request.body)
    assert (first["id"], second["id"], second["data"]) == ("n1", "n2", [1])
    assert etree.fromstring(first["data"]).text == "ä"
    assert dict(request.headers)["Arborcast-Notification-Id"] == "n1,n2"


@pytest.mark.parametrize("form", MODES)
def test_headers_of_every_push(form: Mode) -> None:
    again = replayed(notification(), "r1", "s1", 1_700_000_000_123, 1)
    headers = dict(pushed(form, again).headers)
    assert headers["Arborcast-Notification-Id"] == "n1"
    assert (headers["Arborcast-Attempt"], headers["Arborcast-Subscription"]) == ("2", "s1")
    assert headers["Arborcast-Replay"] == "r1"
    if form == "cloudevents-binary":
        assert headers["ce-id"] == "n1"


@pytest.mark.parametrize("form", MODES)
def test_the_signature_is_that_of_standard_webhooks(form: Mode) -> None:
    secret = new_secret()
    target = subscription(form)
    key = Webhook(secret)._whsecret
    sealed = SigningSecret(KEYS.seal(key, target.sealing_context()), None)
    target = msgspec.structs.replace(target, protection=Protection((sealed,)))
    request = Envelope(target, Vault(SecretSettings(), KEYS)).request([notification()], 1)
    assert secret.startswith(PREFIX)
    headers = {name.lower(): value for name, value in request.headers}
    Webhook(secret).verify(request.body, headers, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(request.body, headers, json_parse=False)
