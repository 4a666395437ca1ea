"""Raw bytes on sockets: requirements on uvicorn and httptools, and the gateway's additions."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest
import uvloop

from arborcast.core.errors import ConfigError
from arborcast.ingest.http.asgi import Receive, Scope, Send, read_body, send_answer
from arborcast.ingest.http.serving import GatewayServer, listen, make_server, make_small_server
from arborcast.ingest.settings import GatewaySettings
from tests.support.gateway_parts import GatewayParts
from tests.support.served_app import BODY, LENGTH, NOTIFY, START, connected, exchange, running, served

pytestmark = pytest.mark.slow

# Sent with each POST by the JDK's HTTP client, and so by Apache CXF.
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"


def head(extra: bytes = b"", size: bytes = LENGTH) -> bytes:
    return START + extra + size + b"\r\n"


def test_keep_alive(parts: GatewayParts) -> None:
    with served(parts) as port:
        answer = exchange(port, head(H2C) + BODY + NOTIFY + head(H2C) + BODY, times=3)
        assert answer.count(b"HTTP/1.1 202 ") == len(parts.notifications.accepted) == 3
        answer = exchange(port, head(b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n") + BODY)
        assert b"connection: close" in answer.lower()
        answer = exchange(port, head(size=b"Content-Length: %d\r\n" % (GatewaySettings().max_body_bytes + 1)))
    assert (answer.startswith(b"HTTP/1.1 413 "), b"connection: close" in answer.lower()) == (True, True)


def test_settings_of_an_unusable_address_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port}: .*gateway\.port"):
            listen(GatewaySettings(port=port))
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.1"):
        listen(GatewaySettings(host="203.0.113.1", port=0))


def test_waiting_connections_are_accepted_together(parts: GatewayParts) -> None:
    settings = GatewaySettings(port=0)
    listener = listen(settings)
    server = make_server(parts.app, settings)

    async def accepted() -> int:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0)
        for _ in range(8):  # too few turns to accept 40 connections one by one
            await asyncio.sleep(0)
        found = len(server.server_state.connections)
        server.stop()
        server.stop()
        await serving
        return found

    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(connected(listener.getsockname()[1]))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        assert runner.run(accepted()) == 40


def sized(length: int) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length


async def small_app(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_body(scope["headers"], receive, 1_000_000)
    await send_answer(send, 200, b"%d bytes\n" % len(body or b""), b"text/plain")


@contextlib.contextmanager
def serving_small(settings: GatewaySettings) -> Iterator[tuple[int, GatewayServer]]:
    """The server of the console and the administrator."""
    listener = listen(settings)
    server = make_small_server(small_app, settings)
    with running(server, listener) as port:
        yield port, server


@pytest.mark.parametrize("sent", [b"", b"GET / HT", sized(100_000) + b"x" * 70_000], ids=["nothing", "head", "body"])
def test_a_small_server_closes_incomplete_requests_for_new_ones(sent: bytes) -> None:
    settings = GatewaySettings(port=0, max_connections=8, request_timeout_s=600)
    with serving_small(settings) as (port, server), contextlib.ExitStack() as held:
        first = held.enter_context(connected(port))
        first.sendall(sent)
        for _ in range(3 * settings.max_connections):
            held.enter_context(connected(port)).sendall(sent)
        assert exchange(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionError):
            assert first.recv(1) == b"", "the oldest connection is closed"
        assert len(server.server_state.connections) <= settings.max_connections + 1


def test_a_small_server_closes_idle_connections_and_frees_memory() -> None:
    with serving_small(GatewaySettings(port=0, request_timeout_s=0.1)) as (port, _):
        with connected(port) as idle:
            assert idle.recv(1) == b""
        assert b" 408 " in exchange(port, sized(100_000) + b"x" * 70_000)
    with serving_small(GatewaySettings(port=0, max_body_bytes=200_000)) as (port, _):
        for _ in range(5):  # more than the budget in total
            assert b"150000 bytes" in exchange(port, sized(150_000), b"x" * 150_000, until=b"bytes\n")
