"""The connections of the framed TCP edge, with their limits. All on the event loop, without further threads.

A client that does not authenticate, does not complete a frame, or is silent for too long is disconnected. The
subscriptions of a client that does not read pause, and after `limits.send_timeout_s` it is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

from arborcast.core.single_flight import spawn
from arborcast.core.timer_queue import TimerQueue
from arborcast.ingest.access.gate import CERTIFICATE
from arborcast.ingest.access.rates import PeerConnections
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.framed.session import Edge, FramedSession
from arborcast.ingest.http.inflight import RETRY_AFTER_S, Reservation
from arborcast.ingest.http.tls import Acceptor, ServerTls
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.settings import FramedSettings
from arborcast.wire import frames, limits
from arborcast.wire.frames import Decoder, FrameError, FrameKind

logger = logging.getLogger(__name__)

# One buffer for all connections: data are processed before the next read. The answers to refused frames of 16 bytes
# have five times their size.
_BUFFER = 128 * 1024

# Time limit for the authentication of a new connection, also of a slow machine.
_CONNECT_S = 20.0

# Maximum number of connections of one address without a CONNECTED.
_MOST_UNKNOWN = 1_000

# Why a connection is not read.
_UNREAD_ANSWERS, _MEMORY = "answers are not read", "no memory for requests is free"

# Maximum size of unread answers, in bytes; beyond it further requests are not read.
_UNREAD = 256 * 1024

_SWEEP_S = 1.0

_BACKLOG = 2_048

# Time limit of a stop, for publications in progress and for the return of claims.
_STOP_S = 3.0


class FramedConnection(asyncio.BufferedProtocol):
    """One connection; the FrameLink of its session, and the Body of a frame that is not whole."""

    def __init__(self, server: FramedServer) -> None:
        self._server = server
        self._decoder = Decoder(min(limits.UNKNOWN_CLIENT, server.edge.settings.max_frame_bytes))
        self._memory: Reservation | None = None  # for the frame that is not whole
        self._held: frozenset[str] = frozenset()  # why it is not read
        self._peer = ""
        self._writable: asyncio.Event | None = None  # only while the client does not read
        self._ending = False
        self._unknown = True
        self.session: FramedSession | None = None
        self.made_at = self.received_at = 0.0
        self.whole_at = 0.0  # the last time without an incomplete frame
        self.unread_since = 0.0
        self._closed_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop, as the following methods are."""
        self._transport = cast(asyncio.Transport, transport)
        client, server = (transport.get_extra_info(name) or ("", 0) for name in ("peername", "sockname"))
        self._peer = client[0]
        self.made_at = self.received_at = self.whole_at = asyncio.get_running_loop().time()
        self._transport.set_write_buffer_limits(_UNREAD)
        refusal = self._server.opened(self, self._peer)
        if refusal:
            self.refuse("TooManyConnections", refusal, 1.0)
            return
        scope: dict[str, Any] = {"headers": [], "client": client[:2], "server": server[:2]}
        if (certificate := transport.get_extra_info("peercert")) is not None:
            scope[CERTIFICATE] = certificate
        self.session = FramedSession(self._server.edge, self, scope)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending = True
        if self._writable is not None:
            self._writable.set()
        self._release()
        self.known()
        self._server.closed(self, self._peer)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport.is_closing() or self.session is None:
            return
        self.received_at = asyncio.get_running_loop().time()
        if not self._decoder.pending:
            self.whole_at = self.received_at
        another = False  # not by the clock: that of uvloop has milliseconds
        try:
            for frame in self._decoder.feed(self._server.buffer[:nbytes]):
                another = True
                self.whole_at = self.received_at
                self.session.received(frame)
                if self._transport.is_closing():
                    return
        except FrameError as error:
            self.refuse("FrameError", str(error))
            return
        self._reserve(another=another)

    def _reserve(self, *, another: bool) -> None:
        """Count the bytes of an incomplete frame; `another` than before."""
        if another:
            self._release()
        pending, inflight = self._decoder.pending, self._server.edge.gateway.inflight
        if not pending:
            return
        self._server.check_by(self, self.whole_at + self._server.frame_s)
        if self._memory is None:
            self._memory = Reservation(inflight, self)
        self._memory.add(pending - self._memory.came)
        if not inflight.partly(self._memory, self._decoder.expected):
            self.read(False, _MEMORY)

    def _release(self) -> None:
        if self._memory is not None:
            self._memory.release()
            self._memory = None

    def resume_body(self) -> None:
        self.read(True, _MEMORY)

    def reject_body(self, reason: str) -> None:
        self.refuse("InfrastructureError", reason, RETRY_AFTER_S)

    def known(self) -> None:
        self._decoder.limit = self._server.edge.settings.max_frame_bytes
        if self._unknown:
            self._unknown = False
            self._server.known(self._peer)

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()
        self.unread_since = asyncio.get_running_loop().time()
        self._server.check_by(self, self.unread_since + self._server.unread_s)
        self.read(False, _UNREAD_ANSWERS)

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
        self._writable, self.unread_since = None, 0.0
        self.read(True, _UNREAD_ANSWERS)

    def send(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    async def until_writable(self) -> None:
        while self._writable is not None and not self._ending:
            await self._writable.wait()

    def read(self, more: bool, why: str) -> None:
        before = bool(self._held)
        self._held = self._held - {why} if more else self._held | {why}
        if self._transport.is_closing() or before == bool(self._held):
            return
        if self._held:
            self._transport.pause_reading()
        else:
            self.received_at = self.whole_at = asyncio.get_running_loop().time()
            self._server.check_by(self, self.whole_at + self._server.frame_s)
            self._transport.resume_reading()

    def close(self) -> None:
        if not self._ending:
            self._ending = True
            self.send(frames.encode(FrameKind.CLOSE))
            self._closed_at = asyncio.get_running_loop().time()
            self._server.check_by(self, self._closed_at + self._server.unread_s)
        self._transport.close()

    def refuse(self, code: str, text: str, retry_after: float | None = None) -> None:
        """Send the reason, and close."""
        logger.debug("a connection from %s is cut off: %s", self._peer, text)
        self._server.edge.counts.refused[code] += 1
        self.send(frames.encode(FrameKind.ERROR, 0, frames.ErrorBody(code, text, retry_after)))
        self._decoder.clear()
        self._release()
        self.close()

    def cut_off(self) -> None:
        """Close at once; unsent data are lost."""
        self._transport.abort()

    def deadlines(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """What happens, and when, if nothing changes."""
        if self._closed_at:
            yield self._closed_at + self._server.unread_s, self.cut_off  # the client does not receive the rest
            return
        frame_s, idle_s = self._server.frame_s, self._server.edge.settings.idle_s
        if self.unread_since:
            yield self.unread_since + self._server.unread_s, self.cut_off
        if self.session is not None and self.session.unknown:
            reason = f"no CONNECT within {_CONNECT_S:g} s"
            yield self.made_at + _CONNECT_S, partial(self.refuse, "NotAuthenticated", reason)
        elif self.session is not None:
            yield self.session.check_at, self.session.check_identity
        if not self._held:  # otherwise its frames are not read
            if self._decoder.pending:
                reason = f"a frame was incomplete after {frame_s:g} s"
                yield self.whole_at + frame_s, partial(self.refuse, "FrameError", reason)
            reason = f"nothing received for {idle_s:g} s: send PING"
            yield self.received_at + idle_s, partial(self.refuse, "Idle", reason)


class FramedServer:
    """All connections of this process."""

    def __init__(
        self, gateway: Gateway, settings: FramedSettings, limits: LimitSettings, tls: ServerTls | None = None
    ) -> None:
        self.edge = Edge(gateway, settings)
        self.counts = self.edge.counts
        self.buffer = memoryview(bytearray(_BUFFER))
        self.frame_s = gateway.settings.request_timeout_s  # for a whole frame
        self.unread_s = limits.send_timeout_s
        self._peers = PeerConnections(limits.connections_per_client)
        self._unknown = PeerConnections(_MOST_UNKNOWN)
        self._tls = tls
        self._connections: set[FramedConnection] = set()
        self._checks: TimerQueue[FramedConnection] = TimerQueue()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """The number of connections."""
        return len(self._connections)

    @property
    def unread(self) -> int:
        """The number of connections with unread answers."""
        return sum(1 for each in self._connections if each.unread_since)

    async def start(self, listener: socket.socket) -> None:
        listener.listen(_BACKLOG)
        self._listening = Acceptor(listener, self._tls, lambda: FramedConnection(self))
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep_forever())

    async def stop(self) -> None:
        """Accept nothing more, announce the end to all clients, and complete the current work."""
        self._listening.close()
        self._sweeper.cancel()
        for each in list(self._connections):
            each.close()
        deadline = asyncio.get_running_loop().time() + _STOP_S
        while (self._connections or self._closing) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for each in list(self._connections):
            each.cut_off()

    def opened(self, connection: FramedConnection, host: str) -> str:
        """Register a connection; returns the reason to refuse it, empty for none."""
        self._connections.add(connection)
        self.check_by(connection, connection.made_at + min(_CONNECT_S, self.edge.settings.idle_s))
        many, too_many = self._unknown.opened(host), self._peers.opened(host)
        if many:
            return f"{_MOST_UNKNOWN} connections from this address have no CONNECTED yet"
        if too_many:
            return "there are too many connections from this address"
        if len(self._connections) > self.edge.settings.max_connections:
            return "there are too many connections"
        return ""

    def known(self, host: str) -> None:
        """A connection from this address is authenticated, or was closed before."""
        self._unknown.closed(host)

    def closed(self, connection: FramedConnection, host: str) -> None:
        self._connections.discard(connection)
        self._checks.cancel(connection)
        self._peers.closed(host)
        if connection.session is not None:
            spawn(self._closing, connection.session.close())

    def check_by(self, connection: FramedConnection, at: float) -> None:
        """Check the deadlines of a connection at this time, or before."""
        self._checks.set_by(connection, math.ceil(at * 1000))

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = asyncio.get_running_loop().time()
            # After a long turn, waiting data are read first.
            for _ in range(2):
                await asyncio.sleep(0)
            self.sweep(now)

    def sweep(self, now: float) -> None:
        """Disconnect idle and stalled clients. Connections without a deadline until now cost nothing."""
        now_ms = math.floor(now * 1000)
        due: list[FramedConnection] = []
        while (each := self._checks.pop(now_ms)) is not None:
            due.append(each)
        for each in due:
            for at, act in list(each.deadlines()):
                if at <= now:
                    act()
                    break
        for each in self._connections.intersection(due):
            self.check_by(each, min((now + self.edge.settings.idle_s, *(at for at, _ in each.deadlines()))))
