"""The server of the console and the administrator: connections without a request shut no client out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from arborcast.ingest.http.asgi import Receive, Scope, Send, read_body, send_answer
from arborcast.ingest.http.serving import GatewayServer, listen, make_small_server
from arborcast.ingest.settings import GatewaySettings
from tests.support.served_app import exchange

pytestmark = pytest.mark.slow

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

SIZED = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 150000\r\n\r\n"

PART = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"x" * 70_000


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_body(scope["headers"], receive, 1_000_000)
    await send_answer(send, 200, b"%d bytes\n" % len(body or b""), b"text/plain")


@contextlib.contextmanager
def serving(settings: GatewaySettings) -> Iterator[tuple[int, GatewayServer]]:
    listener = listen(settings)
    server = make_small_server(app, settings)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], server
    finally:
        server.stop()
        thread.join(120)
        assert not thread.is_alive()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", PART], ids=["nothing", "a part of a head", "a part of a body"])
def test_connections_that_bring_no_request_make_room(sent: bytes) -> None:
    settings = GatewaySettings(port=0, max_connections=8, request_timeout_s=600)
    with serving(settings) as (port, server), contextlib.ExitStack() as held:
        first = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        first.sendall(sent)
        for _ in range(3 * settings.max_connections):
            one = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            one.sendall(sent)
        assert exchange(port, GET).startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionError):
            assert first.recv(1) == b"", "the oldest was closed"
        assert len(server.server_state.connections) <= settings.max_connections + 1


def test_a_connection_that_sends_nothing_is_closed_after_a_time() -> None:
    with serving(GatewaySettings(port=0, request_timeout_s=0.1)) as (port, _):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as idle:
            assert idle.recv(1) == b""
        assert b" 408 " in exchange(port, PART)


def test_memory_for_bodies_is_given_back() -> None:
    settings = GatewaySettings(port=0, max_body_bytes=200_000)
    body = b"x" * 150_000
    with serving(settings) as (port, _):
        for _ in range(5):  # more than fit at a time
            answer = exchange(
                port, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 150000\r\n\r\n", body, until=b"bytes\n"
            )
            assert b"150000 bytes" in answer
