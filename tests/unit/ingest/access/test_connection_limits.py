"""Through real sockets: who opens too many connections, and who does not read what it asked for."""

from __future__ import annotations

import contextlib
import socket
import time

from arborcast.ingest.access.settings import LimitSettings
from tests.support.gateway_parts import GatewayParts
from tests.support.served_app import exchange, served

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_one_address_has_so_many_connections_and_gets_new_ones_when_it_closes_some() -> None:
    with served(GatewayParts(), access=LimitSettings(connections_per_client=2)) as port:
        with contextlib.ExitStack() as open_ones:
            for _ in range(2):
                one = open_ones.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                one.sendall(LIVE)
                assert one.recv(4096).startswith(b"HTTP/1.1 200")
            refused = exchange(port, LIVE)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in refused
        deadline = time.monotonic() + 120
        while not exchange(port, LIVE).startswith(b"HTTP/1.1 200"):
            assert time.monotonic() < deadline, "connections that were closed still count"


def test_who_does_not_read_is_cut_off() -> None:
    parts = GatewayParts()
    # More than the kernel's buffers on both sides take.
    parts.gateway.descriptions = _Large()  # type: ignore[assignment]  # all that is asked of it
    with (
        served(parts, access=LimitSettings(send_timeout_s=0.2)) as port,
        socket.socket() as client,
    ):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET /wsn/NotificationBroker?wsdl HTTP/1.1\r\nHost: localhost\r\n\r\n")
        deadline = time.monotonic() + 120
        # Nothing is read meanwhile: that the connection is gone shows in what sending does.
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                client.sendall(b"x")
                time.sleep(0.02)
        assert time.monotonic() < deadline, "the connection is still there"


class _Large:
    def wsdl(self, *_: object) -> bytes:
        return b"<a>" + b"x" * 32_000_000 + b"</a>"
