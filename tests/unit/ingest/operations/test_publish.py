"""POST /publish/TOPIC, as curl does it: what is kept of it, and what is answered when it is refused."""

from __future__ import annotations

import json

import pytest
from lxml import etree

from arborcast.core.errors import InfrastructureError
from arborcast.ingest.settings import GatewaySettings, TopicSettings
from arborcast.topic_model.legacy_content import NAMESPACE, unwrap
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.served_app import exchange, served


def publish(parts: GatewayParts, topic: str, body: bytes, media: str = "application/xml", **headers: str) -> HttpAnswer:
    return parts.post(body, f"/publish/{topic}", Content_Type=media, **headers)


@pytest.mark.parametrize("media", ["application/xml", "text/xml; charset=utf-8", "Application/XML"])
def test_one_xml_element_is_stored_as_sent(media: str) -> None:
    parts = GatewayParts()
    answer = publish(parts, "plant/line1", b"<?xml version=\"1.0\"?><!-- c --><r a='1'><![CDATA[<]]></r>\n", media)
    assert (answer.status, answer.body) == (202, b"")
    (accepted,) = parts.notifications.accepted
    assert (accepted.topic, accepted.payload) == ("plant/line1", b"<r a='1'><![CDATA[<]]></r>")
    assert answer.headers[b"arborcast-notification-id"].decode() == accepted.id


def test_a_percent_encoded_path_over_http() -> None:
    parts = GatewayParts()
    more = b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/xml\r\nContent-Length: 4\r\n\r\n<r/>"
    with served(parts) as port:
        assert exchange(port, b"POST /publish/%7Burn:t%7Da/%C3%A9" + more).startswith(b"HTTP/1.1 202")
        assert exchange(port, b"POST /publish/a/%E9" + more).startswith(b"HTTP/1.1 400")
    assert [each.topic for each in parts.notifications.accepted] == ["{urn:t}a/\u00e9"]


@pytest.mark.parametrize("said", ['{"a": "<b>&\\u0000", "n": [1, 2.5]}', '"\uffff"', "7", "  null\n"])
def test_json_travels_as_text_in_the_element_of_loose_content(said: str) -> None:
    parts = GatewayParts()
    assert publish(parts, "a", said.encode(), "application/json; charset=utf-8").status == 202
    payload = parts.notifications.accepted[0].payload
    root = etree.fromstring(payload)
    assert root.tag == f"{{{NAMESPACE}}}Content"
    assert json.loads(root.text or "") == json.loads(said)
    assert b"<" not in unwrap(payload)


def test_a_large_body_is_read_in_a_thread() -> None:
    parts = GatewayParts()
    assert publish(parts, "a", b"<r>" + b"x" * 100_000 + b"</r>").status == 202
    assert publish(parts, "a", b'"' + b"x" * 100_000 + b'"', "application/json").status == 202
    assert [len(each.payload) > 100_000 for each in parts.notifications.accepted] == [True, True]


@pytest.mark.parametrize(
    ("topic", "body", "media", "status", "says"),
    [
        ("", b"<r/>", "text/xml", 400, "at least one name"),
        ("a//b", b"<r/>", "text/xml", 400, "canonical"),
        ("a//", b"<r/>", "text/xml", 400, "canonical"),
        ("café/1st", b"<r/>", "text/xml", 400, "at position 5, a name has letters"),
        ("1a", b"<r/>", "text/xml", 400, "canonical"),
        ("a/*", b"<r/>", "text/xml", 400, "canonical"),
        ("a", b"<r/>", "application/x-www-form-urlencoded", 415, "application/json"),
        ("a", b"<r/>", "", 415, "no Content-Type"),
        ("a", b"<r/><s/>", "text/xml", 400, "well-formed"),
        ("a", b"", "text/xml", 400, "well-formed"),
        ("a", b"<!DOCTYPE r><r/>", "text/xml", 400, "document type"),
        ("a", b"{", "application/json", 400, "not JSON"),
        ("a", b'"\xff"', "application/json", 400, "not JSON"),
        ("a", b"[" * 50_000, "application/json", 400, "not JSON"),
        ("a", b"x" * 2_000, "text/xml", 413, "1024"),
        ("a", json.dumps("<" * 900).encode(), "application/json", 413, "XML text"),
    ],
)
def test_what_is_wrong_is_said_in_plain_text(topic: str, body: bytes, media: str, status: int, says: str) -> None:
    parts = GatewayParts(GatewaySettings(max_body_bytes=1024 if status == 413 else 1_000_000))
    answer = publish(parts, topic, body, media)
    assert (answer.status, answer.headers[b"content-type"]) == (status, b"text/plain; charset=utf-8")
    assert says in answer.body.decode()
    assert parts.notifications.accepted == []
    assert parts.control.records == []


def test_an_unknown_topic_of_a_fixed_tree() -> None:
    parts = GatewayParts(topics=TopicSettings(fixed=True))
    answer = publish(parts, "a", b"<r/>")
    assert (answer.status, answer.body) == (404, b"there is no topic a, and the topic set is fixed\n")


def test_later_is_503_and_when() -> None:
    parts = GatewayParts()
    parts.notifications.error = InfrastructureError("Kafka is slow", retry_after=3)
    answer = publish(parts, "a", b"<r/>")
    assert (answer.status, answer.headers[b"retry-after"], answer.body) == (503, b"3", b"Kafka is slow\n")
    parts = GatewayParts(topics=TopicSettings(new_per_minute=1))
    assert publish(parts, "a", b"<r/>").status == 202
    assert publish(parts, "b", b"<r/>").status == 503
    parts.started = False
    assert publish(parts, "a", b"<r/>").status == 503
