"""Clients that send too much, too slowly or too often: raw bytes on sockets, and the answers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable

import pytest

from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts
from tests.support.served_app import BODY, LENGTH, NOTIFY, START, connected, everything, exchange, served
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def drip(connection: socket.socket, pieces: Iterable[bytes]) -> bytes:
    """Sends the pieces until there is an answer, and returns all of it."""
    connection.settimeout(0.01)
    for piece in pieces:
        try:
            connection.sendall(piece)
            received = connection.recv(65_536)
        except TimeoutError:
            continue
        connection.settimeout(60)
        return received + everything(connection) if received else received
    raise AssertionError("no answer")


def is_taken(connection: socket.socket) -> bool:
    connection.sendall(NOTIFY)
    return connection.recv(65_536).startswith(b"HTTP/1.1 202 ")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(START + b"X: " + b"x" * 3_000 + b"\r\n" + LENGTH, id="one large header"),
        pytest.param(START + b"".join(b"X-%d: y\r\n" % number for number in range(101)) + LENGTH, id="many headers"),
        pytest.param(b"POST /" + b"x" * 3_000 + b" HTTP/1.1\r\nHost: localhost\r\n" + LENGTH, id="a large address"),
    ],
)
@pytest.mark.parametrize("packet", [100_000, 500])
def test_a_head_that_is_too_large(parts: GatewayParts, head: bytes, packet: int) -> None:
    data = head + b"\r\n" + BODY
    with served(parts, max_header_bytes=2_048) as port:
        answer = exchange(port, *(data[at : at + packet] for at in range(0, len(data), packet)))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"connection: close" in answer
    assert parts.notifications.accepted == []


def test_endless_heads_large_bodies_and_other_protocols(parts: GatewayParts) -> None:
    large = soap.envelope(soap.notify(soap.message(payload=f"<n>{'x' * 20_000}</n>")))
    head = START + b"Content-Length: %d\r\n\r\n" % len(large)
    with served(parts, max_header_bytes=2_048) as port:
        with connected(port) as one:
            one.sendall(START + b"X: ")
            # One packet may exceed the limit, and a slow server reads many pieces as one.
            assert drip(one, [b"x" * 500] * 400).startswith(b"HTTP/1.1 431 ")
        answer = exchange(port, head + large[:9_000], large[9_000:] + NOTIFY[:50], NOTIFY[50:], times=2)
        assert answer.count(b"HTTP/1.1 202 ") == 2, "bodies are not limited like heads"
        with connected(port) as one:
            one.sendall(b"\x16\x03\x01 TLS hello\r\n\r\n")
            assert everything(one).startswith(b"HTTP/1.1 400 ")


def test_incomplete_requests_time_out(parts: GatewayParts) -> None:
    # Long enough for the first bytes: a connection without any bytes is closed without an answer.
    with served(parts, request_timeout_s=1.0) as port, contextlib.ExitStack() as held:
        waiting = []
        for sent in (START[:20], START, START + LENGTH + b"\r\n", NOTIFY[:-1], b"", b"\r\n"):
            one = held.enter_context(connected(port))
            one.sendall(sent)
            waiting.append((one, sent.strip()))
        for one, sent in waiting:
            answer = everything(one)
            assert answer.startswith(b"HTTP/1.1 408 ") if sent else answer == b"", sent
            assert answer.count(b"HTTP/1.1") == bool(sent)
    assert parts.notifications.accepted == []


@pytest.mark.parametrize("data", [START + b"X: " + b"x" * 900, NOTIFY], ids=["head", "body"])
def test_dripping_requests_time_out(parts: GatewayParts, data: bytes) -> None:
    with served(parts, request_timeout_s=0.3) as port, connected(port) as one:
        one.sendall(data[:-500])
        assert drip(one, (bytes([byte]) for byte in data[-500:])).startswith(b"HTTP/1.1 408 ")


def test_connections_beyond_the_limit_get_503_at_once(parts: GatewayParts) -> None:
    with served(parts, max_connections=2) as port:
        with connected(port) as one, connected(port) as refused:
            assert is_taken(one)
            refused.sendall(b"x\r\n\r\n")
            assert refused.recv(4096).startswith(b"HTTP/1.1 400 ")
            # It takes no place, and makes none.
            with connected(port) as two:
                assert is_taken(two)
                with connected(port) as three:
                    three.sendall(NOTIFY)
                    answer = everything(three)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"connection: close\r\nretry-after: 1" in answer
            assert is_taken(one)
        wait_until(lambda: exchange(port, NOTIFY).startswith(b"HTTP/1.1 202 "))


@pytest.mark.parametrize("sent", [b"", START, NOTIFY[:-1]], ids=["nothing", "a part of a head", "a part of a body"])
def test_connections_without_a_request_are_closed_for_others(parts: GatewayParts, sent: bytes) -> None:
    with served(parts, max_connections=3) as port, contextlib.ExitStack() as held:
        used, first, _ = (held.enter_context(connected(port)) for _ in range(3))
        assert is_taken(used)
        first.sendall(sent)
        assert exchange(port, NOTIFY).startswith(b"HTTP/1.1 202 ")
        with contextlib.suppress(ConnectionError):
            assert everything(first) == b"", "the oldest connection is closed"
        assert is_taken(used), "a used connection stays"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 100000000\r\n", b"413"),
        (b"Transfer-Encoding: chunked\r\n", b"413"),
        (b"Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n", b"415"),
        (b"Transfer-Encoding: chunked\r\nOrigin: https://page.example\r\n", b"403"),
    ],
)
def test_the_answer_to_a_huge_body_arrives(parts: GatewayParts, head: bytes, status: bytes) -> None:
    with served(parts, max_body_bytes=10_000) as port, connected(port) as one:
        one.sendall(START + head + b"\r\n")
        for _ in range(50):
            one.sendall(b"186a0\r\n%b\r\n" % (b" " * 100_000))  # read and dropped: a reset would lose the answer
        answer = everything(one)
    assert answer.startswith(b"HTTP/1.1 %b " % status)
    assert b"connection: close" in answer.lower()
