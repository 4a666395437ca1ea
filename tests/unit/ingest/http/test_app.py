"""Requests to the gateway's application: health, failures, metrics and memory, and requests of web pages."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys

import pytest

from arborcast.core.errors import RecordVersionError
from arborcast.ingest.http import app
from arborcast.ingest.http.inflight import Reservation
from arborcast.ingest.settings import GatewaySettings
from arborcast.wire.envelope import Request
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer

BROKER = "/wsn/NotificationBroker"
NOTIFY, SUBSCRIBE = soap.envelope(soap.notify()), soap.envelope(soap.subscribe())
UNSUBSCRIBE = soap.envelope("<wsnt:Unsubscribe/>")
UNKNOWN = soap.envelope("<x/>")


def test_liveness_is_independent_of_readiness(parts: GatewayParts) -> None:
    parts.obstacle = "the Kafka broker does not answer"
    assert parts.get("/health/live").status == 200
    answer = parts.get("/health/ready")
    assert (answer.status, answer.body) == (503, b"the Kafka broker does not answer\n")
    parts.obstacle = ""
    assert parts.get("/health/ready").body == b"ready\n"


@pytest.mark.parametrize(
    ("body", "path"),
    [(NOTIFY, BROKER), (SUBSCRIBE, BROKER), (UNSUBSCRIBE, "/wsn/subscriptions/x")],
    ids=["Notify", "Subscribe", "Unsubscribe"],
)
def test_requests_wait_until_the_log_is_read(parts: GatewayParts, body: bytes, path: str) -> None:
    parts.started = False
    answer = parts.post(body, path)
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
    assert (parts.control.records, parts.notifications.accepted) == ([], [])


def test_metrics_count_answers(parts: GatewayParts) -> None:
    for body, path in ((NOTIFY, BROKER), (UNSUBSCRIBE, "/wsn/subscriptions/x"), (b"<a/>", BROKER)):
        parts.post(body, path)
    assert {
        'arborcast_gateway_requests_total{operation="Notify",status="202"} 1',
        'arborcast_gateway_requests_total{operation="Unsubscribe",status="500"} 1',
        'arborcast_gateway_requests_total{operation="unknown",status="400"} 1',
        "arborcast_gateway_notify_seconds_count 1",
    } <= set(parts.get("/metrics").body.decode().splitlines())


def test_bodies_in_pieces_are_bounded() -> None:
    for size in (1, 7, 1_000):
        pieces = [NOTIFY[start : start + size] for start in range(0, len(NOTIFY), size)]
        assert asyncio.run(GatewayParts().request("POST", f"{BROKER}/", pieces=pieces)).status == 202
    parts = GatewayParts(GatewaySettings(max_body_bytes=1024))
    answer = asyncio.run(parts.request("POST", BROKER, pieces=[b"x" * 600] * 1_000))
    assert (answer.status, answer.headers[b"connection"]) == (413, b"close")


def test_a_disconnected_client_gets_no_answer(parts: GatewayParts) -> None:
    sent: list[object] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        sent.append(message)

    asyncio.run(parts.app({"type": "http", "method": "POST", "path": BROKER, "headers": []}, receive, send))
    assert (sent, parts.notifications.accepted) == ([], [])


def test_failures(parts: GatewayParts, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect is logged, without details in the answer; an error for the operator is 503."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(parts.notifications, "append", broken)
    with caplog.at_level(logging.ERROR):
        answer = parts.post(NOTIFY)
    assert (answer.status, answer.fault, answer.reason) == (500, "Server", "internal error")
    assert "secret detail" in caplog.text
    parts.control.error = RecordVersionError("upgrade first")
    answer = parts.post(SUBSCRIBE)
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"30")


def test_the_switch_interval_is_shorter_during_a_parse(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, parse, seen = sys.getswitchinterval(), app._parse_large, []

    def watched(body: bytes, content_type: bytes) -> Request:
        seen.append(sys.getswitchinterval())
        return parse(body, content_type)

    monkeypatch.setattr(app, "_parse_large", watched)
    large = soap.notify(soap.message(payload=f"<a>{'x' * 100_000}</a>"))
    assert parts.post(soap.envelope(large)).status == 202
    assert seen[0] < usual == sys.getswitchinterval()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (NOTIFY, 202),
        (soap.envelope(soap.notify(soap.message("t:a//b"))), 500),
        (soap.envelope("<x/>"), 500),
        (b"<x>", 400),
    ],
    ids=["accepted", "refused", "unknown", "malformed"],
)
def test_a_request_leaves_no_reference_cycles(parts: GatewayParts, body: bytes, status: int) -> None:
    async def left() -> list[object]:
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        assert (await parts.request("POST", BROKER, body)).status == status
        gc.collect()
        return [each for each in gc.garbage if isinstance(each, (Request, Reservation, BaseException))]

    try:
        assert asyncio.run(left()) == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


PERMITTED = "https://pages.example"


def requested(parts: GatewayParts, method: str, path: str, body: bytes = b"", **headers: str) -> HttpAnswer:
    return asyncio.run(parts.request(method, path, body, headers))


def shared(answer: HttpAnswer) -> dict[str, str]:
    """The CORS headers of the answer."""
    return {
        name.decode().removeprefix("access-control-"): value.decode()
        for name, value in answer.headers.items()
        if name.startswith(b"access-control")
    }


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"origin": "https://evil.example", "sec_fetch_site": "cross-site"}, id="another site"),
        pytest.param({"origin": "http://127.0.0.1:9000", "sec_fetch_site": "same-site"}, id="a page on another port"),
        pytest.param({"origin": "https://evil.example"}, id="an older browser"),
        pytest.param({"host": "evil.example:8080", "origin": "http://evil.example:8080"}, id="DNS rebinding"),
    ],
)
def test_requests_of_foreign_pages_are_refused(headers: dict[str, str]) -> None:
    for method, path, body in (
        *(("POST", path, SUBSCRIBE) for path in (BROKER, "/wsn/CreatePullPoint")),
        *(("POST", path, body) for path, body in ((BROKER, NOTIFY), ("/publish/a", b"<a/>"), ("/results/x", b"{}"))),
        *(("GET", path, b"") for path in ("/metrics", f"{BROKER}?wsdl", "/health/ready")),
        ("OPTIONS", BROKER, b""),
    ):
        parts = GatewayParts()
        answer = requested(parts, method, path, body, content_type="text/plain;charset=utf-8", **headers)
        assert (answer.status, shared(answer)) == (403, {}), (method, path)
        assert b"gateway." in answer.body, "the answer names the setting"
        assert answer.headers[b"connection"] == b"close", "the body is not parsed as a request"
        assert (parts.control.records, parts.notifications.accepted, parts.app.inflight.taken) == ([], [], 0)
        assert 'arborcast_gateway_refused_total{reason="PageRefused"} 1' in parts.metrics.text().splitlines()


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_opens_no_stream_by_navigation(site: str) -> None:
    """Each would leave a subscription for gateway.stream_lease_s."""
    parts = GatewayParts()
    navigation = {"sec_fetch_site": site, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    for path in ("/events", "/events/a//."):
        answer = asyncio.run(parts.hang_up_after_the_head(path, navigation))
        assert (answer.status, parts.control.records) == (403, []), path
    assert requested(parts, "GET", "/health/ready", b"", **navigation).status == 200
    typed = asyncio.run(parts.hang_up_after_the_head("/events/a//.", {**navigation, "sec_fetch_site": "none"}))
    assert (typed.status, len(parts.control.records)) == (200, 1)


def test_cors_of_a_permitted_page() -> None:
    parts = GatewayParts(GatewaySettings(page_origins=f"https://other.example, {PERMITTED}"))
    question = {"method": "POST", "headers": "content-type,soapaction", "private_network": "true"}
    headers = {f"access_control_request_{name}": text for name, text in question.items()}
    answer = requested(parts, "OPTIONS", BROKER, b"", origin=PERMITTED, **headers)
    permitted = shared(answer)
    assert (answer.status, "POST" in permitted.pop("allow-methods")) == (204, True)
    permitted.pop("max-age", None)
    assert (permitted.pop("allow-origin"), permitted.pop("allow-headers")) == (PERMITTED, question["headers"])
    assert permitted == {"allow-private-network": "true"}
    answer = requested(parts, "POST", BROKER, SUBSCRIBE, origin=PERMITTED, sec_fetch_site="cross-site")
    assert (answer.status, shared(answer)["allow-origin"]) == (200, PERMITTED)
    assert answer.headers[b"vary"] == b"origin", "caches separate pages"
    fault = requested(parts, "POST", BROKER, b"<x/>", origin=PERMITTED)
    assert (fault.status, shared(fault)["allow-origin"]) == (400, PERMITTED)
    assert shared(requested(parts, "POST", BROKER, SUBSCRIBE)) == {}
