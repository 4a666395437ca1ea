"""Signing in the client: its requests, and the pushes that its listener accepts."""

from __future__ import annotations

from datetime import timedelta

import pytest
import requests

from arborcast.client import Client, Credentials, FaultReceived, FuturesClient
from arborcast.client.listener import Listener, ReceivedMessage
from arborcast.client.received import SignedWith, new_secret
from arborcast.core.errors import SecretError, SignatureError
from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import SecretOpener
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.ingest.elements.protection import Protector
from arborcast.wire.times import utc_now
from tests.support import make
from tests.support.gateway_parts import GatewayParts, only_subscription

KEYS = KeyRing({"k1": b"k" * 32})
SETTINGS = SecretSettings(credentials_over_http=True)


@pytest.fixture
def parts() -> GatewayParts:
    parts = GatewayParts()
    parts.now = utc_now()  # the listener uses the real clock
    parts.gateway.protector = Protector(SETTINGS, KEYS)
    return parts


def push(parts: GatewayParts, address: str, now_s: float | None = None, spoil: bytes = b"") -> requests.Response:
    """A worker's push to this subscription."""
    envelope = Envelope(only_subscription(parts), SecretOpener(SETTINGS, KEYS))
    request = envelope.request([make.notification(topic="plant")], 1, now_s)
    return requests.post(address, request.body + spoil, headers=dict(request.headers), timeout=60)


def test_a_listener_accepts_signed_pushes_only(parts: GatewayParts, url: str) -> None:
    got: list[ReceivedMessage] = []
    secret = new_secret()
    verify = SignedWith(secret)
    with Listener(got.append, verify=verify) as listener, Client(url) as client:
        subscription = client.subscribe("plant", to=listener.url, secret=secret)
        assert subscription.secret == "", "a given secret is not returned"
        assert push(parts, listener.url).status_code == 202
        spoiled, words = push(parts, listener.url, spoil=b" "), "none of the signatures was made with a known secret"
        assert (spoiled.status_code, spoiled.text) == (401, f"{words} over this body")
        old = push(parts, listener.url, now_s=1_700_000_000)
        assert old.status_code == 401
        assert "ago" in old.text
        assert requests.post(listener.url, b"<x/>", timeout=60).status_code == 401

        fresh = client.rotate_secret(subscription, overlap=timedelta(hours=1))
        assert push(parts, listener.url).status_code == 202, "also signed with the old secret"
        verify.trust(fresh)
        assert push(parts, listener.url).status_code == 202
        given = new_secret()
        assert client.rotate_secret(subscription, given, overlap=timedelta(0)) == given
        assert push(parts, listener.url).status_code == 401
    assert len(got) == 3


def test_a_generated_secret_is_returned_once(parts: GatewayParts, url: str) -> None:
    with FuturesClient(url) as client:
        subscription = client.subscribe("plant", to="http://h/", signed=True).result(120)
        assert subscription.secret.startswith("whsec_")
        assert subscription.secret not in repr(subscription)
        assert client.renew(subscription, timedelta(hours=1)).result(120).secret == ""
        assert client.rotate_secret(subscription).result(120).startswith("whsec_")


def test_credentials(parts: GatewayParts, url: str) -> None:
    got: list[str] = []

    def verify(headers: object, body: bytes) -> None:
        assert isinstance(headers, dict)
        got.append(headers.get("authorization", ""))

    given = Credentials("user", "<p&w>")
    assert "<p&w>" not in repr(given)
    with Listener(lambda _: None, verify=verify) as listener, Client(url) as client:
        subscription = client.subscribe("plant", to=listener.url, credentials=given)
        push(parts, listener.url)
        client.set_credentials(subscription, Credentials(bearer="t.o-k"))
        push(parts, listener.url)
        client.set_credentials(subscription, None)
        push(parts, listener.url)
        with pytest.raises(FaultReceived, match="no client certificates"):
            client.set_credentials(subscription, Credentials(certificate="absent"))
    assert got == ["Basic dXNlcjo8cCZ3Pg==", "Bearer t.o-k", ""]


def test_invalid_secrets_and_missing_signatures() -> None:
    with pytest.raises(SecretError):
        SignedWith("guess")
    with pytest.raises(SignatureError):
        SignedWith()({}, b"")
