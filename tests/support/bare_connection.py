"""One connection of the gateway's protocol without a socket: packets go in, and what is written is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from arborcast.ingest.http.http_protocol import GatewayProtocol
from arborcast.ingest.http.inflight import RESERVATION, Inflight
from arborcast.ingest.settings import GatewaySettings

Application = Callable[[Any, Any, Any], Awaitable[None]]

Asked = tuple[str, str, bytes, bool]
"""Method, path, body, and whether it came as a whole."""


class Wire(asyncio.Transport):
    """Keeps what is written, and says whether the protocol reads."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Kept until the end."""
        if not self.closed:
            self.written += data

    def can_write_eof(self) -> bool:
        """As sockets can."""
        return True

    def write_eof(self) -> None:
        """Nothing can follow."""
        self.closed = True

    def close(self) -> None:
        """Nothing can follow."""
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self.closed

    def pause_reading(self) -> None:
        """As of a socket."""
        self.reading = False

    def resume_reading(self) -> None:
        """As of a socket."""
        self.reading = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Nobody is at the other end."""
        return default


class Noting:
    """An application that notes what it is asked and answers `ok`, while `hold` is set only when that is over."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.headers: list[list[tuple[bytes, bytes]]] = []
        self.hold: asyncio.Event | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        body, more, whole = b"", True, True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            whole = message["type"] == "http.request"
        scope[RESERVATION].release()
        self.asked.append((scope["method"], scope["path"], body, whole))
        self.headers.append(scope["headers"])
        if self.hold is not None:
            await self.hold.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The one loop of all of them, which only runs in `spin`."""
    return asyncio.new_event_loop()


@cache
def _config() -> uvicorn.Config:
    config = uvicorn.Config(lambda: None, http="httptools", ws="none", lifespan="off", log_config=None)
    config.load()
    return config


def spin(turns: int = 4) -> None:
    """Let the loop go round so many times."""
    for _ in range(turns):
        loop().call_soon(loop().stop)
        loop().run_forever()


class BareConnection:
    """A connection that is open until `lose`."""

    def __init__(self, app: Application, limits: GatewaySettings) -> None:
        self._inflight = Inflight(limits.inflight_bytes)
        self._state = ServerState()
        self.wire = Wire()
        self._idle: dict[GatewayProtocol, None] = {}
        self.protocol = GatewayProtocol(
            _config(), self._state, {}, loop(), limits=limits, inflight=self._inflight, idle=self._idle
        )
        self.protocol.app = app
        self.protocol.connection_made(self.wire)

    def send(self, packet: bytes, turns: int = 4) -> None:
        """What the socket would give, if it were read from."""
        if not self.wire.closed:
            assert self.wire.reading, "nobody reads"
            self.protocol.data_received(packet)
            spin(turns)

    def settle(self) -> None:
        """Wait until no request waits for its turn."""
        while self.protocol.pipeline and not self.wire.closed:
            waits = len(self.protocol.pipeline)
            spin()
            assert len(self.protocol.pipeline) < waits, "a request waits for ever"
        spin()

    @property
    def answered(self) -> bytes:
        """All that was written."""
        return bytes(self.wire.written)

    def lose(self) -> None:
        """The other end hangs up; nothing of the connection may be left."""
        self.protocol.connection_lost(None)
        spin()
        assert not self._state.connections
        assert not self._state.tasks
        assert not self._idle
        assert not self._inflight.taken, "memory is reserved that nobody has"
