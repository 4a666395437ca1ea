"""The gateway's application behind its real HTTP server, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import threading
from collections.abc import Iterator
from typing import Any, cast

import uvicorn

from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.http.serving import listen, make_server
from arborcast.ingest.http.tls import ServerTls
from arborcast.ingest.settings import GatewaySettings
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts

BODY = soap.envelope(soap.notify())
START = b"POST /wsn/NotificationBroker HTTP/1.1\r\nHost: localhost\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
NOTIFY = START + LENGTH + b"\r\n" + BODY
"""A complete request."""


@contextlib.contextmanager
def running(server: uvicorn.Server, listener: socket.socket) -> Iterator[int]:
    """The port of a server that runs in a thread until the block ends."""
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive(), "the server did not stop"


@contextlib.contextmanager
def served(
    parts: GatewayParts, *, access: LimitSettings | None = None, tls: ServerTls | None = None, **limits: float
) -> Iterator[int]:
    """The port of the application until the block ends; `limits` are settings of the gateway.

    Its time limit for the rest of a request is longer than the waits of tests, unless `limits` set it.
    """
    settings = dataclasses.replace(GatewaySettings(port=0, request_timeout_s=600), **cast(dict[str, Any], limits))
    listener = listen(settings)
    with running(make_server(parts.app, settings, access, tls), listener) as port:
        yield port


@contextlib.contextmanager
def served_url(parts: GatewayParts) -> Iterator[str]:
    """As `served`: the URL, which is also the gateway's own address."""
    with served(parts) as port:
        parts.gateway.own.base = f"http://127.0.0.1:{port}"
        yield parts.gateway.own.base


def exchange(port: int, *pieces: bytes, until: bytes = b"\r\n\r\n", times: int = 1) -> bytes:
    """Send raw bytes, one packet for each piece, and read until `until` was received this often."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
        received = b""
        while received.count(until) < times:
            data = connection.recv(65_536)
            if not data:
                break
            received += data
        return received


def connected(port: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection to a port of this machine."""
    return socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0))


def everything(connection: socket.socket) -> bytes:
    """All bytes until the peer closes the connection."""
    received = b""
    while data := connection.recv(65_536):
        received += data
    return received
