"""HTTP under the application: uvicorn with httptools and uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import socket
import sys
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING

import uvicorn

from arborcast.ingest.access.proxies import NONE, Proxies
from arborcast.ingest.access.rates import PeerConnections
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.http.asgi import Receive, Scope, Send
from arborcast.ingest.http.http_protocol import GatewayProtocol, OpenConnections
from arborcast.ingest.http.inflight import RESERVATION, Inflight
from arborcast.ingest.http.listening import listen_on
from arborcast.ingest.http.tls import Acceptor, ServerTls
from arborcast.ingest.settings import GatewaySettings

if TYPE_CHECKING:
    # Loads all operations, which other servers have no use for.
    from arborcast.ingest.http.app import GatewayApp

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class GatewayServer(uvicorn.Server):
    """uvicorn's server with TLS of its own, for an application with logs and headers of its own."""

    def __init__(
        self,
        app: Asgi,
        protocol: Callable[..., asyncio.Protocol],
        settings: GatewaySettings,
        tls: ServerTls | None,
        trusted: Proxies,
    ) -> None:
        config = uvicorn.Config(
            app,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=settings.stop_timeout_s,  # type: ignore[arg-type]  # asyncio.wait_for takes it
        )
        super().__init__(config)
        self._make_protocol = protocol
        self._tls = tls
        self._trusted = trusted

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals belong to the process, which calls `stop`. uvicorn would raise the signal again after an orderly
        stop, and the exit status would be that of a kill."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on these sockets. uvicorn's own `startup` would accept one connection in each turn of the loop, and
        have no limit for TLS handshakes that stall."""
        acceptors = [
            Acceptor(listener, self._tls, self._protocol, self._trusted.connection_key) for listener in sockets or ()
        ]
        self.servers = acceptors  # type: ignore[assignment]  # closed like servers, by uvicorn
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        """The protocol for a connection; with TLS the handshake begins, and `connection_made` is called after it."""
        handshakes = None if self._tls is None else self._tls.handshakes
        return self._make_protocol(
            config=self.config, server_state=self.server_state, app_state={}, handshakes=handshakes
        )

    def stop(self) -> None:
        """Stop accepting, answer current requests, end; a second call ends at once."""
        self.force_exit = self.should_exit
        self.should_exit = True


def listen_for_workers(settings: GatewaySettings) -> list[socket.socket]:
    """A listening socket for each of `gateway.workers`, all on one port. Raises ConfigError.

    On Linux each has its own queue, and the kernel distributes connections evenly. The successor of a dead worker gets
    its socket with the waiting connections. Elsewhere all workers share one socket.
    """
    # Alone first: sharing would be granted to a second gateway of the same user as well.
    alone = listen(settings)
    if settings.workers == 1 or sys.platform != "linux":
        return [alone] * settings.workers
    port = alone.getsockname()[1]
    alone.close()
    taken = dataclasses.replace(settings, port=port)
    return [listen(taken, shared=True) for _ in range(settings.workers)]


def listen(settings: GatewaySettings, *, shared: bool = False) -> socket.socket:
    """A listening socket for HTTP. Raises ConfigError for an address that is in use or not local."""
    return listen_on(settings.host, settings.port, host_by="gateway.host", port_by="gateway.port", shared=shared)


def proxies(settings: GatewaySettings) -> Proxies:
    return Proxies(settings.trusted_proxies, settings.proxy_header)


def make_server(
    app: GatewayApp, settings: GatewaySettings, limits: LimitSettings | None = None, tls: ServerTls | None = None
) -> GatewayServer:
    """A server for the application; run it with `serve(sockets=[listen(settings)])`."""
    limits = limits or LimitSettings()
    trusted = proxies(settings)
    protocol = functools.partial(
        GatewayProtocol,
        limits=settings,
        inflight=app.inflight,
        peers=PeerConnections(limits.connections_per_client, trusted.connection_key),
        send_timeout_s=limits.send_timeout_s,
        others=OpenConnections(),
    )
    return GatewayServer(app, protocol, settings, tls, trusted)


def make_small_server(
    app: Asgi, settings: GatewaySettings, tls: ServerTls | None = None, trusted: Proxies = NONE
) -> GatewayServer:
    """A server for another application, with the bounds and time limits of `settings`, which it uses for nothing else.
    Idle connections do not exclude new clients: the oldest is closed for a new one."""
    inflight = Inflight(2 * settings.max_body_bytes)  # bodies in parts get a little more than half of it

    async def released(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        finally:
            scope[RESERVATION].release()

    protocol = functools.partial(
        GatewayProtocol, limits=settings, inflight=inflight, others=OpenConnections(), makes_room=True
    )
    return GatewayServer(released, protocol, settings, tls, trusted)
