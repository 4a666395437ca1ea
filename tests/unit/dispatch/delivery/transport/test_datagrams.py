"""Datagrams beside other pushes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any
from unittest.mock import create_autospec

import pytest

from arborcast.core.security.outbound import AddressPolicy, OutboundSettings
from arborcast.core.security.signatures import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from arborcast.dispatch.delivery.outcomes import classify
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult, Transport
from arborcast.dispatch.delivery.transport.datagrams import WithDatagrams
from arborcast.topic_model.records.peers import datagram_url, decode_datagram
from tests.support.outbound import THIS_MACHINE

SIGNED = ((ID_HEADER, "msg_1"), (TIMESTAMP_HEADER, "1"), (SIGNATURE_HEADER, "v1,x"), ("Arborcast-Attempt", "1"))


@pytest.fixture(params=["127.0.0.1", "::1"])
def bound(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as found:
        found.bind((request.param, 0))
        found.settimeout(60)
        yield found


def pushed(url: str, body: bytes = b"body", policy: AddressPolicy = THIS_MACHINE, signed: bool = True) -> PushResult:
    others = create_autospec(Transport)
    others.in_flight = 0
    transport, results = WithDatagrams(others, policy), list[PushResult]()
    transport.submit(PushRequest(url, SIGNED if signed else (), body), results.append)
    assert (transport.in_flight, results) == (1, []), "callbacks run in drive"
    transport.drive(60)
    assert transport.in_flight == 0
    others.submit.assert_not_called()
    transport.close()
    others.close.assert_called_once()
    (result,) = results
    return result


def test_a_sent_datagram_is_delivered_without_confirmation(bound: socket.socket) -> None:
    host, port, *_ = bound.getsockname()
    result = pushed(datagram_url(host, port))
    assert decode_datagram(bound.recv(9_000)) == (dict(SIGNED[:3]), b"body")
    outcome = classify(result)
    assert (outcome.delivered, outcome.status) == (True, 0)
    assert "without confirmation" in outcome.detail


HTTPS_ONLY = AddressPolicy(OutboundSettings(scope="loopback", https_only=True))


@pytest.mark.parametrize(
    ("url", "more", "why"),
    [
        ("udp://127.0.0.1:9", {"body": bytes(8_200)}, "at most 8192 bytes"),
        ("udp://127.0.0.1:9", {"signed": False}, "must be signed"),
        ("udp://127.0.0.1:9", {"policy": HTTPS_ONLY}, "https_only"),
        ("udp://10.0.0.1:9", {}, "outbound.scope"),
        ("udp://somewhere:9", {}, "not an IP address"),
        ("udp://[::1", {}, ""),
        ("udp://127.0.0.1:99999", {}, "out of range"),
    ],
)
def test_datagrams_that_cannot_be_sent_fail(url: str, more: dict[str, Any], why: str) -> None:
    result = pushed(url, **more)
    assert (result.sent, result.failure) == (False, "address")
    assert why in result.detail


def test_an_error_of_the_socket_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise BlockingIOError("no room")

    monkeypatch.setattr(WithDatagrams, "_socket", lambda *_: create_autospec(socket.socket, sendto=full))
    assert pushed("udp://127.0.0.1:9").failure == "connect"


def test_other_urls_use_the_other_transport() -> None:
    others = create_autospec(Transport)
    others.in_flight = 3
    transport = WithDatagrams(others, THIS_MACHINE)
    request = PushRequest("http://h/", (), b"")
    transport.submit(request, print)
    transport.drive(1.0)
    transport.wake()
    others.submit.assert_called_once_with(request, print)
    others.drive.assert_called_once_with(1.0)
    others.wake.assert_called_once_with()
    assert transport.in_flight == 3
