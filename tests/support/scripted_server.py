"""A server of plain sockets that follows a script: for peers that break their protocol."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Self


class ScriptedServer:
    """A context manager. Serves each connection in a separate thread, and closes it when the script returns or fails
    with an OSError."""

    def __init__(
        self, script: Callable[[socket.socket], object], scheme: str = "http", tls: ssl.SSLContext | None = None
    ) -> None:
        self._script, self._tls = script, tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"https://localhost:{self.port}" if tls else f"{scheme}://127.0.0.1:{self.port}"
        self.connections = self.ended = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.settimeout(60)
            with self._tls.wrap_socket(connection, server_side=True) if self._tls else connection as served:
                self._script(served)
        self.ended += 1


def request_on(connection: socket.socket, end: bytes = b"<x/>") -> bytes:
    """All bytes until the end of a request, or of the connection."""
    request = b""
    while end not in request and (more := connection.recv(65_536)):
        request += more
    return request
