"""The listener's HTTP/1.1 server, with the standard library alone: the client does not depend on a web server.

A request with an ambiguous length (RFC 9112, 6.3) is answered 400 and its connection closed, since later bytes could be
a smuggled request.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Self

from arborcast.core.log_limit import LogLimit
from arborcast.core.security.ip_addresses import in_url
from arborcast.core.security.web_pages import is_of_browser
from arborcast.core.threads import start_thread

MAX_BODY = 64 * 1024 * 1024

_BACKLOG = 128

# The maximum wait of a stop for running callbacks.
_STOP_S = 1.0

# Limit of the bodies of all connections together; above it requests are answered 503.
_INFLIGHT = 4 * MAX_BODY

# For incomplete requests and idle connections.
_READ_TIMEOUT_S = 30

# The remainder of a refused request is read for this time: closing a connection with unread bytes loses the answer.
_LINGER_S = 2.0

_MAX_HEAD = 64 * 1024
_MAX_CHUNK_LINE = 4_096
_MAX_TRAILERS = 16 * 1024

# Iterations of the event loop from accepting a connection to the start of its task; three in CPython's.
_TURNS = 5

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST = re.compile(rb"(" + _TOKEN + rb") [!-~]+ HTTP/1\.([01])")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):([\t\x20-\x7e\x80-\xff]*)")
_LENGTH = re.compile(r"[0-9]{1,15}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(?:;[\t\x20-\x7e\x80-\xff]*)?")


@dataclass(frozen=True)
class Response:
    """The answer to a push."""

    status: int
    body: bytes = b""
    content_type: str = ""
    headers: Sequence[tuple[str, str]] = ()


NO_PAGES = Response(
    403, b"pushes are taken from brokers; requests of web pages are refused\n", "text/plain; charset=utf-8"
)
"""The answer to a browser, which sends POST requests of any page to any address, loopback included."""

Handle = Callable[[Mapping[str, str], bytes], Awaitable[Response]]
"""Answers a POST, from its headers by names in lower case, and its body."""


class _Refused(Exception):
    """The request is refused, and the connection closed."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True)
class _Head:
    method: bytes
    headers: Mapping[str, str]
    keep_alive: bool


def _read_head(head: bytes) -> _Head:
    """A request's head, up to the empty line. Raises _Refused."""
    request, *lines = head.removeprefix(b"\r\n").removesuffix(b"\r\n\r\n").split(b"\r\n")
    start = _REQUEST.fullmatch(request)
    if start is None:
        raise _Refused(400)
    method, minor = start.groups()
    headers: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise _Refused(400)
        name, value = field[1].decode("ascii").lower(), field[2].decode("latin-1").strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    # With both headers the length is ambiguous; and untrusted bodies are not decompressed.
    if coding is not None and (coding.lower() != "chunked" or length is not None or minor == b"0"):
        raise _Refused(400)
    if length is not None and _LENGTH.fullmatch(length) is None:
        raise _Refused(400)
    options = {option.strip() for option in headers.get("connection", "").lower().split(",")}
    return _Head(method, headers, "close" not in options if minor == b"1" else "keep-alive" in options)


class _Reservation:
    """The bytes that one request has reserved."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._size = 0

    def add(self, size: int) -> None:
        """Raises _Refused."""
        if self._size + size > MAX_BODY:
            raise _Refused(413)
        if size > self._server.free_bytes:
            raise _Refused(503)
        self._server.free_bytes -= size
        self._size += size

    def release(self) -> None:
        self._server.free_bytes += self._size
        self._size = 0


async def _read_body(
    head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reservation: _Reservation
) -> bytes:
    chunked = "transfer-encoding" in head.headers
    size = int(head.headers.get("content-length", "0"))
    reservation.add(size)
    if head.headers.get("expect", "").lower() == "100-continue" and (chunked or size):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if not chunked:
        return await reader.readexactly(size)
    parts = bytearray()
    while True:
        found = _CHUNK.fullmatch(await _line(reader, _MAX_CHUNK_LINE, 400))
        if found is None:
            raise _Refused(400)
        size = int(found[1], 16)
        if not size:
            break
        reservation.add(size)
        parts += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise _Refused(400)
    left = _MAX_TRAILERS
    while trailer := await _line(reader, left, 431):
        left -= len(trailer) + 2
    return bytes(parts)


async def _line(reader: asyncio.StreamReader, longest: int, status: int) -> bytes:
    try:
        line = await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError as error:
        raise _Refused(status) from error
    if len(line) > longest:
        raise _Refused(status)
    return line[:-2]


def _write(writer: asyncio.StreamWriter, response: Response, *, keep_alive: bool) -> None:
    lines = [
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
        f"Date: {formatdate(usegmt=True)}",
        f"Content-Length: {len(response.body)}",
    ]
    if response.content_type:
        lines.append(f"Content-Type: {response.content_type}")
    lines += [f"{name}: {value}" for name, value in response.headers]
    if response.status == 405:
        lines.append("Allow: POST")
    if response.status == 503:
        lines.append("Retry-After: 1")
    if not keep_alive:
        lines.append("Connection: close")
    writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + response.body)


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read the remainder of a refused request, so that the answer arrives."""
    await writer.drain()
    writer.write_eof()
    async with asyncio.timeout(_LINGER_S):
        while await reader.read(_MAX_HEAD):
            pass


async def in_thread(name: str, work: Callable[[], Response]) -> Response:
    """The result of `work`, which may block; it runs in a new daemon thread. 500 if that ends otherwise, as by
    SystemExit."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Response] = loop.create_future()

    def settle(response: Response) -> None:
        if not answer.done():
            answer.set_result(response)

    def run() -> None:
        response = Response(500)
        try:
            response = work()
        finally:
            # The loop may be closed already.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, response)

    start_thread(name, run)
    return await answer


class Server:
    """An HTTP server in its own thread. Port 0 means a free port."""

    def __init__(self, handle: Handle, port: int, host: str, name: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._host, self._port = self._socket.getsockname()[:2]
        self._handle = handle
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._answering: set[asyncio.StreamWriter] = set()
        self.free_bytes = _INFLIGHT
        """Of the limit for bodies."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._stopping = asyncio.Event()
        self._log_limit = LogLimit(10)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._port)

    @property
    def url(self) -> str:
        """The address for a ConsumerReference."""
        return f"http://{in_url(self._host)}:{self.port}/"

    def start(self) -> None:
        """Start receiving."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Stop receiving."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._failed)
        server = await asyncio.start_server(self._accepted, sock=self._socket, limit=_MAX_HEAD)
        self._ready.set()
        await self._stopping.wait()
        # Connections that were just accepted must have their tasks before the server is closed: asyncio would lose
        # them.
        if sys.platform != "win32":  # its event loop has no readers
            self._loop.remove_reader(self._socket)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        server.close()
        await self._end_connections()

    async def _end_connections(self) -> None:
        """Wait for running requests, and close all connections."""
        for writer in self._tasks.values():
            if writer not in self._answering:
                writer.transport.abort()
        if answering := [task for task, writer in self._tasks.items() if writer in self._answering]:
            await asyncio.wait(answering, timeout=_STOP_S)
        for task, writer in self._tasks.items():
            writer.transport.abort()
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connection(reader, writer))
        self._tasks[task] = writer
        task.add_done_callback(self._tasks.pop)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A broken or idle connection is closed; the broker repeats an unanswered push.
        with contextlib.closing(writer), contextlib.suppress(OSError, EOFError, TimeoutError):
            try:
                while await self._exchange(reader, writer):
                    pass
            except _Refused as refused:
                _write(writer, Response(refused.status), keep_alive=False)
                await _linger(reader, writer)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request; returns whether another one may follow. Raises _Refused."""
        async with asyncio.timeout(_READ_TIMEOUT_S):
            try:
                head = _read_head(await reader.readuntil(b"\r\n\r\n"))
            except asyncio.LimitOverrunError as error:
                raise _Refused(431) from error
        reservation = _Reservation(self)
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                body = await _read_body(head, reader, writer, reservation)
            self._answering.add(writer)
            if head.method != b"POST":
                response = Response(405)
            elif is_of_browser(head.headers):
                response = NO_PAGES
            else:
                response = await self._handle(head.headers, body)
            keep_alive = head.keep_alive and not self._stopping.is_set()
            _write(writer, response, keep_alive=keep_alive)
            await writer.drain()
        finally:
            self._answering.discard(writer)
            reservation.release()
        return keep_alive

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # Without free file descriptors, asyncio reports a hundred failed accepts a second.
        if self._log_limit.passes("loop"):
            loop.default_exception_handler(context)
