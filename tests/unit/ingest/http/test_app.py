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
from tests.support.gateway_parts import GatewayParts


def test_alive_even_when_not_ready() -> None:
    parts = GatewayParts()
    parts.obstacle = "the Kafka broker does not answer"
    assert parts.get("/health/live").status == 200
    answer = parts.get("/health/ready")
    assert (answer.status, answer.body) == (503, b"the Kafka broker does not answer\n")
    parts.obstacle = ""
    assert parts.get("/health/ready").body == b"ready\n"


@pytest.mark.parametrize("body", [soap.notify(), soap.subscribe(), "<wsnt:Unsubscribe/>"])
def test_before_the_log_is_read_nothing_is_judged_by_it(body: str) -> None:
    parts = GatewayParts()
    parts.started = False
    path = "/wsn/subscriptions/x" if "Unsubscribe" in body else "/wsn/NotificationBroker"
    answer = parts.post(soap.envelope(body), path)
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
    assert parts.control.records == []
    assert parts.notifications.accepted == []


def test_metrics_count_what_was_answered() -> None:
    parts = GatewayParts()
    parts.post(soap.envelope(soap.notify()))
    parts.post(soap.envelope("<wsnt:Unsubscribe/>"), "/wsn/subscriptions/x")
    parts.post(b"<a/>")
    lines = parts.get("/metrics").body.decode().splitlines()
    assert 'arborcast_gateway_requests_total{operation="Notify",status="202"} 1' in lines
    assert 'arborcast_gateway_requests_total{operation="Unsubscribe",status="500"} 1' in lines
    assert 'arborcast_gateway_requests_total{operation="unknown",status="400"} 1' in lines
    assert "arborcast_gateway_notify_seconds_count 1" in lines


def test_a_body_in_pieces_is_read_up_to_the_limit() -> None:
    body = soap.envelope(soap.notify())
    for size in (1, 7, 1_000):
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        assert asyncio.run(GatewayParts().request("POST", "/wsn/NotificationBroker/", pieces=pieces)).status == 202
    parts = GatewayParts(GatewaySettings(max_body_bytes=1024))
    answer = asyncio.run(parts.request("POST", "/wsn/NotificationBroker", pieces=[b"x" * 600 for _ in range(1_000)]))
    assert (answer.status, answer.headers[b"connection"]) == (413, b"close")


def test_a_client_that_goes_away_gets_no_answer_and_changes_nothing() -> None:
    parts = GatewayParts()
    sent: list[object] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/wsn/NotificationBroker", "headers": []}
    asyncio.run(parts.app(scope, receive, send))
    assert sent == []
    assert parts.notifications.accepted == []


def test_a_defect_shows_no_details_and_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = GatewayParts()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(parts.notifications, "append", broken)
    with caplog.at_level(logging.ERROR):
        answer = parts.post(soap.envelope(soap.notify()))
    assert answer.status == 500
    assert answer.fault == "Server"
    assert answer.reason == "internal error"
    assert "secret detail" in caplog.text


def test_a_failure_that_needs_an_operator_is_still_503() -> None:
    parts = GatewayParts()
    parts.control.error = RecordVersionError("upgrade first")
    answer = parts.post(soap.envelope(soap.subscribe()))
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"30")


def test_while_a_thread_parses_the_event_loop_waits_less_for_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, parse, seen = sys.getswitchinterval(), app._parse_large, []

    def watched(body: bytes, content_type: bytes) -> Request:
        seen.append(sys.getswitchinterval())
        return parse(body, content_type)

    monkeypatch.setattr(app, "_parse_large", watched)
    large = soap.notify(soap.message(payload=f"<a>{'x' * 100_000}</a>"))
    assert GatewayParts().post(soap.envelope(large)).status == 202
    assert seen[0] < usual == sys.getswitchinterval()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (soap.envelope(soap.notify()), 202),
        (soap.envelope(soap.notify(soap.message("t:a//b"))), 500),
        (soap.envelope("<x/>"), 500),
        (b"<x>", 400),
    ],
    ids=["accepted", "refused", "unknown", "malformed"],
)
def test_a_request_leaves_nothing_for_the_garbage_collector(body: bytes, status: int) -> None:
    parts = GatewayParts()

    async def left() -> list[object]:
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        assert (await parts.request("POST", "/wsn/NotificationBroker", body)).status == status
        gc.collect()
        return [each for each in gc.garbage if isinstance(each, (Request, Reservation, BaseException))]

    try:
        assert asyncio.run(left()) == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
