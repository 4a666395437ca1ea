"""HTTP under the application: uvicorn with httptools and uvloop, and the one thing that they get wrong for us."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import socket
import sys
from collections.abc import Generator

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ingest.app import GatewayApp
from ingest.settings import GatewaySettings
from topic_model.errors import ConfigError

# Connections that wait to be accepted; beyond it the kernel makes clients try again after a second.
_BACKLOG = 1_024

# Headers of an offer to upgrade, which are also the words that announce them in the Connection header.
_UPGRADE = frozenset({b"upgrade", b"http2-settings"})


class GatewayProtocol(HttpToolsProtocol):
    """HTTP/1.1 that takes no upgrades, and says so by ignoring them, as RFC 9110 (7.8) allows.

    Java's HTTP client offers `Upgrade: h2c` with every POST. httptools takes any Upgrade for the end of HTTP on the
    connection: it reports a message without body and reads no further. So when that happens, nothing of this message is
    passed on, and it is parsed again by a new parser with the offer left out.
    """

    def data_received(self, data: bytes) -> None:
        """What came from the socket."""
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
                data = self._head_without_upgrade() + rest
                self.parser = httptools.HttpRequestParser(self)
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _head_without_upgrade(self) -> bytes:
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + self.parser.get_http_version().encode()]
        for name, value in self.headers:
            if name in _UPGRADE:
                continue
            if name == b"connection":
                kept = [option for option in value.split(b",") if option.strip().lower() not in _UPGRADE]
                value = b",".join(kept)
            lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])


class GatewayServer(uvicorn.Server):
    """uvicorn's server, stopped by `stop` alone: signals belong to the process that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """uvicorn would raise the signal again after an orderly stop, and the exit status would say killed."""
        yield

    def stop(self) -> None:
        """Stop accepting, answer what is under way, end; a second call ends at once."""
        self.force_exit = self.should_exit
        self.should_exit = True

    def stop_on_signals(self) -> None:
        """Have SIGTERM and SIGINT call `stop`. On the event loop, in the main thread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)


def listen_for_workers(settings: GatewaySettings) -> list[socket.socket]:
    """A listening socket for each of `gateway.workers`, all on one port. Raises ConfigError.

    On Linux each has its own queue, and the kernel deals out connections evenly. Who holds the sockets can give one to
    the successor of a worker that died, with all that waits in it. Elsewhere it is one socket for all.
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
    """A listening socket. Raises ConfigError for an address that is in use or not ours."""
    host, port = settings.host or "0.0.0.0", settings.port  # noqa: S104  # an operator's choice
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"gateway.host = {host!r} is not an address to listen on: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with gateway.port"
        ) from error
    listener.setblocking(False)
    return listener


def make_server(app: GatewayApp, settings: GatewaySettings) -> GatewayServer:
    """A server for the application; run it with `serve(sockets=[listen(settings)])`."""
    return GatewayServer(
        uvicorn.Config(
            app,
            http=GatewayProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            limit_concurrency=settings.max_connections,
            timeout_keep_alive=settings.keep_alive_s,
            # uvicorn's annotation says whole seconds; it goes to asyncio.wait_for.
            timeout_graceful_shutdown=settings.stop_timeout_s,  # type: ignore[arg-type]
        )
    )
