"""CloudEvents from the CNCF SDK at /publish; a refused request stores nothing."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from arborcast.ingest.addresses import Target
from arborcast.ingest.cloudevents.publishing import PublishEvents
from arborcast.ingest.http import app
from arborcast.topic_model import legacy_content
from arborcast.topic_model.cloud_events import event_of, published_in
from arborcast.topic_model.records.notifications import Notification
from arborcast.wire import limits
from arborcast.wire.endpoints import Kind
from arborcast.wire.envelope import Request
from tests.support.gateway_parts import GatewayParts, HttpAnswer

BATCH = "application/cloudevents-batch+json"
EVENT = "application/cloudevents+json"
ORDER = b'<o:order xmlns:o="urn:o">5</o:order>'

ATTRIBUTES = {"id": "A 1", "source": "/shop/ä", "type": "com.example.order", "subject": "shop/orders"}
ATTRIBUTES |= {"dataschema": "urn:schema", "sequence": "000000042", "partitionkey": 'a "b" 100%'}


def send(parts: GatewayParts, headers: Mapping[str, str], body: bytes, path: str = "/publish") -> HttpAnswer:
    return parts.post(body, path, **{name.replace("-", "_"): value for name, value in headers.items()})


def event(**changes: object) -> dict[str, object]:
    made = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "a/b", "data": 1, **changes}
    return {name: value for name, value in made.items() if value is not None}


def refusal(parts: GatewayParts, document: object, media: str = EVENT) -> str:
    answer = send(parts, {"content-type": media}, json.dumps(document).encode())
    assert answer.status in (400, 415), answer.body
    assert parts.notifications.accepted == []
    assert parts.control.records == [], "no topic is added"
    return answer.body.decode().rstrip()


def only(parts: GatewayParts) -> Notification:
    (accepted,) = parts.notifications.accepted
    return accepted


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize("media", ["application/xml", "application/json"])
def test_events_of_the_sdk(mode: str, media: str) -> None:
    parts = GatewayParts()
    made = CloudEvent(
        {**ATTRIBUTES, "specversion": "1.0", "time": datetime(2026, 1, 31, 12, tzinfo=UTC), "datacontenttype": media},
        ORDER if media == "application/xml" else {"n": ["ä", 1]},
    )
    message = (to_binary_event if mode == "binary" else to_structured_event)(made)
    answer = send(parts, message.headers, message.body)
    assert answer.status == 202, answer.body
    stored = only(parts)
    assert answer.headers[b"arborcast-notification-id"] == stored.id.encode()
    assert stored.topic == "shop/orders"
    if media == "application/xml":
        assert (stored.payload, stored.type) == (ORDER, "{urn:o}order")
    else:
        assert json.loads(legacy_content.unwrap(stored.payload)) == {"n": ["ä", 1]}
        assert stored.type == "com.example.order", "JSON is filtered by the type of the event"
    published = dict(published_in(stored.producer))
    published.pop("datacontenttype", None)
    assert published == {**ATTRIBUTES, "time": "2026-01-31T12:00:00Z"}
    assert stored.message_id, "repetitions have equal source and id"


def test_a_batch_is_stored_in_order() -> None:
    parts = GatewayParts()
    batch = [event(id=str(number), data={"n": number}, subject=f"a/n{number}") for number in range(20)]
    answer = send(parts, {"content-type": f"{BATCH}; charset=utf-8"}, json.dumps(batch).encode())
    assert answer.status == 202
    assert [each.topic for each in parts.notifications.accepted] == [f"a/n{number}" for number in range(20)]
    assert answer.headers[b"arborcast-notification-id"].count(b",") == 19


def test_a_batch_of_many_small_events_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    class Noted(PublishEvents):
        def read(self, body: bytes, content_type: bytes) -> Request:
            threads.append(threading.current_thread())
            return super().read(body, content_type)

    monkeypatch.setattr(app, "PublishEvents", Noted)
    parts = GatewayParts()

    def batch(size: int) -> bytes:
        return json.dumps([event(id=str(number), data=None) for number in range(size)]).encode()

    for size in (10, 500):
        assert len(batch(size)) < limits.SMALL_REQUEST
        assert send(parts, {"content-type": BATCH}, batch(size)).status == 202
    small, large = threads
    assert small == threading.current_thread() != large

    async def turns_while_storing() -> int:
        publish = PublishEvents("/publish", [], 1_000_000)
        request = publish.read(batch(1_000), BATCH.encode())
        storing = asyncio.ensure_future(publish.operation.handler(parts.gateway, request, Target(Kind.BROKER, "")))
        turns = 0
        while not storing.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(turns_while_storing()) > 9
    assert len(parts.notifications.accepted) == 1_510


@pytest.mark.parametrize(
    ("path", "headers", "topic"),
    [
        ("/publish/in/the/path", {"arborcast-topic": "in/the/header"}, "in/the/path"),
        ("/publish", {"arborcast-topic": "in/the/header"}, "in/the/header"),
        ("/publish", {"arborcast-topic": "größe/日本"}, "größe/日本"),
        ("/publish/", {}, "a/b"),
        ("/publish/{urn:t}x", {}, "{urn:t}x"),
    ],
)
def test_sources_of_the_topic(path: str, headers: dict[str, str], topic: str) -> None:
    parts = GatewayParts()
    answer = send(parts, {"content-type": EVENT, **headers}, json.dumps(event()).encode(), path)
    assert answer.status == 202, answer.body
    assert only(parts).topic == topic


@pytest.mark.parametrize(
    ("changes", "payload"),
    [
        ({"data": None}, b""),
        ({"data": "text & more", "datacontenttype": "text/plain"}, b"text &amp; more"),
        ({"data": "two\r\nlines", "datacontenttype": "text/plain"}, b"two&#13;\nlines"),
        ({"data": "<x/>", "datacontenttype": "application/atom+xml"}, None),
        ({"data": None, "data_base64": base64.b64encode(b"<x/>").decode(), "datacontenttype": "text/xml"}, None),
        ({"data": None, "data_base64": base64.b64encode(b"[1]").decode()}, b"[1]"),
        ({"data": [1.50, "a"], "datacontenttype": "application/vnd.x+json"}, b'[1.5, "a"]'),
        ({"number": 7, "flag": True, "empty": None}, b"1"),
    ],
)
def test_data(changes: dict[str, object], payload: bytes | None) -> None:
    parts = GatewayParts()
    answer = send(parts, {"content-type": EVENT}, json.dumps(event(**changes)).encode())
    assert answer.status == 202, answer.body
    stored = only(parts).payload
    assert stored == b"<x/>" if payload is None else legacy_content.unwrap(stored) == payload
    if "flag" in changes:
        published = published_in(only(parts).producer)
        assert (published["number"], published["flag"], "empty" in published) == ("7", "true", False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"specversion": "0.3"}, "the attribute specversion is '0.3', not '1.0'"),
        ({"specversion": None}, "the attribute specversion is '', not '1.0'"),
        ({"id": None}, "the attribute id is missing or empty"),
        ({"source": ""}, "the attribute source is missing or empty"),
        ({"type": None}, "the attribute type is missing or empty"),
        ({"time": "yesterday"}, "the attribute time is 'yesterday' (an example: 2030-01-31T12:00:00Z)"),
        ({"Name": "x"}, "the name of the attribute 'Name' is not of a to z and 0 to 9, or is data"),
        ({"more": {"a": 1}}, "the attribute more is a string, a boolean or an integer, not b'{\"a\": 1}'"),
        ({"subject": None}, "no topic: it is in the path (/publish/a/b), in Arborcast-Topic, or the event's subject"),
        ({"subject": "a//b"}, "a topic is names with slashes"),
        ({"data": {}, "datacontenttype": "application/xml"}, "a JSON string, as data that is not JSON has to be,"),
        ({"data": "<x>", "datacontenttype": "application/xml"}, "the data is not well-formed XML"),
        ({"data": "x", "datacontenttype": "image/png"}, "data is accepted as XML, JSON or text, not as image/png"),
        ({"data": None, "data_base64": "?"}, "data_base64 is not base64"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_events(changes: dict[str, object], words: str) -> None:
    wrong = event(**changes)
    assert words in refusal(GatewayParts(), wrong)
    batch = refusal(GatewayParts(), [event(subject="new/topic"), wrong], BATCH)
    assert batch.startswith("event 2: ")
    assert words in batch


def test_invalid_documents() -> None:
    assert "a list of CloudEvents in JSON" in refusal(GatewayParts(), {}, BATCH)
    assert "a CloudEvent in JSON" in refusal(GatewayParts(), [])
    assert f"a batch has 1 to {limits.EVENTS} events, this one has 0" in refusal(GatewayParts(), [], BATCH)
    many = [event()] * (limits.EVENTS + 1)
    assert "this one has 1001" in refusal(GatewayParts(), many, BATCH)
    assert "not as application/cloudevents+avro" in refusal(GatewayParts(), {}, "application/cloudevents+avro")


@pytest.mark.parametrize("binary", [True, False])
def test_text_that_looks_like_json_stays_text(binary: bool) -> None:
    parts, made = GatewayParts(), event(data="42")
    if binary:
        headers = {f"ce-{name}": str(made[name]) for name in ("specversion", "id", "source", "type", "subject")}
        answer = send(parts, {"content-type": "text/plain", **headers}, b"42")
    else:
        made["datacontenttype"] = "text/plain"
        answer = send(parts, {"content-type": EVENT}, json.dumps(made).encode())
    assert answer.status == 202, answer.body
    stored = only(parts)
    pushed = event_of("1", stored.topic, stored.payload, 1, "/s", published=published_in(stored.producer))
    assert (pushed.media, pushed.data) == ("text/plain; charset=utf-8", b"42")


def test_a_bad_header_in_binary_mode() -> None:
    parts = GatewayParts()
    named = {"ce-specversion": "1.0", "ce-id": "%ff", "ce-source": "/s", "ce-type": "t", "content-type": "text/xml"}
    answer = send(parts, named, b"<x/>", "/publish/a")
    assert (answer.status, answer.body) == (400, b"the header ce-id is not UTF-8 with percent signs\n")
    answer = send(parts, {**named, "ce-id": "1", "ce-data": "other"}, b"<x/>", "/publish/a")
    assert (answer.status, b"or is data" in answer.body) == (400, True)
    answer = send(parts, {**named, "ce-id": r'"a \"b\" c"', "ce-source": "/größe/%C3%A9"}, b"<x/>", "/publish/a")
    assert answer.status == 202
    published = published_in(only(parts).producer)
    assert (published["id"], published["source"]) == ('a "b" c', "/größe/é")


def test_elements_in_json_escapes_are_counted() -> None:
    parts = GatewayParts()
    hidden = b"<x>" + b"<y/>" * 250_000 + b"</x>"
    escaped = b'"' + hidden.replace(b"<", b"\\u003c") + b'"'
    body = json.dumps(event(data=None, datacontenttype="text/xml")).encode()[:-1] + b',"data":' + escaped + b"}"
    answer = send(parts, {"content-type": EVENT}, body)
    assert (answer.status, parts.notifications.accepted) == (400, [])
    assert b"elements and attributes, 200000 are allowed" in answer.body


def test_the_validation_of_a_web_hook() -> None:
    named = {"WebHook-Request-Origin": "events.example", "WebHook-Request-Rate": "120"}
    answer, without = (
        asyncio.run(GatewayParts().request("OPTIONS", "/publish/a/b", headers=each)) for each in (named, {})
    )
    assert (answer.status, without.status) == (200, 405)
    assert answer.headers[b"webhook-allowed-origin"] == b"events.example"
    assert (answer.headers[b"webhook-allowed-rate"], answer.headers[b"allow"]) == (b"*", b"POST")
