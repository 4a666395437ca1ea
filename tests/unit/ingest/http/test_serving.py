"""Raw bytes on the socket: what uvicorn and httptools must do for us, and what we do in their place."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
import uvloop

from arborcast.core.errors import ConfigError
from arborcast.ingest.http.serving import listen, make_server
from arborcast.ingest.settings import GatewaySettings
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts
from tests.support.served_app import exchange, served

pytestmark = pytest.mark.slow

BODY = soap.envelope(soap.notify())

# As the JDK's HTTP client, and so Apache CXF, sends every POST.
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"


def head(extra: bytes = b"", length: int | None = len(BODY)) -> bytes:
    sized = b"Content-Length: %d\r\n" % length if length is not None else b"Transfer-Encoding: chunked\r\n"
    return b"POST /wsn/NotificationBroker HTTP/1.1\r\nHost: localhost\r\n" + extra + sized + b"\r\n"


def chunked(body: bytes) -> bytes:
    half = len(body) // 2
    parts = (body[:half], body[half:])
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([head() + BODY], id="in one packet"),
        pytest.param([head(), BODY], id="head and body apart"),
        pytest.param([head(length=None), chunked(BODY)], id="chunked"),
        pytest.param([head(H2C) + BODY], id="with an offer of h2c"),
        pytest.param([head(H2C), BODY], id="with an offer of h2c, body apart"),
        pytest.param([head(H2C)[:70], head(H2C)[70:], BODY[:9], BODY[9:]], id="with an offer of h2c, in pieces"),
        pytest.param([head(H2C, None), chunked(BODY)], id="with an offer of h2c, chunked"),
        pytest.param([head(b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n") + BODY], id="websocket"),
    ],
)
def test_the_body_arrives(pieces: list[bytes]) -> None:
    parts = GatewayParts()
    with served(parts) as port:
        answer = exchange(port, *pieces)
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert [one.payload for one in parts.notifications.accepted] == [b'<o:order xmlns:o="urn:o">1</o:order>']


def test_a_connection_is_kept_over_requests_until_the_client_or_a_body_too_large_ends_it() -> None:
    parts = GatewayParts()
    with served(parts) as port:
        answer = exchange(port, head(H2C) + BODY + head() + BODY + head(H2C) + BODY, times=3)
        assert answer.count(b"HTTP/1.1 202 ") == len(parts.notifications.accepted) == 3
        answer = exchange(port, head(b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n") + BODY)
        assert b"connection: close" in answer.lower()
        answer = exchange(port, head(length=GatewaySettings().max_body_bytes + 1))
    assert (answer.startswith(b"HTTP/1.1 413 "), b"connection: close" in answer.lower()) == (True, True)


def test_a_busy_port_and_an_address_of_somebody_else_are_named_with_their_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port}: .*gateway\.port"):
            listen(GatewaySettings(port=port))
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.1"):
        listen(GatewaySettings(host="203.0.113.1", port=0))


def test_connections_that_wait_are_accepted_together() -> None:
    settings = GatewaySettings(port=0)
    listener = listen(settings)
    server = make_server(GatewayParts().app, settings)

    async def accepted() -> int:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0)
        for _ in range(8):  # the event loop needs some turns for each, and accepts one by itself in each of them
            await asyncio.sleep(0)
        found = len(server.server_state.connections)
        server.stop()
        server.stop()
        await serving
        return found

    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection(listener.getsockname(), timeout=60))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        assert runner.run(accepted()) == 40
