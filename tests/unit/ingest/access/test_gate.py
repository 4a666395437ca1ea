"""Through the application: who gets in, and that a refusal changes nothing."""

from __future__ import annotations

import asyncio
import base64

import pytest

from arborcast.wire.errors import NotAuthenticated
from tests.support.gateway_parts import GatewayParts
from tests.support.guarded_gateway import (
    ANNA,
    BERT,
    OLGA,
    basic,
    nothing_happened,
)
from tests.support.soap_messages import envelope, notify, subscribe

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "header",
    [
        None,
        basic("anna", "pb"),
        basic("anna", ""),
        basic("nobody", "pa"),
        basic("", ""),
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"anna").decode(),
        "Basic " + base64.b64encode(b"\xff:\xff").decode(),
        "Basic " + base64.b64encode(b"anna:p\xe4").decode(),  # Latin-1, where UTF-8 was asked for
        "Basic " + base64.b64encode("anna:pä".encode()).decode(),
        "Basic " + base64.b64encode("anna:pa\u0000".encode()).decode(),
        "Basic " + base64.b64encode("änna:pa".encode()).decode(),
        "Basic " + base64.b64encode("\u202eanna:pa".encode()).decode(),
        "Basic " + base64.b64encode(b"anna\r\nX: y:pa").decode(),
        "Basic " + base64.b64encode(b"anna:" + b"p" * 200_000).decode(),
        "Basic " + base64.b64encode(b"a" * 200_000 + b":pa").decode(),
        "Basic ä:ö",
        "Basic " + base64.b64encode(b"anna:pa").decode() + "ä",
        "Basic " + base64.b64encode(b"anna:pa").decode() + ", Basic " + base64.b64encode(b"anna:pa").decode(),
        "Bearer abc",
        "Digest username=anna",
        "anna:pa",
        "?",
    ],
)
@pytest.mark.parametrize("body", [notify(), subscribe()])
def test_who_does_not_prove_who_it_is_changes_nothing(parts: GatewayParts, header: str | None, body: str) -> None:
    answer = parts.post(envelope(body), **({} if header is None else {"authorization": header}))
    assert answer.status == 401
    assert answer.headers[b"www-authenticate"] == b'Basic realm="arborcast", charset="UTF-8"'
    assert answer.fault == "FailedAuthentication"
    assert nothing_happened(parts)


def test_two_authorization_headers_are_none(parts: GatewayParts) -> None:
    headers = {"authorization": ANNA, "Authorization": BERT}
    answer = asyncio.run(parts.request("POST", "/wsn/NotificationBroker", envelope(notify()), headers))
    assert answer.status == 401
    assert nothing_happened(parts)


def test_health_and_descriptions_are_for_everybody(parts: GatewayParts) -> None:
    assert parts.get("/health/live").status == 200
    assert parts.get("/wsn/NotificationBroker?wsdl").status != 401


def test_metrics_are_for_this_machine_and_for_users(parts: GatewayParts) -> None:
    for page, status in (("/metrics", 200), ("/status.json", 404)):
        assert parts.get(page).status == 401  # from nowhere that is known
        assert asyncio.run(parts.request("GET", page, headers={"authorization": OLGA})).status == status


@pytest.mark.parametrize(
    ("client", "server", "seen"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("192.0.2.7", "192.0.2.7", True),  # the supervisor, where the gateway listens on this address alone
        ("2001:db8::7", "2001:db8::7", True),
        ("192.0.2.8", "192.0.2.7", False),
        ("2001:db8::8", "2001:db8::7", False),
        ("192.0.2.8", "127.0.0.1", False),
    ],
)
def test_who_this_machine_is(parts: GatewayParts, client: str, server: str, seen: bool) -> None:
    gate = parts.gateway.gate
    assert gate is not None
    scope = {"client": (client, 1), "server": (server, 2), "headers": []}
    if seen:
        asyncio.run(gate.look(scope))
    else:
        with pytest.raises(NotAuthenticated):
            asyncio.run(gate.look(scope))
        asyncio.run(gate.look({**scope, "headers": [(b"authorization", ANNA.encode())]}))
