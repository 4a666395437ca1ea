"""A client of the framed TCP edge, with blocking sockets and the terms of JMS:

    factory = ConnectionFactory("framed://127.0.0.1:8090", user="pump", password="…")
    with factory.connection() as connection:
        session = connection.session()
        session.producer("plant/a").send(Outgoing("<reading>4</reading>", {"unit": "bar"}))
        session.consumer("plant//.", lambda message: print(message.topic, message.payload), name="archive")

One thread reads each connection. The handlers of a session are called one after the other, in the session's thread. A
message is acknowledged when its handler returns, and sent again when it raises.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import selectors
import socket
import ssl
import threading
import tomllib
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from arborcast.client.values import BrokerUnavailable, FaultReceived
from arborcast.core.errors import ConfigError
from arborcast.core.printable import printable
from arborcast.core.threads import start_thread
from arborcast.wire import frames
from arborcast.wire.frames import LOOSE, Body, Decoder, Frame, FrameError, FrameKind

__all__ = ["Connection", "ConnectionFactory", "Consumer", "Message", "Outgoing", "Producer", "Session"]

logger = logging.getLogger(__name__)

_READ = 256 * 1024

_LIMIT: Final = 1024 * 1024 * 1024

# Time without data after which a connection is lost, until the broker has named its own.
_SILENCE_S: Final = 60.0

_SCHEMES = ("framed", "framed+tls")


@dataclass(frozen=True)
class Message:
    """A received message. `payload` is one XML element, or text if `is_text`. `attempt` counts from 1."""

    payload: bytes
    topic: str
    id: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 1
    is_text: bool = False


@dataclass(frozen=True)
class Outgoing:
    """A message to publish: one XML element, or text. `valid_until` is in milliseconds since 1970, `lifespan` in
    seconds. Repetitions with the same `key` are stored once."""

    payload: str | bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    is_text: bool = False
    priority: int | None = None
    valid_until: int = 0
    lifespan: float = 0.0
    type: str = ""
    reliable: bool = False
    key: str = ""


OnMessage = Callable[[Message], None]


@dataclass(frozen=True)
class ConnectionFactory:
    """The address of the edge, and the credentials. `framed+tls://` in the URL for TLS."""

    url: str = "framed://127.0.0.1:8090"
    user: str = ""
    password: str = field(default="", repr=False)
    bearer: str = field(default="", repr=False)
    name: str = ""
    """The name of this client, for operators."""
    tls_ca_file: str = ""
    timeout_s: float = 30.0

    @classmethod
    def from_settings(cls, file: Path | str) -> ConnectionFactory:
        """Read the fields from the table `framed_client` of a TOML file. Raises ConfigError."""
        try:
            table = tomllib.loads(Path(file).read_text(encoding="utf-8")).get("framed_client", {})
            return cls(**table)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{file}: the table framed_client cannot be used: {error}") from error

    def connection(self) -> Connection:
        """An authenticated connection. Raises BrokerUnavailable, or FaultReceived for refused credentials."""
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError:  # a port above 65535, or half an IPv6 address
            parts, port = urlsplit(""), None
        if parts.scheme not in _SCHEMES or not parts.hostname or not port:
            raise ConfigError(
                f"the URL of a framed edge is framed://HOST:PORT or framed+tls://HOST:PORT, not {self.url!r}"
            )
        try:
            opened = socket.create_connection((parts.hostname, port), self.timeout_s)
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if parts.scheme == "framed+tls":
                    context = ssl.create_default_context(cafile=self.tls_ca_file or None)
                    opened = context.wrap_socket(opened, server_hostname=parts.hostname)
            except BaseException:
                opened.close()
                raise
        except OSError as error:
            raise BrokerUnavailable(f"{self.url} does not answer: {error}", None) from error
        connection = Connection(_Wire(opened), self.timeout_s)
        try:
            connection.authenticate(frames.ConnectBody(self.user, self.password, self.bearer, self.name))
        except BaseException:
            connection.close()
            raise
        return connection


class _Wire:
    """A socket that one thread reads while others write. TLS has one state for both directions, which OpenSSL allows
    one thread at a time to use: each thread takes a lock for it, and waits for the network without the lock."""

    def __init__(self, opened: socket.socket) -> None:
        opened.setblocking(False)
        self.silence_s = _SILENCE_S
        self._socket = opened
        self._turn = threading.Lock()
        self._sending = threading.Lock()

    def receive(self) -> bytes:
        """Wait for data; empty if the peer has closed the connection. Raises OSError, also after `silence_s`: without
        data to send, TCP never notices a dead peer, and otherwise after a quarter of an hour."""
        while True:
            try:
                with self._turn:
                    return self._socket.recv(_READ)
            except (BlockingIOError, ssl.SSLWantReadError):
                if not self._wait(selectors.EVENT_READ, self.silence_s):
                    raise TimeoutError(f"nothing received from the broker for {self.silence_s:g} s") from None
            except ssl.SSLWantWriteError:
                self._wait(selectors.EVENT_WRITE)

    def send(self, data: bytes) -> None:
        """Send all data, without data of other threads in between. Raises OSError."""
        rest = memoryview(data)
        with self._sending:
            while rest:
                try:
                    with self._turn:
                        rest = rest[self._socket.send(rest) :]
                except (BlockingIOError, ssl.SSLWantWriteError):
                    self._wait(selectors.EVENT_WRITE)
                except ssl.SSLWantReadError:
                    self._wait(selectors.EVENT_READ)

    def end(self) -> None:
        """Shut the connection down; waiting calls of `receive` and `send` end."""
        with self._turn, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _wait(self, event: int, timeout_s: float | None = None) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, event)
            return bool(selector.select(timeout_s))


class ConnectionLost(BrokerUnavailable):
    """The connection ended before the answer to a request."""


class Connection:
    """One connection. When it is lost, `lost` is set and unanswered requests raise BrokerUnavailable; they may or may
    not have been executed."""

    def __init__(self, wire: _Wire, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.lost = threading.Event()
        self._wire = wire
        self._numbers = itertools.count()
        self._answers: dict[int, Future[Frame]] = {}
        self._handlers: dict[str, Callable[[Frame, frames.MessageBody], None]] = {}
        self._unclaimed: dict[str, list[tuple[Frame, frames.MessageBody]]] = {}
        self._lock = threading.Lock()
        self._idle_s = _SILENCE_S
        self._max_frame_bytes = _LIMIT
        self._loss = ""  # the reason for which the connection was lost
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()  # unused ones are not kept
        self._reader = start_thread("framed-reader", self._read)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def authenticate(self, connect: frames.ConnectBody) -> None:
        """Authenticate. Raises FaultReceived or BrokerUnavailable."""
        connected = frames.read_body(self.request(FrameKind.CONNECT, connect), frames.ConnectedBody)
        # The broker answers each PING.
        self._idle_s = self._wire.silence_s = connected.idle_s
        self._max_frame_bytes = connected.max_frame_bytes
        start_thread("framed-ping", self._ping)

    def session(self) -> Session:
        """A new session. Its handlers are called one at a time."""
        session = Session(self)
        self._sessions.add(session)
        return session

    def close(self) -> None:
        """End the connection; durable subscriptions stay."""
        for session in list(self._sessions):
            session.close()
        if not self.lost.is_set():
            with contextlib.suppress(OSError):
                self._send(FrameKind.CLOSE)
        self._wire.end()
        if threading.current_thread() is not self._reader:
            self._reader.join(self.timeout_s)
        self._wire.close()

    def request(self, kind: FrameKind, body: Body, flags: int = 0) -> Frame:
        """Send a frame and return the answer. Raises FaultReceived or BrokerUnavailable."""
        return answer(self.begin(kind, body, flags), self.timeout_s)

    def begin(self, kind: FrameKind, body: Body, flags: int = 0) -> Future[Frame]:
        """Send a frame; the future gets the answer. It cannot be cancelled: its answer would end the reading thread."""
        future: Future[Frame] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            number = next(self._numbers) % (2**32 - 1) + 1  # 0 is for errors of the connection
        data = frames.encode(kind, number, body, flags)
        size = len(data) - frames.HEAD_BYTES
        if size > self._max_frame_bytes:
            refusal = f"a frame may have {self._max_frame_bytes} bytes (framed.max_frame_bytes), this one has {size}"
            future.set_exception(FaultReceived(refusal, "TooLarge", 0))
            return future
        with self._lock:
            self._answers[number] = future
        try:
            self._wire.send(data)
        except OSError as error:
            self._lose(error)
        if self.lost.is_set():
            self._fail(number)
        return future

    def reply(self, kind: FrameKind, number: int, body: Body | None = None) -> None:
        """Answer a message. After a lost connection the message is sent again on another one."""
        with contextlib.suppress(OSError):
            self._send(kind, number, body)

    def handle(self, subscription: str, handler: Callable[[Frame, frames.MessageBody], None] | None) -> None:
        """Set the handler of a subscription's messages, which also gets earlier ones; None removes it. It must not
        wait: it is called with the lock, so that no later message is before an earlier one."""
        with self._lock:
            if handler is None:
                self._handlers.pop(subscription, None)
                return
            self._handlers[subscription] = handler
            for frame, message in self._unclaimed.pop(subscription, []):
                handler(frame, message)

    def _send(self, kind: FrameKind, number: int = 0, body: Body | None = None, flags: int = 0) -> None:
        self._wire.send(frames.encode(kind, number, body, flags))

    def _read(self) -> None:
        decoder, first = Decoder(_LIMIT), True
        error: Exception = ConnectionError("the broker has closed the connection")
        try:
            while data := self._wire.receive():
                if first and data.startswith(b"HTTP/"):
                    raise ConnectionError("an HTTP server answered: the framed protocol has another port")
                first = False
                for frame in decoder.feed(data):
                    self._received(frame)
        except (OSError, FrameError, frames.BodyError) as failure:
            error = failure
        self._lose(error)
        self._wire.end()

    def _received(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.MESSAGE:
                message = frames.read_body(frame, frames.MessageBody)
                with self._lock:
                    handler = self._handlers.get(message.subscription)
                    if handler is None:
                        # Messages may arrive after the RECEIPT and before `handle` is called.
                        self._unclaimed.setdefault(message.subscription, []).append((frame, message))
                if handler is not None:
                    handler(frame, message)
            case FrameKind.PING:
                self.reply(FrameKind.PONG, frame.correlation)
            case FrameKind.PONG | FrameKind.CLOSE:
                pass
            case FrameKind.ERROR if not frame.correlation:
                error = frames.read_body(frame, frames.ErrorBody)
                logger.warning("the broker reports %s: %s", error.code, error.text)
            case _:
                with self._lock:
                    future = self._answers.pop(frame.correlation, None)
                if future is not None:
                    future.set_result(frame)

    def _lose(self, error: Exception) -> None:
        self._loss = self._loss or str(error)
        self.lost.set()
        logger.debug("the connection was lost: %s", error)
        for number in list(self._answers):
            self._fail(number)

    def _fail(self, number: int) -> None:
        with self._lock:
            future = self._answers.pop(number, None)
        if future is not None:
            why = f": {self._loss}" if self._loss else ""
            future.set_exception(ConnectionLost(f"the connection was lost before the answer{why}", None))

    def _ping(self) -> None:
        while not self.lost.wait(self._idle_s / 3):
            self.reply(FrameKind.PING, 0)


def answer(future: Future[Frame], timeout_s: float) -> Frame:
    """Wait for the answer. Raises FaultReceived or BrokerUnavailable."""
    try:
        frame = future.result(timeout_s)
    except TimeoutError as error:
        raise BrokerUnavailable(f"no answer within {timeout_s:g} s", None) from error
    if frame.kind == FrameKind.ERROR:
        body = frames.read_body(frame, frames.ErrorBody)
        if body.retry_after is not None:
            raise BrokerUnavailable(body.text, body.retry_after)
        raise FaultReceived(body.text, body.code, 0)
    return frame


class Session:
    """Producers and consumers of one connection; the consumers' handlers are called one at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def producer(self, topic: str) -> Producer:
        """A producer for a topic: `a/b`, or `{urn:plant}a/b`."""
        return Producer(self._connection, topic)

    def consumer(
        self,
        expression: str,
        on_message: OnMessage,
        *,
        name: str = "",
        delivery: Mapping[str, str] | None = None,
        types: Sequence[str] = (),
        current: bool = False,
        window: int = 100,
    ) -> Consumer:
        """Subscribe: `a/b`, `a//.`, `{urn:plant}a/*`; "" means all topics. With a `name` it is durable. `delivery` has
        the attributes of p:Delivery. Raises FaultReceived or BrokerUnavailable."""
        body = frames.SubscribeBody(expression, name, dict(delivery or {}), list(types), current, window)
        receipt = frames.read_body(self._connection.request(FrameKind.SUBSCRIBE, body), frames.ReceiptBody)
        if self._thread is None:
            self._thread = start_thread("framed-session", self._run)
        consumer = Consumer(self._connection, receipt.id)
        self._connection.handle(
            receipt.id, lambda frame, message: self._work.put(lambda: self._deliver(frame, message, on_message))
        )
        return consumer

    def close(self) -> None:
        """End the session's thread after the running handler."""
        self._work.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._connection.timeout_s)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _deliver(self, frame: Frame, body: frames.MessageBody, on_message: OnMessage) -> None:
        message = Message(body.payload, body.topic, body.id, body.properties, body.attempt, bool(frame.flags & LOOSE))
        try:
            on_message(message)
        except Exception as error:
            logger.exception("a handler failed; message %s is sent again", message.id)
            # Escaped: the name of a file may have surrogates, which cannot be encoded.
            self._connection.reply(FrameKind.REFUSE, frame.correlation, frames.RefuseBody(printable(str(error))[:500]))
        else:
            self._connection.reply(FrameKind.ACK, frame.correlation)


class Producer:
    """Publishes to one topic."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic

    def send(self, message: Outgoing | str | bytes) -> str:
        """Publish; returns the notification's id once it is in the log. Raises FaultReceived or BrokerUnavailable."""
        return published(self.begin(message), self._connection.timeout_s)

    def begin(self, message: Outgoing | str | bytes) -> Future[Frame]:
        """As `send`, without waiting: `published` returns the result. Messages are stored in the order of `begin`."""
        out = message if isinstance(message, Outgoing) else Outgoing(message)
        body = frames.PublishBody(
            self._topic,
            out.payload.encode() if isinstance(out.payload, str) else out.payload,
            dict(out.properties),
            out.priority,
            out.valid_until,
            out.lifespan,
            out.type,
            out.reliable,
            out.key,
        )
        return self._connection.begin(FrameKind.PUBLISH, body, LOOSE if out.is_text else 0)


def published(future: Future[Frame], timeout_s: float = 30.0) -> str:
    """The id of a published message; empty for a repetition. Raises FaultReceived or BrokerUnavailable."""
    return frames.read_body(answer(future, timeout_s), frames.ReceiptBody).id


class Consumer:
    """One subscription of a session."""

    def __init__(self, connection: Connection, subscription: str) -> None:
        self._connection = connection
        self.subscription = subscription

    def unsubscribe(self) -> None:
        """End the subscription, also a durable one. Raises FaultReceived or BrokerUnavailable."""
        self._connection.request(FrameKind.UNSUBSCRIBE, frames.UnsubscribeBody(self.subscription))
        self._connection.handle(self.subscription, None)
