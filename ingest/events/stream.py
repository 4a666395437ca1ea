"""Streams of events. Each is a subscription that is its own pull point, emptied as fast as the client reads.

Messages are claimed, written, and settled some seconds after the client's system has acknowledged them: until then they
wait again if the connection ends. A request with a Last-Event-ID takes the subscription over, in any gateway: messages
up to that position are settled, the rest is handed out again, in its order. The earlier stream ends, because the
subscription has another termination time than it has set. Without a stream the subscription ends at that time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from arborcast.core.errors import InfrastructureError, PeerError, UnknownResource
from arborcast.ingest.access.grants import ClientRequest
from arborcast.ingest.elements.filters import SubscriptionPolicy
from arborcast.ingest.elements.properties import properties_of, read_stored
from arborcast.ingest.events.request import EVENT_STREAM, JSON_LINES, StreamRequest, position, read_request
from arborcast.ingest.http.asgi import UNACKNOWLEDGED, Receive, Scope, Send, header, until_disconnected
from arborcast.ingest.http.inflight import Reservation
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.subscribing import SubscriptionRequest, create_subscription
from arborcast.ingest.operations.subscription_manager import managed_subscription, replace
from arborcast.ingest.state.pull_queues import ClaimedMessage, MessageClaim
from arborcast.topic_model.cloud_events import event_of, published_with, structured
from arborcast.topic_model.grants import Caller
from arborcast.topic_model.namespaces import ARBORCAST_DELIVERY, wsa, wsnt
from arborcast.topic_model.records.notifications import original_of
from arborcast.topic_model.subscriptions import Subscription
from arborcast.wire import times
from arborcast.wire.errors import AccessRefused, InvalidRequest

logger = logging.getLogger(__name__)

# Maximum number, and bytes, of messages in a claim.
_AT_ONCE, _BYTES = 100, 64 * 1024

# Proxies and NAT end a connection that is idle for 30 seconds or more.
_HEARTBEAT_S = 15.0

# Delay before another attempt, where there is no memory, or no log.
_AGAIN_S = 1.0

# Interval at which the client of an open stream is authenticated again: its token ends, or its user is removed.
_AUTHENTICATE_AGAIN_S = 60.0

# In the metadata of a stored message: its type, unless that is the name of its payload.
_TYPE = f"{wsnt('SubscriptionReference')}/{wsa('Metadata')}/{{{ARBORCAST_DELIVERY}}}Type"

# The delay of a browser before it reconnects.
_RETRY_MS = 1_000


class _Sent(NamedTuple):
    """Written messages: the `end` of their claim, its time, and the number of bytes written up to their end. The
    messages themselves are not kept in memory."""

    end: Callable[[Collection[int] | None], None]
    at: float
    written: int


class EventStreams:
    """Answers the requests for streams. On the event loop's thread only."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.open = 0
        """Streams that are being sent."""

    async def answer(self, scope: Scope, receive: Receive, send: Send, reservation: Reservation) -> None:
        """One request. Raises PeerError or InfrastructureError before the head of the answer is sent."""
        try:
            client, caller = await self._client(scope)  # first: an expression takes a tenth of a second of the loop
            request = read_request(scope)
            subscription = await self._subscription(request, client, caller)
        except InfrastructureError as error:
            if EVENT_STREAM not in header(scope["headers"], b"accept").decode("latin-1"):
                raise
            # After an answer of another status a browser never connects again.
            await send(_head(EVENT_STREAM))
            comment = " ".join(str(error).split())  # a line break would begin a field
            await send({"type": "http.response.body", "body": f"retry: {_RETRY_MS}\n: {comment}\n\n".encode()})
            return
        disconnected = asyncio.ensure_future(until_disconnected(receive))
        stream = _Stream(self._gateway, reservation, subscription, request.media, send, disconnected)
        stream.unacknowledged = scope.get(UNACKNOWLEDGED, stream.unacknowledged)
        checked: asyncio.Future[None] | None = None
        if (gate := self._gateway.gate) is not None:
            checked = asyncio.ensure_future(stream.end_unless_authentic(partial(gate.authenticate, scope)))
        self.open += 1
        try:
            await stream.run()
        finally:
            self.open -= 1
            if checked is not None:
                checked.cancel()
            disconnected.cancel()
            stream.close()

    async def _client(self, scope: Scope) -> tuple[ClientRequest, Caller | None]:
        """Raises AccessRefused, or InfrastructureError where it cannot be found out."""
        gate = self._gateway.gate
        return (ClientRequest(""), None) if gate is None else await gate.enter_alone(scope)

    async def _subscription(self, request: StreamRequest, client: ClientRequest, caller: Caller | None) -> Subscription:
        gateway = self._gateway
        gateway.check_started()
        lease_ms = gateway.settings.stream_lease_s * 1000
        until_ms = times.to_ms(gateway.now()) + lease_ms
        if not request.stream:
            policy = SubscriptionPolicy(current_message=request.current)
            requested = SubscriptionRequest(
                request.filters, caller, client.client, policy=policy, terminates_ms=until_ms
            )
            return (await create_subscription(gateway, requested)).subscription
        await gateway.changes.catch_up()
        async with gateway.locks.hold(request.stream):
            there = managed_subscription(gateway, request.stream, caller)
            if there.pull_point != there.id or there.expired(until_ms - lease_ms):
                raise UnknownResource(
                    f"the stream {request.stream[:200]!r} has ended: {gateway.settings.stream_lease_s} s without a "
                    "connection end it (gateway.stream_lease_s); connect without Last-Event-ID"
                )
            topics = [each.normal for each in there.topics], there.content
            if topics != ([each.normal for each in request.filters.topics], request.filters.content):
                raise InvalidRequest(
                    f"the stream {request.stream} has another topic expression or other filters: connect without "
                    "Last-Event-ID for a new stream"
                )
            # Another time than before, in any case: by that an earlier stream ends.
            ours = await replace(gateway, there, terminates_ms=max(until_ms, (there.terminates_ms or 0) + 1))
        await gateway.pulls.resume(ours.id, request.after)
        return ours


class _Stream:
    """One stream, of one connection."""

    def __init__(
        self,
        gateway: Gateway,
        reservation: Reservation,
        subscription: Subscription,
        media: str,
        send: Send,
        disconnected: asyncio.Future[None],
    ) -> None:
        self._gateway = gateway
        self._inflight = gateway.inflight
        self._reservation = reservation
        self._subscription = subscription
        self._lines = media == JSON_LINES
        self._send = send
        self._disconnected = disconnected
        self._loop = asyncio.get_running_loop()
        self._written = 0
        self._sent: deque[_Sent] = deque()
        # A claim counts as abandoned after pull_claim_s.
        self._keep_s = gateway.settings.pull_claim_s / 2
        self.unacknowledged: Callable[[], int] = lambda: 0
        """The bytes that the client's system has not acknowledged."""

    async def run(self) -> None:
        """Send waiting messages until the client hangs up, the subscription ends, or another stream takes it over."""
        identifier = self._subscription.id
        await self._send(_head(JSON_LINES if self._lines else EVENT_STREAM, identifier))
        await self._write(b"" if self._lines else f"retry: {_RETRY_MS}\nid: {position(identifier)}\n\n".encode())
        while self._is_ours() and self._settle():
            try:
                await self._renew()
                await self._gateway.pulls.until_waiting(identifier, self._wait_s(), self._disconnected)
                if self._is_ours():
                    await self._hand_out()
            except InfrastructureError as error:
                logger.debug("messages of the stream %s wait: %s", identifier, error)
                await asyncio.sleep(error.retry_after or _AGAIN_S)
        with contextlib.suppress(OSError):
            await self._send({"type": "http.response.body", "body": b""})

    async def end_unless_authentic(self, authenticate: Callable[[], Awaitable[object]]) -> None:
        """Authenticate the client again and again, and end the stream when it is refused."""
        while True:
            await asyncio.sleep(_AUTHENTICATE_AGAIN_S)
            try:
                await authenticate()
            except InfrastructureError as error:
                logger.debug("the client of the stream %s cannot be authenticated: %s", self._subscription.id, error)
            except AccessRefused as error:  # after many wrong tokens of its address, an expired one is TooManyRequests
                logger.info("the stream %s is closed: %s", self._subscription.id, error)
                self._disconnected.cancel()
                return

    def close(self) -> None:
        """Messages that are not settled wait again, the newest first: earlier ones are before them in the queue."""
        while self._sent:
            self._sent.pop().end(())

    def _is_ours(self) -> bool:
        there = self._gateway.table.get(self._subscription.id)
        ours = there is not None and there.terminates_ms == self._subscription.terminates_ms
        return ours and not self._disconnected.done()

    async def _hand_out(self) -> None:
        """Claim what waits, within the memory for requests, and write it; a comment if nothing does. Raises
        InfrastructureError."""
        pulls, identifier = self._gateway.pulls, self._subscription.id
        size = pulls.next_bytes(identifier, _AT_ONCE, _BYTES)
        if not size:
            await self._write(b"\n" if self._lines else b":\n\n")
            if not self._sent:  # without an acknowledgement of its system the client is dead, too
                self._sent.append(_Sent(lambda _: None, self._loop.time(), self._written))
        elif self._inflight.take_answer(self._reservation, size):
            try:
                claimed = await pulls.take(identifier, _AT_ONCE, 0, size=size)
                if self._is_ours():
                    await self._write_all(claimed)
                else:
                    claimed.end(())  # another stream has taken over since the claim
            finally:
                self._inflight.shrink_answer(self._reservation, size)
        else:
            await asyncio.sleep(_AGAIN_S)

    async def _write_all(self, claimed: MessageClaim) -> None:
        try:
            for each in claimed.messages:
                await self._write(self._event(each))
            await self._write(b"")
        except BaseException:
            claimed.end(())
            raise
        self._sent.append(_Sent(claimed.end, self._loop.time(), self._written))

    async def _write(self, data: bytes) -> None:
        """Returns when the connection takes more."""
        self._written += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def _event(self, message: ClaimedMessage) -> bytes:
        where = position(self._subscription.id, message.offset)
        try:
            element, read = read_stored(message.element)
        except PeerError as error:
            logger.error("message %d of the stream %s was given up: %s", message.offset, self._subscription.id, error)
            return b""
        event = event_of(
            original_of(message.notification),
            str(read.topic or ""),
            read.payload,
            message.accepted_ms,
            self._gateway.own.base,
            element.findtext(_TYPE) or "",
            published_with(properties_of(element)),
        )
        event = event._replace(attributes={**event.attributes, "cursor": where})
        # Outside strings, where there are none, line breaks are blanks of JSON.
        text = structured(event).replace(b"\r", b" ").replace(b"\n", b" ")
        return text + b"\n" if self._lines else b"id: %s\ndata: %s\n\n" % (where.encode(), text)

    def _settle(self) -> bool:
        """Settle messages that the client received some time ago; False if the client's system has not acknowledged the
        oldest for so long that another gateway could hand it out."""
        now, acknowledged = self._loop.time(), self._written - self.unacknowledged()
        while self._sent and now - self._sent[0].at >= self._keep_s and self._sent[0].written <= acknowledged:
            self._sent.popleft().end(None)
        return not self._sent or now - self._sent[0].at < 1.5 * self._keep_s

    def _wait_s(self) -> float:
        if not self._sent:
            return _HEARTBEAT_S
        return min(_HEARTBEAT_S, max(self._sent[0].at + self._keep_s - self._loop.time(), self._keep_s / 10))

    async def _renew(self) -> None:
        gateway, ours = self._gateway, self._subscription
        now_ms, lease_ms = times.to_ms(gateway.now()), gateway.settings.stream_lease_s * 1000
        if (ours.terminates_ms or 0) - now_ms > lease_ms / 2:
            return
        async with gateway.locks.hold(ours.id):
            current = gateway.table.get(ours.id)  # an operator may have paused it
            if current is not None and self._is_ours():
                with contextlib.suppress(UnknownResource):  # then it is not ours any more
                    self._subscription = await replace(gateway, current, terminates_ms=now_ms + lease_ms)


def _head(media: str, stream: str = "") -> dict[str, Any]:
    headers = [
        (b"arborcast-stream", stream.encode()),
        (b"content-type", f"{media}; charset=utf-8".encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),  # of nginx
    ]
    return {"type": "http.response.start", "status": 200, "headers": headers}
