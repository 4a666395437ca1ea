"""The least of an HTTP/2 server: over TLS, it answers every request with 202 and remembers what was negotiated."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from types import TracebackType

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_STATUS_202 = b"\x08\x03202"  # literal without indexing; name 8 of the static table is :status


class Http2Server:
    """A context manager; one connection after another, each until its client closes it."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        tls.set_alpn_protocols(["h2", "http/1.1"])
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="http2", daemon=True)
        self.protocols: list[str | None] = []
        self.requests = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._listener.getsockname()[1]}/"

    def __enter__(self) -> Http2Server:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(120)

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            plain.settimeout(60)
            with plain, self._tls.wrap_socket(plain, server_side=True) as connection:
                self.protocols.append(connection.selected_alpn_protocol())
                try:
                    self._talk(connection)
                except (EOFError, OSError):
                    continue

    def _talk(self, connection: ssl.SSLSocket) -> None:
        if connection.selected_alpn_protocol() != "h2":
            # An HTTP/1.1 client sends its small request in one or two pieces.
            received = b""
            while b"<x/>" not in received:
                received += connection.recv(65536) or _gone()
            self.requests += 1
            connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return
        assert _exactly(connection, len(_PREFACE)) == _PREFACE
        connection.sendall(_frame(_SETTINGS, 0, 0))
        while True:
            length_and_kind, flags, stream = struct.unpack(">IBI", _exactly(connection, 9))
            _exactly(connection, length_and_kind >> 8)
            kind = length_and_kind & 0xFF
            if kind == _SETTINGS and not flags & _ACK:
                connection.sendall(_frame(_SETTINGS, _ACK, 0))
            elif kind in (_HEADERS, _DATA) and flags & _END_STREAM:
                self.requests += 1
                connection.sendall(_frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, _STATUS_202))


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def _exactly(connection: ssl.SSLSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data)) or _gone()
    return data


def _gone() -> bytes:
    raise EOFError
