"""HTTP/1.1 on one connection: uvicorn's protocol, with what it gets wrong for us, and bounds for hostile clients.

Bounded are the size of a request's head, the number of its headers, the time until it is there as a whole (a client
that sends a byte every few seconds holds nothing for long), the time for which a client may leave its answer unread,
and the number of connections, in all and from one address. The size of bodies is the application's business. A request
that comes in one packet, as nearly all do, pays for none of it but a few additions.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ingest.access.authenticator import CERTIFICATE
from ingest.access.connections import PeerConnections
from ingest.access.tls import Handshakes
from ingest.settings import GatewaySettings

# Headers of an offer to upgrade, which are also the words that announce them in the Connection header.
_UPGRADE = frozenset({b"upgrade", b"http2-settings"})

# After a refusal in the middle of a request: for the client to read it. Closing at once would make the kernel throw it
# away because of what the client has still sent.
_LINGER_S = 2.0

_RETRY_AFTER = b"retry-after: 1\r\n"


class GatewayProtocol(HttpToolsProtocol):
    """One connection.

    It takes no upgrades, and says so by ignoring them, as RFC 9110 (7.8) allows. Java's HTTP client offers
    `Upgrade: h2c` with every POST. httptools takes any Upgrade for the end of HTTP on the connection: it reports a
    message without body and reads no further. So when that happens, nothing of this message is passed on, and it is
    parsed again by a new parser with the offer left out.
    """

    def __init__(
        self,
        *arguments: Any,
        limits: GatewaySettings,
        peers: PeerConnections | None = None,
        send_timeout_s: float = 30.0,
        handshakes: Handshakes | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._handshakes = handshakes
        self._limits = limits
        self._peers = peers
        self._send_timeout_s = send_timeout_s
        self._unread: asyncio.TimerHandle | None = None  # runs while the client does not read its answer
        self._certificate: Any = None  # of the client, when it has shown one that was checked
        # Of the request that is coming in: whether there is one, whether its head is, whether the application has it,
        # and how large its head is so far.
        self._open = False
        self._in_head = False
        self._handed_over = False
        self._head_bytes = 0
        self._began_now = False
        self._packet = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._deaf = False  # what comes is thrown away: an answer has been given that ends the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base does
        """Called by the event loop."""
        if self._handshakes is not None:
            self._handshakes.succeeded += 1
        too_many = len(self.connections) >= self._limits.max_connections
        super().connection_made(transport)
        self._certificate = transport.get_extra_info("peercert")
        if self._peers is not None and self.client is not None and self._peers.opened(self.client[0]):
            self._refuse(503, "there are too many connections from this address", _RETRY_AFTER)
        elif too_many:
            self._refuse(503, "there are too many connections", _RETRY_AFTER)
        else:
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._forget_deadline()
        if self._unread is not None:
            self._unread.cancel()
        if self._peers is not None and self.client is not None:
            self._peers.closed(self.client[0])
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Called by the event loop: more of the answer waits than the connection takes."""
        super().pause_writing()
        if self._unread is None:
            # Also for a connection that is being closed, which would wait for the client for ever.
            self._unread = self.loop.call_later(self._send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Called by the event loop: the client has read."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """What came from the socket."""
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        self._began_now = False
        self._packet = len(data)
        self._feed(data)
        if self._deaf or self.transport.is_closing():
            return
        if self._in_head:
            # Headers are only reported when they are complete, so what has arrived counts.
            if not self._began_now:
                self._head_bytes += len(data)
            if self._head_bytes > self._limits.max_header_bytes:
                self._refuse_head()
                return
        if self._open or not self._busy:
            if self._deadline is None:
                self._expect_request()
        elif self._deadline is not None:
            self._forget_deadline()

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._open = self._in_head = self._began_now = True
        self._handed_over = False
        self._head_bytes = 0
        self._forget_deadline()  # it was for the request before
        super().on_message_begin()
        if self._certificate:
            self.scope[CERTIFICATE] = self._certificate  # type: ignore[typeddict-unknown-key]  # ours

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self.parser.should_upgrade() or self._deaf:
            return
        self._in_head = False
        # What came in one small packet is small.
        small = self._began_now and self._packet <= self._limits.max_header_bytes
        if not (small or self._head_size() <= self._limits.max_header_bytes) or (
            len(self.headers) > self._limits.max_headers
        ):
            self._refuse_head()
            return
        before = self.cycle
        super().on_headers_complete()
        self._handed_over = True
        if self.cycle is not before and self._announces_too_much():
            # The application refuses it without reading; the client must have a chance to see that.
            self.cycle.transport = cast(asyncio.Transport, _LingeringTransport(self))

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if self.parser.should_upgrade():
            return
        self._open = False
        if not self._deaf:
            super().on_message_complete()

    def linger(self) -> None:
        """Say that nothing more comes from us, throw away what comes from there, and close a little later."""
        self._deaf = True
        self._forget_deadline()
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)

    @property
    def _busy(self) -> bool:
        """Whether the application is at work for this connection."""
        return self.cycle is not None and not self.cycle.response_complete

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
                data = self._head_without_upgrade() + rest
                self.parser = httptools.HttpRequestParser(self)
            except httptools.HttpParserError:
                if not self._deaf:
                    self._refuse(400, "Invalid HTTP request received.")
                return

    def _expect_request(self) -> None:
        self._deadline = self.loop.call_later(self._limits.request_timeout_s, self._too_late)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if not self._open:
            self.transport.close()  # nothing was asked, so nothing is answered
        else:
            self._refuse(408, f"the request was not complete after {self._limits.request_timeout_s:g} s")

    def _refuse_head(self) -> None:
        self._refuse(
            431,
            f"the head of a request may have {self._limits.max_headers} headers and "
            f"{self._limits.max_header_bytes} bytes",
        )

    def _refuse(self, status: int, reason: str, extra: bytes = b"") -> None:
        """Answer the request that is coming in, and nothing after it."""
        if self._busy and self._open and self._handed_over and not self.pipeline:
            if self.cycle.response_started:
                self.transport.close()
                return
            # The application waits for the rest of this very request, and would for ever.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._answer_and_linger(status, reason, extra)
        elif self._busy:
            # Earlier requests on this connection come first: theirs is the last answer then.
            self._deaf = True
            self._forget_deadline()
            self.cycle.keep_alive = False
            self.pipeline.clear()
        else:
            self._answer_and_linger(status, reason, extra)

    def _answer_and_linger(self, status: int, reason: str, extra: bytes = b"") -> None:
        body = f"{reason}\n".encode()
        head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + extra + b"\r\n" + body)
        self.linger()

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _announces_too_much(self) -> bool:
        for name, value in self.headers:
            if name == b"content-length":
                return value.isdigit() and int(value) > self._limits.max_body_bytes
        return False

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


class _LingeringTransport:
    """A connection's transport whose `close` lingers."""

    def __init__(self, protocol: GatewayProtocol) -> None:
        self._protocol = protocol

    def close(self) -> None:
        self._protocol.linger()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol.transport, name)
