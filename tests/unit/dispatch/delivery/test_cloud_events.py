"""Pushed CloudEvents, read by the CNCF SDK; signatures, verified as Standard Webhooks."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from lxml import etree
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from arborcast.core.security.signatures import PREFIX, new_secret
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushRequest
from arborcast.ingest.elements.properties import producer_with
from arborcast.topic_model.cloud_events import DEFAULT_TYPE
from arborcast.topic_model.legacy_content import wrap
from arborcast.topic_model.records.notifications import Notification, replayed
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from tests.support import make
from tests.support.sealed import SECRET_OPENER, protected

Mode = Literal["cloudevents-binary", "cloudevents-structured", "cloudevents-batched"]

SINGLE: tuple[Mode, ...] = ("cloudevents-binary", "cloudevents-structured")
MODES: tuple[Mode, ...] = (*SINGLE, "cloudevents-batched")

XML = '<p:x xmlns:p="urn:p">ä</p:x>'.encode()


def subscription(form: Mode) -> Subscription:
    address = "https://broker.example:8443/base/wsn/subscriptions/s1"
    return Subscription("s1", EndpointReference("https://consumer/"), address, form=form)


def notification(name: str = "n1", payload: bytes = XML, **more: Any) -> Notification:
    return make.notification(name, "{urn:t}a/b", payload, accepted_ms=1_700_000_000_123, **more)


def pushed(form: Mode, *notifications: Notification) -> PushRequest:
    return Envelope(subscription(form)).request(notifications, 2)


def read(request: PushRequest) -> tuple[dict[str, Any], Any]:
    """The attributes and the data of an event."""
    event = from_http_event(HTTPMessage(dict(request.headers), request.body))
    return dict(event.get_attributes()), event.get_data()


@pytest.mark.parametrize("form", SINGLE)
def test_attributes_and_data_of_an_event(form: Mode) -> None:
    attributes, data = read(pushed(form, notification(type="{urn:p}x")))
    assert attributes == {
        "specversion": "1.0",
        "id": "n1",
        "source": "https://broker.example:8443/base",
        "type": "{urn:p}x",
        "subject": "{urn:t}a/b",
        "time": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "datacontenttype": "application/xml",
    }
    assert (data.encode() if isinstance(data, str) else data) == XML


@pytest.mark.parametrize("form", SINGLE)
@pytest.mark.parametrize("text", ['{"n": ["ä", 1.50]}', "5", '"a"', "null"])
def test_json_data_is_the_published_json(form: Mode, text: str) -> None:
    request = pushed(form, notification(payload=wrap(text, {}), type="{urn:arborcast:legacy}Content"))
    attributes, data = read(request)
    assert attributes["type"] == DEFAULT_TYPE
    assert text.encode() in request.body
    assert text == "null" or data == json.loads(text)


def test_text_and_mixed_content() -> None:
    request = pushed("cloudevents-binary", notification(payload=wrap("a &amp; b", {})))
    assert (dict(request.headers)["Content-Type"], request.body) == ("text/plain; charset=utf-8", b"a & b")
    mixed = wrap("a<b/>", {})
    request = pushed("cloudevents-binary", notification(payload=mixed))
    assert (dict(request.headers)["ce-type"], request.body) == ("{urn:arborcast:legacy}Content", mixed)
    text = producer_with({"ce-datacontenttype": "text/plain"})
    request = pushed("cloudevents-structured", notification(payload=wrap("5", {}), producer=text))
    assert json.loads(request.body)["data"] == "5", "plain text is a JSON string"


@pytest.mark.parametrize("form", SINGLE)
def test_attributes_of_the_publisher(form: Mode) -> None:
    values = {"ce-sequence": "42", "ce-dataschema": "urn:s", "ce-type": "com.example/x y", "ce-id": "theirs"}
    others = {"ce-Bad\r\nX": "1", "plain": "2", "ce-data": "3", "ce-quoted": 'a "100%" ü'}
    request = pushed(form, notification(producer=producer_with(values | others)))
    found, _ = read(request)
    assert (found["id"], found["type"], found["dataschema"]) == ("n1", "com.example/x y", "urn:s")
    assert (found["sequence"], found["quoted"]) == ("42", 'a "100%" ü')
    assert not any("\n" in name or "\n" in value for name, value in request.headers)
    assert found.keys().isdisjoint({"plain", "bad", "data"})
    assert request.body.count(b'"data":') == (form == "cloudevents-structured"), "no duplicate member"


def test_a_batch_has_all_notifications() -> None:
    request = pushed("cloudevents-batched", notification("n1"), notification("n2", wrap("[1]", {})))
    assert dict(request.headers)["Content-Type"] == "application/cloudevents-batch+json; charset=utf-8"
    first, second = json.loads(request.body)
    assert (first["id"], second["id"], second["data"]) == ("n1", "n2", [1])
    assert etree.fromstring(first["data"]).text == "ä"
    assert dict(request.headers)["Arborcast-Notification-Id"] == "n1,n2"


@pytest.mark.parametrize("form", MODES)
def test_headers_of_every_push(form: Mode) -> None:
    headers = dict(pushed(form, replayed(notification(), "r1", "s1", 1_700_000_000_123, 1)).headers)
    own = {"Notification-Id": "n1", "Attempt": "2", "Subscription": "s1", "Replay": "r1"}
    assert {name: headers[f"Arborcast-{name}"] for name in own} == own
    assert headers.get("ce-id") == ("n1" if form == "cloudevents-binary" else None)


@pytest.mark.parametrize("form", MODES)
def test_signature_of_standard_webhooks(form: Mode) -> None:
    secret = new_secret()
    target = protected(subscription(form), (Webhook(secret)._whsecret, None))
    request = Envelope(target, SECRET_OPENER).request([notification()], 1)
    assert secret.startswith(PREFIX)
    headers = {name.lower(): value for name, value in request.headers}
    Webhook(secret).verify(request.body, headers, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(request.body, headers, json_parse=False)
