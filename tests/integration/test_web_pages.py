"""A page in a real browser sends requests to servers on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from arborcast.client.listener import Listener, ReceivedMessage
from arborcast.engine.monitoring.endpoint import Endpoint, Page
from arborcast.ingest.settings import GatewaySettings
from tests.support import soap_messages as soap
from tests.support.chromium import Visitors
from tests.support.gateway_parts import GatewayParts, only_subscription
from tests.support.served_app import served

if TYPE_CHECKING:
    from playwright.sync_api import Page as BrowserPage

pytestmark = pytest.mark.browser

BROKER = "/wsn/NotificationBroker"

SUBSCRIBE = soap.envelope(soap.subscribe("https://evil.example/x"))

# Requests that a page may send to any origin without a preflight.
POST_SIMPLE = """([address, body]) => fetch(address, {method: "POST", mode: "no-cors", body})
    .then(() => "answered", error => String(error))"""

# As a permitted page sends it: with a preflight.
POST_CORS = """([address, body]) => fetch(address, {
        method: "POST", body, headers: {"Content-Type": "application/soap+xml", "SOAPAction": '""'}
    }).then(answer => answer.text(), error => String(error))"""


@dataclass
class Place:
    """A page, and a gateway on another port."""

    page: BrowserPage
    origin: str
    gateway: int
    parts: GatewayParts


@pytest.fixture
def place(visit: Visitors, elsewhere: str) -> Iterator[Place]:
    parts = GatewayParts()
    with served(parts) as port:
        page = visit()
        page.goto(elsewhere)
        yield Place(page, elsewhere, port, parts)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_page_cannot_subscribe_or_publish(place: Place, visit: Visitors, host: str) -> None:
    visit.expected = ("403 (Forbidden)",)
    for body in (SUBSCRIBE, soap.envelope(soap.notify())):
        answered = place.page.evaluate(POST_SIMPLE, [f"http://{host}:{place.gateway}{BROKER}", body.decode()])
        assert answered == "answered", "the request has reached the gateway"
    assert place.parts.control.records == []
    assert place.parts.notifications.accepted == []


def test_a_page_at_a_rebound_name_reads_nothing(place: Place, visit: Visitors) -> None:
    """Chromium resolves names below localhost to loopback, as a rebound name of an attacker: the page
    and the gateway have the same origin."""
    visit.expected = ("evil.localhost", "403 (Forbidden)")
    answer = place.page.goto(f"http://evil.localhost:{place.gateway}/metrics")
    assert answer is not None
    assert answer.status == 403
    assert "arborcast_gateway_requests_total" not in place.page.content()
    place.page.evaluate(POST_SIMPLE, [BROKER, SUBSCRIBE.decode()])
    assert place.parts.control.records == []


def test_a_permitted_page_subscribes(visit: Visitors, elsewhere: str) -> None:
    parts = GatewayParts(GatewaySettings(page_origins=elsewhere))
    with served(parts) as port:
        page = visit()
        page.goto(elsewhere)
        answer = page.evaluate(POST_CORS, [f"http://127.0.0.1:{port}{BROKER}", SUBSCRIBE.decode()])
    assert "SubscribeResponse" in answer
    assert only_subscription(parts)


def test_other_servers_of_the_engine_refuse_pages(place: Place, visit: Visitors) -> None:
    visit.expected = ("403 (Forbidden)",)
    got: list[ReceivedMessage] = []
    made: list[None] = []

    def make() -> bytes:
        made.append(None)
        return b"up 1\n"

    with ExitStack() as running:
        listener = running.enter_context(Listener(got.append))
        endpoint = Endpoint("127.0.0.1", 0, {"/metrics": Page("text/plain", make)}, "metrics")
        running.callback(endpoint.close)
        push = soap.envelope(soap.notify(soap.message(payload="<a/>"))).decode()
        assert place.page.evaluate(POST_SIMPLE, [listener.url, push]) == "answered"
        reads = "address => fetch(address, {mode: 'no-cors'}).then(() => 'answered', String)"
        assert place.page.evaluate(reads, f"http://127.0.0.1:{endpoint.port}/metrics") == "answered"
    assert (got, made) == ([], [])
