"""Clients that send too much, too slowly, or too often: raw bytes on sockets, and what comes back."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable

import pytest

from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts
from tests.support.served_app import exchange, served

pytestmark = pytest.mark.slow

BODY = soap.envelope(soap.notify())
START = b"POST /wsn/NotificationBroker HTTP/1.1\r\nHost: localhost\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
WHOLE = START + LENGTH + b"\r\n" + BODY


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side ends it."""
    received = b""
    while data := connection.recv(65_536):
        received += data
    return received


def drip(connection: socket.socket, pieces: Iterable[bytes], pause_s: float) -> bytes:
    """Send one piece after the other until there is an answer; returns it all."""
    connection.settimeout(pause_s)
    for piece in pieces:
        try:
            connection.sendall(piece)
            received = connection.recv(65_536)
        except TimeoutError:
            continue
        connection.settimeout(60)
        return received + everything(connection) if received else received
    raise AssertionError("all of it was taken")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(START + b"X: " + b"x" * 3_000 + b"\r\n" + LENGTH, id="one large header"),
        pytest.param(START + b"".join(b"X-%d: y\r\n" % number for number in range(101)) + LENGTH, id="many headers"),
        pytest.param(b"POST /" + b"x" * 3_000 + b" HTTP/1.1\r\nHost: localhost\r\n" + LENGTH, id="a large address"),
    ],
)
@pytest.mark.parametrize("packet", [100_000, 500])
def test_a_head_that_is_too_large(head: bytes, packet: int) -> None:
    parts = GatewayParts()
    data = head + b"\r\n" + BODY
    with served(parts, max_header_bytes=2_048) as port:
        answer = exchange(port, *(data[at : at + packet] for at in range(0, len(data), packet)))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"connection: close" in answer
    assert parts.notifications.accepted == []


def test_a_head_without_end_is_not_gathered() -> None:
    with served(GatewayParts(), max_header_bytes=2_048) as port, socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(START + b"X: ")
        # What comes in one packet is not counted, and a slow server reads many pieces as one.
        assert drip(one, [b"x" * 500] * 400, 0.01).startswith(b"HTTP/1.1 431 ")


def test_a_large_body_does_not_count_as_head() -> None:
    parts = GatewayParts()
    large = soap.envelope(soap.notify(soap.message(payload=f"<n>{'x' * 20_000}</n>")))
    head = START + b"Content-Length: %d\r\n\r\n" % len(large)
    with served(parts, max_header_bytes=2_048) as port:
        answer = exchange(port, head + large[:9_000], large[9_000:] + WHOLE[:50], WHOLE[50:], times=2)
    assert answer.count(b"HTTP/1.1 202 ") == 2


@pytest.mark.parametrize("sent", [START[:20], START, START + LENGTH + b"\r\n", WHOLE[:-1]])
def test_a_request_that_stays_incomplete(sent: bytes) -> None:
    parts = GatewayParts()
    # Long enough for the first bytes: a connection on which nothing has come by then gets no answer.
    with served(parts, request_timeout_s=1.0) as port, socket.create_connection(("127.0.0.1", port)) as one:
        one.settimeout(60)
        one.sendall(sent)
        answer = everything(one)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert parts.notifications.accepted == []


@pytest.mark.parametrize("data", [START + b"X: " + b"x" * 900, START + LENGTH + b"\r\n" + BODY])
def test_a_byte_now_and_then_does_not_help(data: bytes) -> None:
    with served(GatewayParts(), request_timeout_s=0.3) as port, socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(data[:-500])
        assert drip(one, (bytes([byte]) for byte in data[-500:]), 0.01).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_a_connection_on_which_nothing_is_asked_is_closed(sent: bytes) -> None:
    with served(GatewayParts(), request_timeout_s=0.2) as port, socket.create_connection(("127.0.0.1", port)) as one:
        one.settimeout(60)
        one.sendall(sent)
        assert everything(one) == b""


def test_connections_beyond_the_limit_get_503_at_once() -> None:
    with served(GatewayParts(), max_connections=2) as port:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as one,
            socket.create_connection(("127.0.0.1", port), timeout=60) as two,
        ):
            for connection in (one, two):
                connection.sendall(WHOLE)
                assert connection.recv(65_536).startswith(b"HTTP/1.1 202 ")
            with socket.create_connection(("127.0.0.1", port), timeout=60) as three:
                three.sendall(WHOLE)
                answer = everything(three)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"connection: close\r\nretry-after: 1" in answer
            one.sendall(WHOLE)
            assert one.recv(65_536).startswith(b"HTTP/1.1 202 ")
        deadline = time.monotonic() + 120
        while not exchange(port, WHOLE).startswith(b"HTTP/1.1 202 "):
            assert time.monotonic() < deadline


@pytest.mark.parametrize("sent", [b"", START, WHOLE[:-1]], ids=["nothing", "a part of a head", "a part of a body"])
def test_connections_without_a_request_make_room_and_those_with_one_stay(sent: bytes) -> None:
    with served(GatewayParts(), max_connections=3) as port, contextlib.ExitStack() as held:
        used, first, _ = (
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(3)
        )
        used.sendall(WHOLE)
        assert used.recv(65_536).startswith(b"HTTP/1.1 202 ")
        first.sendall(sent)
        assert exchange(port, WHOLE).startswith(b"HTTP/1.1 202 ")
        with contextlib.suppress(ConnectionError):
            assert everything(first) == b"", "the oldest was closed"
        used.sendall(WHOLE)
        assert used.recv(65_536).startswith(b"HTTP/1.1 202 ")


def test_a_huge_body_is_refused_unread_and_the_answer_arrives() -> None:
    with (
        served(GatewayParts(), max_body_bytes=10_000) as port,
        socket.create_connection(("127.0.0.1", port), timeout=60) as one,
    ):
        one.sendall(START + b"Content-Length: 100000000\r\n\r\n")
        sent = 0
        try:
            for _ in range(50):
                one.sendall(b" " * 100_000)
                sent += 100_000
        except OSError:
            pass
        answer = everything(one)
    assert sent > 1_000_000  # thrown away, or the answer would have been lost with the connection
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


def test_a_refused_head_does_not_overtake_answers() -> None:
    parts = GatewayParts()
    with served(parts, max_headers=16) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(WHOLE + START + b"X: y\r\n" * 20 + LENGTH + b"\r\n" + BODY)
        answer = everything(one)
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert b"connection: close" in answer
    assert answer.count(b"HTTP/1.1") == 1
    assert len(parts.notifications.accepted) == 1


def test_what_is_not_http_is_told_so_and_the_connection_ends() -> None:
    with served(GatewayParts()) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(b"\x16\x03\x01 TLS hello\r\n\r\n")
        assert everything(one).startswith(b"HTTP/1.1 400 ")
