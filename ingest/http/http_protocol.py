"""HTTP/1.1 on one connection: uvicorn's protocol with corrections, and bounds for hostile clients.

Bounded are the size of a request's head and of everything else besides the body (trailers, chunk extensions), the
number of headers, the time until a request is complete (a client that sends a byte every few seconds occupies nothing
for long), the time for which a client may leave its answer unread, the number of pipelined requests, and the number of
connections, in total and from one address. Beyond that number the oldest connection without a complete request so far
or, by an option of the server, the one that is idle for longest is closed for a new one; without such a connection the
new one is refused. The application bounds the size of bodies. A request in one packet, as nearly all are, costs only a
few additions for these checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import re
import sys
import termios
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from arborcast.ingest.access.gate import CERTIFICATE
from arborcast.ingest.access.rates import UNLIMITED, PeerConnections
from arborcast.ingest.http.asgi import UNACKNOWLEDGED, Receive, Scope, Send, header
from arborcast.ingest.http.inflight import RESERVATION, SMALL, Inflight, Reservation
from arborcast.ingest.http.tls import Handshakes
from arborcast.ingest.settings import GatewaySettings

# Headers of an offer to upgrade, which are also the words that announce them in the Connection header.
_UPGRADE = frozenset({b"upgrade", b"http2-settings"})

# After a refusal in the middle of a request: time for the client to read it. An immediate close would make the kernel
# discard the answer because of unread data.
_LINGER_S = 2.0

# RFC 3986: an address in brackets, or a name (it may be empty); then an optional port.
_HOST = re.compile(rb"(?:\[[\w:.%~-]*+\]|[\w.~%!$&'()*+,;=-]*+)(?::[0-9]*+)?+")

_RETRY_AFTER = b"retry-after: 1\r\n"
_ALLOW = b"allow: GET, HEAD, POST\r\n"

# Maximum number of pipelined requests of a connection. Hardly any client pipelines, and a packet has room for
# thousands.
_AHEAD = 64


def _ours(scope: object) -> dict[str, Any]:
    """A request's scope, for keys of the gateway: uvicorn's type has its own keys only."""
    return cast("dict[str, Any]", scope)


@dataclass(slots=True)
class _Incoming:
    """The progress of the incoming request."""

    open: bool = False  # there is one
    handed_over: bool = False  # the application has it
    reported: bool = False  # the parser reported something of this packet; headers, when all of them are there
    unreported: int = 0  # bytes since the parser last reported something
    began_now: bool = False  # it began in this packet
    packet: int = 0  # bytes of this packet
    in_parts: bool = False  # its body did not come in the packet of its head
    reservation: Reservation | None = None  # of the last request


@dataclass(frozen=True)
class OpenConnections:
    """The connections of a server, besides those at work. `idle` are those without a complete request so far and, of a
    protocol with `makes_room`, those whose last request is answered: beyond max_connections they are closed, the first
    one first. `lingering` are those after their last answer: they take no place, and are at most max_connections."""

    idle: dict[GatewayProtocol, None] = field(default_factory=dict)
    lingering: set[GatewayProtocol] = field(default_factory=set)


class GatewayProtocol(HttpToolsProtocol):
    """One connection. It supports no upgrades, and ignores them, as RFC 9110 (7.8) allows.

    Java's HTTP client offers `Upgrade: h2c` with every POST. httptools takes any Upgrade for the end of HTTP on the
    connection: it reports a message without body and reads no further. So the parsed message is then discarded, and its
    head is parsed again by a new parser with the offer left out. CONNECT, with the same meaning, is refused.

    Bytes either advance a request or are counted, and counted bytes end the connection: no input keeps the parser busy
    without progress, and none is buffered without a reader.
    """

    def __init__(
        self,
        *arguments: Any,
        limits: GatewaySettings,
        inflight: Inflight,
        peers: PeerConnections = UNLIMITED,
        send_timeout_s: float = 30.0,
        handshakes: Handshakes | None = None,
        others: OpenConnections,
        makes_room: bool = False,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._handshakes = handshakes
        self._limits = limits
        self._inflight = inflight
        self._peers = peers
        self._send_timeout_s = send_timeout_s
        self._others = others
        self._makes_room = makes_room
        self._unread: asyncio.TimerHandle | None = None  # runs while the client does not read its answer
        self._certificate: Any = None  # of the client, when it has shown one that was checked
        self._running: RequestResponseCycle | None = None  # what the application was given last
        self._incoming = _Incoming()
        self._deadline: asyncio.TimerHandle | None = None
        self._waits = False  # for room: nothing is read
        self._host: bytes | None = None  # named before on this connection, and found to be one
        self._discards_input = False  # what comes is thrown away: an answer has been given that ends the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base does
        if self._handshakes is not None:
            self._handshakes.succeeded += 1
        too_many = len(self.connections) >= self._limits.max_connections
        super().connection_made(transport)
        self.flow = _Flow(self)
        self._certificate = transport.get_extra_info("peercert")
        if self.client is not None and self._peers.opened(self.client[0]):
            self._refuse(503, "there are too many connections from this address", _RETRY_AFTER)
        elif too_many and not self._others.idle:
            self._refuse(503, "there are too many connections", _RETRY_AFTER)
        else:
            if too_many:
                oldest = next(iter(self._others.idle))
                del self._others.idle[oldest]
                oldest.transport.abort()
            self._others.idle[self] = None
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        self._others.idle.pop(self, None)
        self._others.lingering.discard(self)
        if self._unread is not None:
            self._unread.cancel()
        if self.client is not None:
            self._peers.closed(self.client[0])
        while self.pipeline:
            self._drop_newest()
        if self._incoming.reservation is not None:
            self._inflight.whole(self._incoming.reservation)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Called by the event loop: more of the answer waits than the connection takes."""
        super().pause_writing()
        if self._unread is None:
            # Also for a connection that is being closed, which would wait for the client for ever.
            self._unread = self.loop.call_later(self._send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Called by the event loop: the client has read."""
        # Not while it is being closed: the rest has no further call.
        if self._unread is not None and not self.transport.is_closing():
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._discards_input:
            return
        self._unset_keepalive_if_required()
        incoming = self._incoming
        incoming.began_now = incoming.reported = False
        incoming.packet = len(data)
        self._feed(data)
        if self._discards_input or self.transport.is_closing():
            return
        if incoming.reported:
            incoming.unreported = 0
        else:
            incoming.unreported += len(data)
            if incoming.unreported > self._limits.max_header_bytes:
                self._refuse_head()
                return
        if incoming.open and incoming.handed_over and not self._reserve_body():
            return
        if incoming.open or not self._busy:
            if self._deadline is None:
                self._expect_request()
        elif self._deadline is not None:
            self._forget_deadline()

    def on_message_begin(self) -> None:
        incoming = self._incoming
        incoming.open = incoming.began_now = incoming.reported = True
        incoming.handed_over = False
        self._forget_deadline()  # it was for the request before
        super().on_message_begin()
        if self._certificate:
            _ours(self.scope)[CERTIFICATE] = self._certificate

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() or self._discards_input:
            return
        incoming = self._incoming
        incoming.reported = True
        # A request in one small packet is small.
        small = incoming.began_now and incoming.packet <= self._limits.max_header_bytes
        if not (small or self._head_size() <= self._limits.max_header_bytes) or (
            len(self.headers) > self._limits.max_headers
        ):
            self._refuse_head()
            return
        if not self._names_host():
            self._refuse(400, "a request names one host, in one Host header (RFC 9112, 3.2)")
            return
        if self.parser.get_http_version() == "1.0":
            self.expect_100_continue = False  # such a client takes an interim answer for the answer (RFC 9110, 10.1.1)
        incoming.reservation = _ours(self.scope)[RESERVATION] = Reservation(self._inflight, self)
        _ours(self.scope)[UNACKNOWLEDGED] = self._unacknowledged
        super().on_headers_complete()
        incoming.handed_over = True
        self.headers = []  # also called for trailers, which are ignored
        if len(self.pipeline) > _AHEAD:
            self._refuse(429, f"more than {_AHEAD} requests were sent ahead of their answers")

    def on_body(self, body: bytes) -> None:
        incoming = self._incoming
        incoming.reported = True
        if self._discards_input or incoming.reservation is None or self.cycle.response_complete:
            return
        incoming.reservation.add(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        incoming = self._incoming
        incoming.open = False
        incoming.reported = True
        if self._busy or not self._makes_room:
            self._others.idle.pop(self, None)
        if incoming.in_parts and incoming.reservation is not None:
            incoming.in_parts = False
            self._inflight.whole(incoming.reservation)
        if not self._discards_input:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()
        elif self._makes_room and not (self._busy or self._discards_input):
            self._others.idle[self] = None

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def resume_body(self) -> None:
        self._waits = False
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def reject_body(self, reason: str) -> None:
        self._refuse(503, reason, _RETRY_AFTER)

    def _unacknowledged(self) -> int:
        waiting = bytearray(4)
        with contextlib.suppress(OSError, ValueError):  # the connection is closed
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, waiting)
        return int.from_bytes(waiting, sys.byteorder) + self.transport.get_write_buffer_size()

    @property
    def may_read(self) -> bool:
        """Whether to read on: not while requests wait for their turn (uvicorn resumes after each answer), or a body
        for memory."""
        return not (self._waits or self.pipeline)

    def shutdown(self) -> None:
        """Called by the server, which stops: there is no time to linger."""
        super().shutdown()
        if self.cycle is not None:
            self.cycle.transport = self.transport

    def linger(self) -> None:
        """Shut down the sending side, discard received data, and close a little later."""
        self._discards_input = True
        self._others.idle.pop(self, None)
        self._forget_deadline()
        if self.transport.is_closing():
            return
        if len(self._others.lingering) >= self._limits.max_connections:
            self._close()
            return
        self.connections.discard(self)
        self._others.lingering.add(self)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self._close)

    def end(self) -> None:
        """Close after the last answer, or linger where the application has not read its request to the end."""
        if self._discards_input or (self._incoming.open and not self.pipeline):
            self.linger()
        else:
            self._close()

    def _close(self) -> None:
        """Close; a client that does not read the rest of an answer is cut off."""
        self.transport.close()
        if self._unread is None and (self in self.connections or self in self._others.lingering):  # not lost yet
            self._unread = self.loop.call_later(self._send_timeout_s, self.transport.abort)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":
            app = cast(ASGI3Application, partial(_answer_without_chunks, cycle, app))
        super()._start_asgi_task(cycle, app)

    @property
    def _busy(self) -> bool:
        """Whether the application is at work for this connection."""
        return self._running is not None and not self._running.response_complete

    def _feed(self, data: bytes | memoryview) -> None:
        # Each iteration shortens `data`, or is the last.
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                taken: int = upgrade.args[0]
                data = memoryview(data)[taken:]
                if not taken or not self._read_again() or not data:
                    return
            except httptools.HttpParserError:
                self._refuse_syntax()
                return

    def _read_again(self) -> bool:
        """Have a new parser read the head that offers an upgrade, without the offer; whether it does."""
        if self.parser.get_method() == b"CONNECT":
            self._refuse(405, "this is not a proxy: CONNECT is not supported", _ALLOW)
            return False
        head = self._head_without_upgrade()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as the parser before
        try:
            # Apart from the following bytes, which may be long and contain further offers.
            self.parser.feed_data(head)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError):
            self._refuse_syntax()
            return False
        return True

    def _reserve_body(self) -> bool:
        """Reserve memory for a body that arrives in parts; returns whether the connection continues."""
        reservation = self._incoming.reservation
        if reservation is None or reservation.over:
            return True
        if not self._incoming.in_parts:
            self._incoming.in_parts = True
            self._let_linger(self.cycle)  # the application may refuse it before its end, and the client has to see that
        expected = self._announced()
        if expected is None:
            expected = self._limits.max_body_bytes if reservation.came > SMALL else 0
        if expected <= self._limits.max_body_bytes and not self._inflight.partly(reservation, expected):
            if self._discards_input:
                return False
            self._waits = True
            self.flow.pause_reading()
        return True

    def _expect_request(self) -> None:
        self._deadline = self.loop.call_later(self._limits.request_timeout_s, self._too_late)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if not self._incoming.open:
            self._close()  # without a request there is no answer
        else:
            self._refuse(408, f"the request was not complete after {self._limits.request_timeout_s:g} s")

    def _refuse_head(self) -> None:
        self._refuse(
            431,
            f"the head of a request, with all besides its body, may have {self._limits.max_headers} headers and "
            f"{self._limits.max_header_bytes} bytes",
        )

    def _refuse_syntax(self) -> None:
        if not self._discards_input:
            self._refuse(400, "Invalid HTTP request received.")

    def _refuse(self, status: int, reason: str, extra: bytes = b"") -> None:
        """Answer the current request, and none after it; earlier requests are answered first."""
        begun = self._incoming.open and self._incoming.handed_over
        if begun and self.pipeline:
            self._drop_newest()  # it waits in the queue itself
        elif begun:
            self._end_running(status, reason, extra)
            return
        if self._running is None or not self._busy:
            self._answer_and_linger(status, reason, extra)
            return
        # Earlier requests on this connection: the answer to the newest is the last one.
        self._discards_input = True
        self._forget_deadline()
        last = self.pipeline[0][0] if self.pipeline else self._running
        last.keep_alive = False
        self._let_linger(last)

    def _drop_newest(self) -> None:
        _ours(self.pipeline.popleft()[0].scope)[RESERVATION].release()

    def _end_running(self, status: int, reason: str, extra: bytes) -> None:
        """The application has the head of the request, and waits for the rest."""
        cycle = self.cycle
        if cycle.response_complete:
            self.linger()
        elif cycle.response_started:
            self._close()
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            self._answer_and_linger(status, reason, extra)

    def _let_linger(self, cycle: RequestResponseCycle) -> None:
        cycle.transport = cast(asyncio.Transport, _LingeringTransport(self))

    def _answer_and_linger(self, status: int, reason: str, extra: bytes = b"") -> None:
        body = f"{reason}\n".encode()
        head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + extra + b"\r\n" + body)
        self.linger()

    def _names_host(self) -> bool:
        """Whether there is one Host header that can be one; HTTP/1.0 needs none. Of two, a proxy may go by the other
        one."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if not hosts:
            return self.parser.get_http_version() == "1.0"
        if len(hosts) > 1:
            return False
        if hosts[0] != self._host:  # a connection has the same one in each of its requests
            if _HOST.fullmatch(hosts[0]) is None:
                return False
            self._host = hosts[0]
        return True

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _announced(self) -> int | None:
        """The length of the body by its head, if the head has one."""
        value = header(_ours(self.cycle.scope)["headers"], b"content-length")
        return int(value) if value.isdigit() else None

    def _head_without_upgrade(self) -> bytes:
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + self.parser.get_http_version().encode()]
        for name, value in self.headers:
            if name in _UPGRADE:
                continue
            if name == b"connection":
                options = [option for option in value.split(b",") if option.strip().lower() not in _UPGRADE]
                value = b",".join(options)
            lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])


async def _answer_without_chunks(
    cycle: RequestResponseCycle, app: Any, scope: Scope, receive: Receive, send: Send
) -> None:
    """An application for HTTP/1.0, which has no chunks: an answer without a length ends with the connection."""
    endless = False

    async def sending(message: MutableMapping[str, Any]) -> None:
        nonlocal endless
        if message["type"] == "http.response.start":
            endless = not header(message["headers"], b"content-length")
            if endless:
                cycle.chunked_encoding, cycle.expected_content_length = False, sys.maxsize
        elif endless and not message.get("more_body", False):
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, sending)


class _Flow(FlowControl):
    """Reads on only when the protocol may."""

    def __init__(self, protocol: GatewayProtocol) -> None:
        super().__init__(protocol.transport)
        self._protocol = protocol

    def resume_reading(self) -> None:
        if self.read_paused and self._protocol.may_read:
            super().resume_reading()


class _LingeringTransport:
    """A connection's transport whose `close`, after the answer to a request, may linger."""

    def __init__(self, protocol: GatewayProtocol) -> None:
        self._protocol = protocol

    def close(self) -> None:
        self._protocol.end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol.transport, name)
