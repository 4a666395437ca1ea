"""One connection of the gateway's protocol without a socket: packets are passed in, written bytes are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from arborcast.ingest.http.http_protocol import GatewayProtocol, OpenConnections
from arborcast.ingest.http.inflight import RESERVATION, Inflight
from arborcast.ingest.settings import GatewaySettings

Application = Callable[[Any, Any, Any], Awaitable[None]]

Received = tuple[str, str, bytes, bool]
"""Method, path, body, and whether the request was complete."""


class Wire(asyncio.Transport):
    """A transport that stores written bytes and has the state of reading."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = self.aborted = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        """No peer address."""
        return default


class Noting:
    """An application that records each request and answers `ok`; `hold` is set except while it waits."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.headers: list[list[tuple[bytes, bytes]]] = []
        self.hold: asyncio.Event | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more, whole = b"", True, True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            whole = message["type"] == "http.request"
        scope[RESERVATION].release()
        self.requests.append((scope["method"], scope["path"], body, whole))
        self.headers.append(scope["headers"])
        if self.hold is not None:
            await self.hold.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The one loop of all connections; it runs only in `spin`."""
    return asyncio.new_event_loop()


@cache
def _config() -> uvicorn.Config:
    config = uvicorn.Config(lambda: None, http="httptools", ws="none", lifespan="off", log_config=None)
    config.load()
    return config


def spin(turns: int = 4) -> None:
    """Run this number of iterations of the loop."""
    for _ in range(turns):
        loop().call_soon(loop().stop)
        loop().run_forever()


class BareConnection:
    """A connection that is open until `lose`."""

    def __init__(self, app: Application, limits: GatewaySettings, send_timeout_s: float = 30.0) -> None:
        self._inflight = Inflight(limits.inflight_bytes)
        self._state = ServerState()
        self.wire = Wire()
        self._others = OpenConnections()
        self.protocol = GatewayProtocol(
            _config(),
            self._state,
            {},
            loop(),
            limits=limits,
            inflight=self._inflight,
            others=self._others,
            send_timeout_s=send_timeout_s,
        )
        self.protocol.app = app
        self.protocol.connection_made(self.wire)

    def send(self, packet: bytes, turns: int = 4) -> None:
        """Receive data, as from the socket."""
        if not self.wire.closed:
            assert self.wire.reading, "the transport is paused"
            self.protocol.data_received(packet)
            spin(turns)

    def settle(self) -> None:
        """Wait until no request is queued."""
        while self.protocol.pipeline and not self.wire.closed:
            waits = len(self.protocol.pipeline)
            spin()
            assert len(self.protocol.pipeline) < waits, "a request stays in the queue"
        spin()

    @property
    def answered(self) -> bytes:
        """All bytes written."""
        return bytes(self.wire.written)

    def lose(self) -> None:
        """The peer disconnects; all resources of the connection must be released."""
        self.protocol.connection_lost(None)
        spin()
        assert not self._state.connections
        assert not self._state.tasks
        assert self._others == OpenConnections()
        assert not self._inflight.taken, "reserved memory without a request"
