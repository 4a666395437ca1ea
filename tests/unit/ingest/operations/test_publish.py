"""POST /publish/TOPIC, as with curl."""

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
def test_an_xml_element_is_stored_unchanged(parts: GatewayParts, media: str) -> None:
    answer = publish(parts, "plant/line1", b"<?xml version=\"1.0\"?><!-- c --><r a='1'><![CDATA[<]]></r>\n", media)
    assert (answer.status, answer.body) == (202, b"")
    (accepted,) = parts.notifications.accepted
    assert (accepted.topic, accepted.payload) == ("plant/line1", b"<r a='1'><![CDATA[<]]></r>")
    assert answer.headers[b"arborcast-notification-id"].decode() == accepted.id


def test_a_percent_encoded_path_over_http(parts: GatewayParts) -> None:
    more = b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/xml\r\nContent-Length: 4\r\n\r\n<r/>"
    with served(parts) as port:
        assert exchange(port, b"POST /publish/%7Burn:t%7Da/%C3%A9" + more).startswith(b"HTTP/1.1 202")
        assert exchange(port, b"POST /publish/a/%E9" + more).startswith(b"HTTP/1.1 400")
    assert [each.topic for each in parts.notifications.accepted] == ["{urn:t}a/\u00e9"]


@pytest.mark.parametrize("text", ['{"a": "<b>&\\u0000", "n": [1, 2.5]}', '"\uffff"', "7", "  null\n"])
def test_json_is_the_text_of_a_content_element(parts: GatewayParts, text: str) -> None:
    assert publish(parts, "a", text.encode(), "application/json; charset=utf-8").status == 202
    payload = parts.notifications.accepted[0].payload
    root = etree.fromstring(payload)
    assert root.tag == f"{{{NAMESPACE}}}Content"
    assert json.loads(root.text or "") == json.loads(text)
    assert b"<" not in unwrap(payload)


@pytest.mark.parametrize(
    ("topic", "body", "media", "status", "words"),
    [
        ("", b"<r/>", "text/xml", 400, "at least one name"),
        ("café/1st", b"<r/>", "text/xml", 400, "at position 5, a name has letters"),
        *((topic, b"<r/>", "text/xml", 400, "canonical") for topic in ("a//b", "a//", "1a", "a/*")),
        ("a", b"<r/>", "application/x-www-form-urlencoded", 415, "application/json"),
        ("a", b"<r/>", "", 415, "no Content-Type"),
        ("a", b"<r/><s/>", "text/xml", 400, "well-formed"),
        ("a", b"", "text/xml", 400, "well-formed"),
        ("a", b"<!DOCTYPE r><r/>", "text/xml", 400, "document type"),
        *(("a", body, "application/json", 400, "not JSON") for body in (b"{", b'"\xff"', b"[" * 50_000)),
        ("a", b"x" * 2_000, "text/xml", 413, "1024"),
        ("a", json.dumps("<" * 900).encode(), "application/json", 413, "XML text"),
    ],
)
def test_refusals_are_plain_text(topic: str, body: bytes, media: str, status: int, words: str) -> None:
    parts = GatewayParts(GatewaySettings(max_body_bytes=1024 if status == 413 else 1_000_000))
    answer = publish(parts, topic, body, media)
    assert (answer.status, answer.headers[b"content-type"]) == (status, b"text/plain; charset=utf-8")
    assert words in answer.body.decode()
    assert (parts.notifications.accepted, parts.control.records) == ([], [])


def test_large_bodies_fixed_topics_and_errors_of_kafka(parts: GatewayParts) -> None:
    assert publish(parts, "a", b"<r>" + b"x" * 100_000 + b"</r>").status == 202
    assert publish(parts, "a", b'"' + b"x" * 100_000 + b'"', "application/json").status == 202
    assert [len(each.payload) > 100_000 for each in parts.notifications.accepted] == [True, True]
    parts.notifications.error = InfrastructureError("Kafka is slow", retry_after=3)
    answer = publish(parts, "a", b"<r/>")
    assert (answer.status, answer.headers[b"retry-after"], answer.body) == (503, b"3", b"Kafka is slow\n")
    answer = publish(GatewayParts(topics=TopicSettings(fixed=True)), "a", b"<r/>")
    assert (answer.status, answer.body) == (404, b"there is no topic a, and the topic set is fixed\n")
    parts = GatewayParts(topics=TopicSettings(new_per_minute=1))
    assert [publish(parts, topic, b"<r/>").status for topic in ("a", "b")] == [202, 503]
    parts.started = False
    assert publish(parts, "a", b"<r/>").status == 503
