"""One connection's session: its authentication, and the handlers of its frames. Without a transport; on the event
loop."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from arborcast.core.errors import ArborcastError, InfrastructureError, PeerError
from arborcast.core.single_flight import spawn
from arborcast.ingest.access.grants import ClientRequest
from arborcast.ingest.framed import subscriptions
from arborcast.ingest.framed.publishing import FrameLink, Publisher
from arborcast.ingest.framed.subscriptions import Counts, Outgoing, Sender
from arborcast.ingest.http.inflight import SMALL, Inflight, Reservation
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.publishing import PublishingClient, again
from arborcast.ingest.settings import FramedSettings
from arborcast.wire import frames, limits
from arborcast.wire.errors import AccessRefused, InvalidRequest, NotAuthenticated, TooLarge, TooManyRequests
from arborcast.wire.frames import Frame, FrameError, FrameKind, ReceiptBody

logger = logging.getLogger(__name__)

# Interval at which rights of an open connection are checked again.
_AUTHENTICATE_AGAIN_S = 60.0

# SUBSCRIBE and UNSUBSCRIBE in progress at a time; while more wait, the connection is not read.
_MOST_REQUESTS = 16

# Why a connection is not read.
_CONNECTING, _WAITING = "CONNECT is in progress", "many requests wait"


@dataclass(frozen=True)
class Edge:
    """The objects that all sessions share."""

    gateway: Gateway
    settings: FramedSettings
    counts: Counts = field(default_factory=Counts)


class _Requests:
    """SUBSCRIBE and UNSUBSCRIBE of one connection, in their order. With more than `_MOST_REQUESTS` in progress the
    connection is not read."""

    def __init__(self, inflight: Inflight, link: FrameLink) -> None:
        self._inflight = inflight
        self._link = link
        self._memory = Reservation(inflight)
        self._waiting: deque[tuple[int, Callable[[], Coroutine[Any, Any, None]]]] = deque()
        self._runs = 0

    def add(self, size: int, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Whether the caller has to start one more `run`."""
        self._waiting.append((size, work))
        self._inflight.count(self._memory, size)
        if self._runs >= _MOST_REQUESTS:
            self._link.read(False, _WAITING)
            return False
        self._runs += 1
        return True

    async def run(self) -> None:
        try:
            while self._waiting:
                size, work = self._waiting.popleft()
                if not self._waiting:
                    self._link.read(True, _WAITING)
                await work()
                self._inflight.shrink(self._memory, size)
        finally:
            self._runs -= 1

    def close(self) -> None:
        self._memory.release()


class FramedSession:
    """One connection. `scope` has its addresses, as that of a request of HTTP."""

    def __init__(self, edge: Edge, link: FrameLink, scope: Mapping[str, Any]) -> None:
        self._edge = edge
        self._link = link
        self._scope = scope
        self._client: ClientRequest | None = None
        self._authenticated_at = 0.0
        self._early: list[Frame] | None = None  # frames that arrive during the authentication
        self._early_bytes = 0  # with their heads: a read may have 16,000 frames without a body
        self._publisher: Publisher | None = None
        self._consumers: dict[str, tuple[Sender, asyncio.Task[None], bool]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # These are made when they are needed: an idle connection is small.
        self._requests: _Requests | None = None
        self._outgoing: Outgoing | None = None
        self._subscribing = 0
        self.connected = False

    def received(self, frame: Frame) -> None:
        """Process one frame. Raises FrameError if the connection has to end."""
        self._edge.counts.received[frames.NAMES.get(frame.kind, "unknown")] += 1
        if self._early is not None:
            self._early.append(frame)
            self._early_bytes += frames.HEAD_BYTES + len(frame.body)
            if self._early_bytes > limits.UNKNOWN_CLIENT:
                self._early.clear()
                raise FrameError(f"more than {limits.UNKNOWN_CLIENT} bytes before CONNECTED: wait for it")
            return
        if not self.connected and frame.kind not in _ANY_TIME:
            if frame.kind == FrameKind.CONNECT:
                self._early = []
                self._link.read(False, _CONNECTING)
                spawn(self._tasks, self._connect(frame))
            else:
                self._refuse(frame, NotAuthenticated("the first frame has to be CONNECT"))
                self._link.close()
            return
        self._handle(frame)

    @property
    def unknown(self) -> bool:
        """Whether the client has not sent CONNECT yet. Its check may take longer."""
        return not self.connected and self._early is None

    async def close(self) -> None:
        """The connection is closed: current work ends, and so do its own subscriptions."""
        if self._requests is not None:
            self._requests.close()
        for task in list(self._tasks):
            task.cancel()
        consumers = list(self._consumers.values())
        self._consumers.clear()
        for consumer, task, _ in consumers:
            task.cancel()
            consumer.close()
        if self._publisher is not None:
            await self._publisher.close()
        for consumer, _, durable in consumers:
            if not durable:
                await subscriptions.end_quietly(self._edge.gateway, consumer.subscription)

    def _handle(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.PUBLISH:
                if self._publisher is None:
                    self._publisher = Publisher(self._edge.gateway, self._link, self._enter, self._refuse)
                self._publisher.add(frame)
            case FrameKind.SUBSCRIBE:
                self._enqueue(frame, self._subscribe)
            case FrameKind.UNSUBSCRIBE:
                self._enqueue(frame, self._unsubscribe)
            case FrameKind.ACK | FrameKind.REFUSE:
                if self._outgoing is not None:
                    self._outgoing.answered(frame.correlation, taken=frame.kind == FrameKind.ACK)
            case FrameKind.PING:
                self._link.send(frames.encode(FrameKind.PONG, frame.correlation))
            case FrameKind.PONG:
                pass
            case FrameKind.CLOSE:
                self._link.close()
            case FrameKind.CONNECT:
                self._refuse(frame, InvalidRequest("this connection has sent CONNECT already"))
            case _:
                self._refuse(frame, InvalidRequest(f"clients send no frame of type {frame.kind}"))

    async def _connect(self, frame: Frame) -> None:
        early: list[Frame] = []
        try:
            self._edge.gateway.check_started()
            connect = frames.read_body(frame, frames.ConnectBody)
            if connect.protocol != frames.VERSION:
                raise InvalidRequest(f"the protocol is {frames.VERSION}, not {connect.protocol}")
            self._scope = {**self._scope, "headers": _credentials(connect)}
            if (gate := self._edge.gateway.gate) is not None:
                self._client, _ = await gate.enter_alone(self._scope)
            self._authenticated_at = asyncio.get_running_loop().time()
            settings = self._edge.settings
            answer = frames.ConnectedBody(secrets.token_urlsafe(12), settings.max_frame_bytes, settings.idle_s)
            self._link.send(frames.encode(FrameKind.CONNECTED, frame.correlation, answer))
            self.connected = True
            self._link.known()
        except Exception as error:
            self._refuse(frame, error)
        finally:
            early, self._early = self._early or [], None
        if not self.connected:
            self._link.close()
            return
        self._link.read(True, _CONNECTING)
        for each in early:
            self.received(each)

    def _enter(self, frame: Frame) -> PublishingClient:
        """Raises AccessRefused."""
        return again(self._edge.gateway, self._client, len(frame.body))

    @property
    def check_at(self) -> float:
        """The time of the next check of its identity, also of a client that only receives."""
        return math.inf if self._client is None else self._authenticated_at + _AUTHENTICATE_AGAIN_S

    def check_identity(self) -> None:
        self._authenticated_at = asyncio.get_running_loop().time()
        spawn(self._tasks, self._authenticate_again())

    async def _authenticate_again(self) -> None:
        if (gate := self._edge.gateway.gate) is None:
            return
        try:
            self._client = await gate.authenticate(self._scope)
        except AccessRefused as error:  # after many wrong tokens of its address, an expired one is TooManyRequests
            logger.info("a connection is closed: %s", error)
            self._link.send(_error(0, error))
            self._link.close()
        except InfrastructureError as error:
            logger.debug("the client cannot be authenticated: %s", error)

    def _enqueue(self, frame: Frame, work: Callable[[Frame], Coroutine[Any, Any, str]]) -> None:
        size = len(frame.body)
        if size > SMALL:
            self._refuse(frame, TooLarge(f"a {frames.NAMES[frame.kind]} may have {SMALL} bytes, this one has {size}"))
            return
        if self._requests is None:
            self._requests = _Requests(self._edge.gateway.inflight, self._link)
        if self._requests.add(size, lambda: self._answer(frame, work)):
            spawn(self._tasks, self._requests.run())

    async def _answer(self, frame: Frame, work: Callable[[Frame], Coroutine[Any, Any, str]]) -> None:
        try:
            made = await work(frame)
        except Exception as error:
            self._refuse(frame, error)
        else:
            self._link.send(frames.encode(FrameKind.RECEIPT, frame.correlation, ReceiptBody(made)))

    async def _subscribe(self, frame: Frame) -> str:
        client = self._enter(frame)
        body = frames.read_body(frame, frames.SubscribeBody)
        if len(self._consumers) + self._subscribing >= limits.CONNECTION_SUBSCRIPTIONS:
            raise InvalidRequest(f"a connection may have {limits.CONNECTION_SUBSCRIPTIONS} subscriptions")
        self._subscribing += 1
        try:
            made = await subscriptions.subscribe(self._edge.gateway, body, client.caller, client.client)
        finally:
            self._subscribing -= 1
        if made.id in self._consumers:
            raise InvalidRequest(f"this connection has the subscription {body.name!r} already")
        if self._outgoing is None:
            self._outgoing = Outgoing(self._link, self._edge.counts)
        consumer = Sender(self._edge.gateway, self._outgoing, made.id, body.window)
        task = asyncio.get_running_loop().create_task(self._consume(consumer))
        self._consumers[made.id] = consumer, task, bool(body.name)
        return made.id

    async def _consume(self, consumer: Sender) -> None:
        try:
            await consumer.run()
        except Exception:
            logger.exception("messages of %s cannot be sent", consumer.subscription)
            self._link.close()
        else:
            # It was ended by another client.
            self._consumers.pop(consumer.subscription, None)
            consumer.outgoing.forget(consumer)
            error = InvalidRequest(f"the subscription {consumer.subscription} has ended")
            self._link.send(_error(0, error, "SubscriptionEnded"))

    async def _unsubscribe(self, frame: Frame) -> str:
        caller = self._enter(frame).caller
        identifier = frames.read_body(frame, frames.UnsubscribeBody).subscription
        consumer, task, _ = self._consumers.pop(identifier, (None, None, False))
        if consumer is not None and task is not None:
            task.cancel()
            consumer.outgoing.forget(consumer)
            consumer.close()
        await subscriptions.unsubscribe(self._edge.gateway, identifier, caller)
        return identifier

    def _refuse(self, frame: Frame, error: Exception) -> None:
        if not isinstance(error, (PeerError, InfrastructureError)):
            logger.error("%s failed", frames.NAMES[frame.kind], exc_info=error)
        self._edge.counts.refused[_code(error)] += 1
        self._link.send(_error(frame.correlation, error))


_ANY_TIME = frozenset({FrameKind.PING, FrameKind.PONG, FrameKind.CLOSE})


def _credentials(connect: frames.ConnectBody) -> list[tuple[bytes, bytes]]:
    if connect.bearer:
        return [(b"authorization", f"Bearer {connect.bearer}".encode("utf-8", "replace"))]
    if connect.user:
        return [(b"authorization", b"Basic " + base64.b64encode(f"{connect.user}:{connect.password}".encode()))]
    return []


def _code(error: Exception) -> str:
    return type(error).__name__ if isinstance(error, ArborcastError) else "Defect"


def _error(correlation: int, error: Exception, code: str = "") -> bytes:
    text = str(error) if isinstance(error, ArborcastError) else "internal error"
    retry_after: float | None = None
    if isinstance(error, InfrastructureError):
        retry_after = error.retry_after
    elif isinstance(error, TooManyRequests):
        retry_after = error.retry_after_s
    body = frames.ErrorBody(code or _code(error), text[:2_000], retry_after)
    return frames.encode(FrameKind.ERROR, correlation, body)
