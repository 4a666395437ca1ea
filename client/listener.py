"""A small HTTP receiver for pushed notifications, for consumers without a web server.

with Listener(lambda message: print(message.topic, message.payload)) as listener:
    client.subscribe("plant//.", to=listener.url)
    first = listener.wait_for("plant/line1//.", timeout=10)
    ...
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal

from arborcast.client.assembler import Assembler
from arborcast.client.http_server import MAX_BODY, NO_PAGES, Response, Server, in_thread
from arborcast.client.later import OpenPush
from arborcast.client.queues.replies import Replies
from arborcast.client.received import OnMessage, ReceivedMessage, Verify, read_push, read_push_request
from arborcast.client.transport import RequestsTransport, Transport
from arborcast.client.triggers import Triggers
from arborcast.core.errors import PeerError, SignatureError
from arborcast.core.log_limit import LogLimit
from arborcast.core.recent import Recent
from arborcast.core.security.web_pages import is_of_browser
from arborcast.wire import faults
from arborcast.wire.endpoints import CHALLENGE_HEADER, consent_body
from arborcast.wire.errors import UnreadableRequest
from arborcast.wire.times import utc_now

__all__ = ["Assembler", "Busy", "Listener", "ListenerApp", "OnMessage", "ReceivedMessage", "Verify", "read_push"]

logger = logging.getLogger(__name__)
logger.addFilter(LogLimit())  # any client can send pushes

# The cache of handled ids: bytes in each of two generations, and their age.
_REMEMBERED = 32 * 1024 * 1024
_REMEMBERED_S = 3_600.0

# ASGI's.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Busy(Exception):
    """Raised by a callback without room for a message: the push is answered 503, and the broker repeats it."""


Parts = Assembler | Literal["joined", "apart"]

OnMessageAsync = Callable[[ReceivedMessage], Awaitable[None]]


class Listener(Server, Triggers):
    """Receives pushes and calls callbacks with each message; after an exception of a callback the broker repeats it.

    Callbacks run in threads, possibly concurrently: `on_message` for all messages, and others for some topics, see
    `on`. Port 0 means a free port; see `url`. `verify` checks pushes: if it raises, the push is answered 401.
    `transport` sends deferred results. With `once`, repetitions of handled messages are acknowledged without a
    callback. Messages in `parts` are joined, by the given Assembler or a new one; with "apart" callbacks get each part.
    """

    def __init__(
        self,
        on_message: OnMessage | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        verify: Verify | None = None,
        transport: Transport | None = None,
        once: bool = False,
        parts: Parts = "joined",
    ) -> None:
        Triggers.__init__(self, on_message)
        self.replies = Replies()
        """The awaited answers of `Client.request`; callbacks do not get them."""
        self._app = _ThreadedApp(self._deliver, verify, transport, parts, HandledIds() if once else None)
        Server.__init__(self, self._app.handled, port, host, "listener")

    def _deliver(self, message: ReceivedMessage) -> None:
        if not self.replies.take(message):
            self._trigger(message)

    def stop(self) -> None:
        """Stop receiving."""
        super().stop()
        self._app.close()
        self._end_waits()


class ListenerApp:
    """A listener as an ASGI application, for another web server: `uvicorn.run(ListenerApp(on_message))`.

    The callback may be a coroutine function; an ordinary function runs on the event loop and must not block it.
    """

    def __init__(
        self,
        on_message: OnMessage | OnMessageAsync,
        verify: Verify | None = None,
        transport: Transport | None = None,
        parts: Parts = "joined",
    ) -> None:
        self._on_message = on_message
        self._own_assembler = Assembler()
        self._assembler = {"joined": self._own_assembler, "apart": None}[parts] if isinstance(parts, str) else parts
        self._verify = verify
        self._own = RequestsTransport()
        self._transport: Transport = self._own if transport is None else transport

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            self.close()
            return
        if scope["method"] != "POST":
            await _respond(send, Response(405))
            return
        await _respond(send, await self._answer(scope["headers"], receive))

    async def _answer(self, headers: Sequence[tuple[bytes, bytes]], receive: Receive) -> Response:
        codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
        if codings not in ([], [b"chunked"]):
            return Response(400)  # untrusted bodies are not decompressed
        body = await _read_body(receive)
        if body is None:
            return Response(413)
        named = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
        if is_of_browser(named):
            return NO_PAGES
        return await self.handled(named, body)

    async def handled(self, headers: Mapping[str, str], body: bytes) -> Response:
        """The answer to a POST; `headers` by names in lower case."""
        push = OpenPush(headers, self._transport)
        messages = accepted(headers, body, self._verify, push)
        if isinstance(messages, Response):
            return messages
        try:
            for message in messages:
                with self._joined(message) as joined:
                    handled = None if joined is None else self._on_message(joined)
                    if handled is not None:
                        await handled
        except Exception as error:
            return _failed(push, error)
        return answered(push)

    def _joined(self, message: ReceivedMessage) -> AbstractContextManager[ReceivedMessage | None]:
        return contextlib.nullcontext(message) if self._assembler is None else self._assembler.joined(message)

    def close(self) -> None:
        """Close connections to brokers; a later deferred result opens them again. Incomplete messages are given up."""
        self._own.close()
        self._own_assembler.close()


class _ThreadedApp(ListenerApp):
    """A ListenerApp whose callback may block: each push has its own thread."""

    def __init__(
        self,
        on_message: OnMessage,
        verify: Verify | None,
        transport: Transport | None,
        parts: Parts,
        repeats: HandledIds | None,
    ) -> None:
        super().__init__(on_message, verify, transport, parts)
        self._deliver = on_message
        self._repeats = repeats

    async def handled(self, headers: Mapping[str, str], body: bytes) -> Response:
        """As in the base class, in a thread."""
        return await in_thread("push", lambda: self._handle_push(headers, body))

    def _handle_push(self, headers: Mapping[str, str], body: bytes) -> Response:
        push = OpenPush(headers, self._transport)
        try:
            messages = accepted(headers, body, self._verify, push)
            if isinstance(messages, Response):
                return messages
            for message in messages:
                self._handle(message)
        except Exception as error:
            return _failed(push, error)
        return answered(push)

    def _handle(self, message: ReceivedMessage) -> None:
        if self._repeats is None or not message.notification_id:
            self._handle_now(message)
            return
        pending = self._repeats.begin((message.notification_id,), message.sequence > 0)
        handled = False
        try:
            if pending:
                self._handle_now(message)
            handled = True
        finally:
            self._repeats.end(pending, handled)

    def _handle_now(self, message: ReceivedMessage) -> None:
        with self._joined(message) as joined:
            if joined is not None:
                self._deliver(joined)


class HandledIds:
    """The ids of notifications handled within the last hour. Several threads may use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: set[str] = set()
        self._done: Recent[str, bool] = Recent(_REMEMBERED, age_s=_REMEMBERED_S)

    def begin(self, ids: Iterable[str], repeated: bool) -> set[str]:
        """The ids to handle now; if `repeated`, without the handled ones. Waits for the end of concurrent handling of
        the same ids. `end` must be called for the result."""
        requested = set(ids)
        with self._changed:
            while self._running & requested:
                self._changed.wait()
            pending = {each for each in requested if not (repeated and self._done.get(each))}
            self._running |= pending
        return pending

    def end(self, ids: set[str], handled: bool) -> None:
        """Note that the handling of these ids has ended, with success if `handled`."""
        with self._changed:
            self._running -= ids
            for each in ids if handled else ():
                self._done.put(each, True, len(each))
            self._changed.notify_all()


def accepted(
    headers: Mapping[str, str], body: bytes, verify: Verify | None, push: OpenPush
) -> list[ReceivedMessage] | Response:
    """The messages of a push, or the answer to another request."""
    challenge = headers.get(CHALLENGE_HEADER.lower())
    if challenge is not None and not body:
        consent = consent_body(challenge)
        return Response(400) if consent is None else Response(200, consent, "text/plain; charset=utf-8")
    if verify is not None:
        try:
            verify(headers, body)
        except Exception as error:
            logger.warning("a push that could not be verified was refused: %s", error)
            # Only own messages are sent to the client; those of other functions may contain anything.
            reason = str(error) if isinstance(error, SignatureError) else "this push could not be verified"
            return Response(401, reason.encode(), "text/plain; charset=utf-8")
    try:
        return [replace(message, push=push) for message in read_push_request(headers, body)]
    except PeerError as error:
        soap = error.soap if isinstance(error, UnreadableRequest) else "1.1"
        answer = faults.of_peer(error, soap, None, utc_now())
        return Response(answer.status, answer.body, answer.content_type.decode())


_ANSWERS = {"delivered": Response(202), "failed": Response(500), "refused": Response(400)}

_LATER = Response(202, headers=(("Arborcast-Result", "later"),))


def answered(push: OpenPush) -> Response:
    """The answer to a handled push."""
    state = push.answered()
    return _LATER if state is None else _ANSWERS[state]


def _failed(push: OpenPush, error: Exception) -> Response:
    push.dropped()
    if isinstance(error, Busy):
        return Response(503)
    logger.exception("a pushed message could not be handled; the broker will try again")
    return Response(500)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


async def _read_body(receive: Receive) -> bytes | None:
    """The body; None if it is too large."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


async def _respond(send: Send, response: Response) -> None:
    headers = [(b"content-length", str(len(response.body)).encode())]
    if response.content_type:
        headers.append((b"content-type", response.content_type.encode()))
    headers += [(name.lower().encode(), value.encode()) for name, value in response.headers]
    if response.status == 405:
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
