"""Requests of web pages at the gateway: refused wherever they go, or shared with a page that is wanted."""

from __future__ import annotations

import asyncio

import pytest

from arborcast.ingest.settings import GatewaySettings
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer

BROKER = "/wsn/NotificationBroker"

SUBSCRIBE = soap.envelope(soap.subscribe("https://evil.example/x"))

WANTED = "https://pages.example"


def asked(parts: GatewayParts, method: str, path: str, body: bytes = b"", **headers: str) -> HttpAnswer:
    return asyncio.run(parts.request(method, path, body, headers))


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"origin": "https://evil.example", "sec_fetch_site": "cross-site"}, id="a page elsewhere"),
        pytest.param({"origin": "http://127.0.0.1:9000", "sec_fetch_site": "same-site"}, id="a page on another port"),
        pytest.param({"origin": "https://evil.example"}, id="an older browser"),
        pytest.param({"host": "evil.example:8080", "origin": "http://evil.example:8080"}, id="a name that leads here"),
    ],
)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", BROKER, SUBSCRIBE),
        ("POST", BROKER, soap.envelope(soap.notify())),
        ("POST", "/wsn/CreatePullPoint", SUBSCRIBE),
        ("POST", "/publish/a", b"<a/>"),
        ("POST", "/results/x", b"{}"),
        ("GET", "/metrics", b""),
        ("GET", f"{BROKER}?wsdl", b""),
        ("GET", "/health/ready", b""),
        ("OPTIONS", BROKER, b""),
    ],
)
def test_a_page_of_others_does_nothing_and_reads_nothing(
    headers: dict[str, str], method: str, path: str, body: bytes
) -> None:
    parts = GatewayParts()
    answer = asked(parts, method, path, body, content_type="text/plain;charset=utf-8", **headers)
    assert answer.status == 403
    assert b"gateway." in answer.body, "it says which setting admits it"
    assert answer.headers[b"connection"] == b"close", "what follows is the body, and no request"
    assert not [name for name in answer.headers if name.startswith(b"access-control")]
    assert not parts.control.records
    assert not parts.notifications.accepted
    assert 'arborcast_gateway_refused_total{reason="PageRefused"} 1' in parts.metrics.text().splitlines()


def test_nothing_is_held_for_a_refused_request_and_without_a_page_nothing_of_it_is_said() -> None:
    parts = GatewayParts(GatewaySettings(page_origins=WANTED))
    asked(parts, "POST", BROKER, SUBSCRIBE, origin="https://evil.example")
    assert parts.app.inflight.taken == 0
    answer = asked(parts, "POST", BROKER, SUBSCRIBE)
    assert not [name for name in answer.headers if name.startswith(b"access-control")]


def test_a_page_that_is_wanted_asks_before_and_sees_the_answer() -> None:
    parts = GatewayParts(GatewaySettings(page_origins=f"https://other.example, {WANTED}"))
    question = {
        "origin": WANTED,
        "access_control_request_method": "POST",
        "access_control_request_headers": "content-type,soapaction",
        "access_control_request_private_network": "true",
    }
    permitted = asked(parts, "OPTIONS", BROKER, b"", **question)
    assert permitted.status == 204
    assert permitted.headers[b"access-control-allow-origin"] == WANTED.encode()
    assert permitted.headers[b"access-control-allow-headers"] == b"content-type,soapaction"
    assert b"POST" in permitted.headers[b"access-control-allow-methods"]
    assert permitted.headers[b"access-control-allow-private-network"] == b"true"
    assert b"access-control-allow-credentials" not in permitted.headers

    answer = asked(parts, "POST", BROKER, SUBSCRIBE, origin=WANTED, sec_fetch_site="cross-site")
    assert answer.status == 200
    assert answer.headers[b"access-control-allow-origin"] == WANTED.encode()
    assert answer.headers[b"vary"] == b"origin", "a cache gives it to no other page"
    fault = asked(parts, "POST", BROKER, b"<x/>", origin=WANTED)
    assert fault.status == 400
    assert fault.headers[b"access-control-allow-origin"] == WANTED.encode()
