"""Real HTTP subscribers for tests and benchmarks: a server that records its requests, with many kinds of faults.

The behaviour of a path is its first step, or the value set with `behave()` for the whole path:

    /status/503          that status, empty body           /slow/0.2     202 after this many seconds
    /hang                never an answer                   /drip/0.05    200, then a byte of body at this interval
    /close               closes in the middle of its answer's head       /cut         or its body
    /drop                closes without a byte of answer   /reset        the same with a TCP reset
    /huge/1000000        200 with this many bytes of body  /redirect     307 to /redirected
    /garbage             a response that is not HTTP       /stale        202, then closes the connection unannounced
    /retry-after/30      503 with that Retry-After         /half         500 and 202 in turn
    /later        202 with Arborcast-Result: later: the test sends the result to the push's Arborcast-Callback
    /picky/400/word      that status when the word is in the body, else 202
    anything else: 202, empty body

In a test: `with Receiver() as receiver: ... receiver.url("/a")`. As a process: `python -m tests.support.receiver`
prints its URL; `GET /_stats` answers JSON counts of requests. With --marks, `GET /_marks` answers
the values of all attributes `mark` in the bodies, and `/_stats` their number.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

import httptools

from tests.support.waiting import TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Received:
    """One request as received. `at` is seconds since the epoch, taken when its last byte was there; `behaviour` is
    the behaviour by which it was answered."""

    at: float
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    behaviour: str = ""


@dataclass
class _Journal:
    """Written by the server thread and read by the tests; `arrived` notifies waiting threads."""

    keep_bodies: bool = True
    marks: list[tuple[float, str, str]] | None = None
    marked: int = 0
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    halves: int = 0
    open: set[_Connection] = field(default_factory=set)
    behaviours: dict[str, str] = field(default_factory=dict)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    on_received: Callable[[Received], None] | None = None


NOTIFICATION_ID = "arborcast-notification-id"

_MARK = re.compile(rb'mark="([^"]*)"')

_ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"


def _answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class _Connection(asyncio.Protocol):
    """One client connection. Requests on it are answered in turn; the engine does not pipeline."""

    def __init__(self, journal: _Journal) -> None:
        self._journal = journal
        self._parser = httptools.HttpRequestParser(self)
        self._number = 0
        self._path = ""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._journal.connections += 1
        self._number = self._journal.connections
        self._journal.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._journal.open.discard(self)

    def data_received(self, data: bytes) -> None:
        # Java's client offers an upgrade to HTTP/2 in every request, and the parser would leave the body to that.
        data = data.replace(b"\r\nUpgrade: h2c\r\n", b"\r\n")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.write(_answer(400, b"", "Connection: close"))
            self.transport.close()

    def on_message_begin(self) -> None:
        self._path, self._headers, self._body = "", {}, []

    def on_url(self, url: bytes) -> None:
        self._path += url.decode("ascii")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._path.startswith("/_"):
            self.transport.write(_report(self._journal, self._path))
            return
        whole = b"".join(self._body)
        behaviour = self._behaviour(whole)
        if self._journal.marks is not None:
            marks = _MARK.findall(whole)
            self._journal.marks.append((time.time(), self._path, b",".join(marks).decode("ascii")))
            self._journal.marked += len(marks)
            self._respond(behaviour)
            return
        body = whole if self._journal.keep_bodies else b""
        received = Received(time.time(), self._path, self._headers, body, self._number, behaviour)
        if self._journal.on_received is not None:
            self._journal.on_received(received)
        else:
            with self._journal.arrived:
                self._journal.requests.append(received)
                self._journal.arrived.notify_all()
        self._respond(behaviour)

    def _behaviour(self, body: bytes) -> str:
        """The behaviour for this request; empty for 202."""
        behaviour = self._journal.behaviours.get(self._path, self._path.strip("/"))
        if behaviour.startswith("picky/"):
            _, status, word = behaviour.split("/")
            return f"status/{status}" if word.encode() in body else ""
        if behaviour == "half":
            self._journal.halves += 1
            return "status/500" if self._journal.halves % 2 else ""
        return behaviour

    def _respond(self, behaviour: str) -> None:
        kind, _, argument = behaviour.partition("/")
        write = self.transport.write
        match kind:
            case "status":
                write(_answer(int(argument), f"status {argument}".encode()))
            case "retry-after":
                write(_answer(503, b"", f"Retry-After: {unquote(argument)}"))
            case "later":
                write(_answer(202, b"", "Arborcast-Result: later"))
            case "slow":
                asyncio.get_running_loop().call_later(float(argument), write, _ACCEPTED)
            case "hang":
                pass
            case "close":
                write(b"HTTP/1.1 200 OK\r\nContent-Le")
                self.transport.close()
            case "cut":
                write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
                self.transport.close()
            case "drop":
                self.transport.close()
            case "reset":
                self._reset()
            case "stale":
                write(_ACCEPTED)
                self.transport.close()
            case "garbage":
                write(b"this is not HTTP at all\r\n\r\n")
                self.transport.close()
            case "redirect":
                write(_answer(307, b"", "Location: /redirected"))
            case "huge":
                write(_answer(200, b"x" * int(argument)))
            case "drip":
                write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                self._drip(b"x", float(argument))
            case "drip-headers":
                write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                self._drip(b"x", float(argument))
            case _:
                write(_ACCEPTED)

    def _drip(self, piece: bytes, interval: float) -> None:
        if not self.transport.is_closing():
            self.transport.write(piece)
            asyncio.get_running_loop().call_later(interval, self._drip, piece, interval)

    def _reset(self) -> None:
        # SO_LINGER of zero makes close() send RST instead of FIN.
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


def _report(journal: _Journal, path: str) -> bytes:
    match path:
        case "/_marks":
            received: object = journal.marks
        case "/_clear":
            journal.requests.clear()
            if journal.marks is not None:
                journal.marks.clear()
                journal.marked = 0
            received = {}
        case _:
            received = {
                "requests": len(journal.requests),
                "connections": journal.connections,
                "marks": journal.marked,
            }
    return _answer(200, json.dumps(received).encode(), "Content-Type: application/json")


class Receiver:
    """The server in a separate thread; a context manager. All public members may be used from any thread.

    With `on_received` requests are passed to it, in the server's thread, instead of being stored.
    """

    def __init__(
        self,
        port: int = 0,
        keep_bodies: bool = True,
        tls: ssl.SSLContext | None = None,
        marks: bool = False,
        more_ports: int = 0,
        on_received: Callable[[Received], None] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._host = host
        self._journal = _Journal(keep_bodies, [] if marks else None, on_received=on_received)
        self._more_ports = more_ports
        self.ports: list[int] = []
        self._tls = tls
        self.port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Receiver:
        """Listen; on the same port again after a `stop`."""
        listening = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening,), name="receiver", daemon=True)
        self._thread.start()
        if not listening.wait(TIMEOUT_S):
            raise TimeoutError(f"the receiver did not start to listen within {TIMEOUT_S:g} s")
        return self

    def stop(self) -> None:
        """Stop listening and close every connection."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(120)
            self._loop = None

    def __enter__(self) -> Receiver:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self, path: str = "/") -> str:
        """The URL of a path."""
        return f"{'https' if self._tls else 'http'}://{self._host}:{self.port}{path}"

    @property
    def requests(self) -> list[Received]:
        """All requests so far, in order of arrival."""
        with self._journal.arrived:
            return list(self._journal.requests)

    @property
    def connections(self) -> int:
        """How many connections were opened."""
        return self._journal.connections

    def received(self, path: str) -> list[Received]:
        """The requests to one path."""
        return [request for request in self.requests if request.path == path]

    def names(self, *paths: str) -> list[str]:
        """The notifications in the requests to these paths, path by path, in order of arrival."""
        requests = (request for path in paths for request in self.received(path))
        return [name for request in requests for name in request.headers[NOTIFICATION_ID].split(",")]

    def behave(self, path: str, behaviour: str) -> None:
        """From now on answer requests to `path` as described at the top, for instance `status/500`."""
        self._journal.behaviours[path] = behaviour

    def wait_for(self, count: int, path: str | None = None, timeout: float = TIMEOUT_S) -> list[Received]:
        """The requests (to `path`) once there are `count` of them. TimeoutError has the number of requests."""

        def enough() -> bool:
            return sum(path is None or r.path == path for r in self._journal.requests) >= count

        with self._journal.arrived:
            if not self._journal.arrived.wait_for(enough, timeout):
                there = sum(path is None or r.path == path for r in self._journal.requests)
                raise TimeoutError(f"{there} of {count} requests arrived at {path or 'any path'} within {timeout} s")
        return self.requests if path is None else self.received(path)

    def _run(self, listening: threading.Event) -> None:
        loop = asyncio.new_event_loop()
        self._loop = loop
        server = loop.run_until_complete(
            loop.create_server(
                lambda: _Connection(self._journal),
                self._host,
                self.port,
                reuse_address=True,
                backlog=1024,
                ssl=self._tls,
            )
        )
        self.port = server.sockets[0].getsockname()[1]
        self.ports = [self.port]
        more = [
            loop.run_until_complete(loop.create_server(lambda: _Connection(self._journal), "127.0.0.1", 0))
            for _ in range(self._more_ports)
        ]
        self.ports += [each.sockets[0].getsockname()[1] for each in more]
        listening.set()
        loop.run_forever()
        # A connection accepted just before has no connection object yet, only a task that creates one, and that task
        # fails, and leaks a socket, once the server is closed.
        while accepting := asyncio.all_tasks(loop):
            loop.run_until_complete(asyncio.gather(*accepting))
        for each in (server, *more):
            each.close()
        for connection in list(self._journal.open):
            connection.transport.abort()
        loop.run_until_complete(server.wait_closed())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@contextlib.contextmanager
def refusing_url() -> Iterator[str]:
    """A URL that refuses connections while the context lasts: its port is bound, and never listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}/"


def main() -> None:
    """Run until end of file on the standard input or a signal."""
    parser = argparse.ArgumentParser(description="A subscriber for measurements: answers 202 and counts.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--marks", action="store_true", help="remember the marks in the bodies instead of requests")
    parser.add_argument("--more-ports", type=int, default=0, help="listen on this many further ports, printed as well")
    arguments = parser.parse_args()
    receiver = Receiver(arguments.port, keep_bodies=False, marks=arguments.marks, more_ports=arguments.more_ports)
    with receiver:
        print(receiver.url(), *receiver.ports[1:], flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()


if __name__ == "__main__":
    main()
