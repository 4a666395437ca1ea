"""A small HTTP receiver for pushed notifications, for consumers that have no web server of their own.

with Listener(lambda message: print(message.topic, message.payload)) as listener:
    client.subscribe("plant//.", to=listener.url)
    first = listener.wait_for("plant/line1//.", timeout=10)
    ...
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal, Self

from core.errors import PeerError, SignatureError
from ingest.client.assembler import Assembler
from ingest.client.http_server import MAX_BODY, HttpServer, Response
from ingest.client.later import OpenPush, open_push
from ingest.client.received import OnMessage, ReceivedMessage, Verify, read_push, read_push_request
from ingest.client.transport import RequestsTransport, Transport
from ingest.client.triggers import Namespaces, Triggers
from ingest.elements.endpoints import CHALLENGE_HEADER, agreement
from ingest.errors import UnreadableRequest
from ingest.soap import faults
from ingest.soap.times import utc_now

__all__ = ["Assembler", "Listener", "ListenerApp", "OnMessage", "ReceivedMessage", "Verify", "read_push"]

logger = logging.getLogger(__name__)

_BACKLOG = 128

# How long a stop waits for callbacks that are at work.
_STOP_S = 1.0

# ASGI's.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

Parts = Assembler | Literal["joined", "apart"]

OnMessageAsync = Callable[[ReceivedMessage], Awaitable[None]]


class Listener:
    """Receives pushes and hands over each message; what a callback raises makes the broker try again.

    Callbacks run in threads, perhaps in several at once: `on_message` for all messages, and others for those of some
    topics, see `on`. Port 0 takes a free one; see `url`. With `verify`, a push for which it raises is answered 401 and
    not handed over. `transport` carries results that are said later. Messages in `parts` are joined, by an Assembler of
    its own or the one that is given; "apart" hands over each part.
    """

    def __init__(
        self,
        on_message: OnMessage | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        verify: Verify | None = None,
        transport: Transport | None = None,
        parts: Parts = "joined",
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._host, self._port = self._socket.getsockname()[:2]
        self._triggers = Triggers(on_message)
        self._app = _ThreadedApp(self._triggers, verify, transport, parts)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._port)

    @property
    def url(self) -> str:
        """What to give as ConsumerReference."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}/"

    def on(self, expression: str, callback: OnMessage, namespaces: Namespaces = None) -> Callable[[], None]:
        """Call this with each message of these topics from now on, behind `on_message`; what it returns ends that.

        Topics are written as for `subscribe`, which has to be done, too. Raises ExpressionError.
        """
        return self._triggers.on(expression, callback, namespaces)

    def wait_for(self, expression: str, timeout: float | None = None, namespaces: Namespaces = None) -> ReceivedMessage:
        """The next message of these topics, when all callbacks have had it.

        Raises TimeoutError when none comes within so many seconds, ClientError when the listener is stopped,
        ExpressionError.
        """
        return self._triggers.wait_for(expression, timeout, namespaces)

    def seen(self, expression: str, namespaces: Namespaces = None) -> bool:
        """Whether a message of these topics has come since this was last asked of them, or since the beginning.

        For who looks now and then. Of the 10,000 topics that came last. Raises ExpressionError.
        """
        return self._triggers.seen(expression, namespaces)

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Stop receiving."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        self._socket.close()
        self._app.close()
        self._triggers.stop()

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
        server = HttpServer(self._app.handled)
        await server.start(self._socket)
        self._ready.set()
        await self._stopping.wait()
        await server.stop(self._socket, _STOP_S)


class ListenerApp:
    """The same as an ASGI application, for a web server of one's own: `uvicorn.run(ListenerApp(on_message))`.

    The callback may be a coroutine function; one that is not runs on the event loop and must not block it.
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
            return Response(400)  # nothing is unpacked for a stranger
        body = await _whole_body(receive)
        if body is None:
            return Response(413)
        named = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
        return await self.handled(named, body)

    async def handled(self, headers: Mapping[str, str], body: bytes) -> Response:
        """The answer to a POST; `headers` by names in lower case."""
        push = open_push(headers, self._transport)
        messages = _accept(headers, body, self._verify, push)
        if isinstance(messages, Response):
            return messages
        try:
            for message in messages:
                with self._joined(message) as whole:
                    handled = None if whole is None else self._on_message(whole)
                    if handled is not None:
                        await handled
        except Exception:
            return _failed(push)
        return _done(push)

    def _joined(self, message: ReceivedMessage) -> AbstractContextManager[ReceivedMessage | None]:
        return contextlib.nullcontext(message) if self._assembler is None else self._assembler.joined(message)

    def close(self) -> None:
        """Close connections to brokers; what is said later opens them again. Messages that lack parts are given up."""
        self._own.close()
        self._own_assembler.close()


class _ThreadedApp(ListenerApp):
    """With a callback that may block: each push has a thread of its own, which is not joined at the end."""

    def __init__(self, on_message: OnMessage, verify: Verify | None, transport: Transport | None, parts: Parts) -> None:
        super().__init__(on_message, verify, transport, parts)
        self._hand_over = on_message

    async def handled(self, headers: Mapping[str, str], body: bytes) -> Response:
        """As in the base class, in a thread."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Response] = loop.create_future()

        def tell(response: Response) -> None:
            if not answer.done():
                answer.set_result(response)

        def work() -> None:
            response = self._handled_here(headers, body)
            # The listener may have been stopped meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell, response)

        threading.Thread(target=work, name="push", daemon=True).start()
        return await answer

    def _handled_here(self, headers: Mapping[str, str], body: bytes) -> Response:
        push = open_push(headers, self._transport)
        try:
            messages = _accept(headers, body, self._verify, push)
            if isinstance(messages, Response):
                return messages
            for message in messages:
                with self._joined(message) as whole:
                    if whole is not None:
                        self._hand_over(whole)
        except Exception:
            return _failed(push)
        return _done(push)


def _accept(
    headers: Mapping[str, str], body: bytes, verify: Verify | None, push: OpenPush
) -> list[ReceivedMessage] | Response:
    """The messages of a push, or the answer to what is none."""
    challenge = headers.get(CHALLENGE_HEADER.lower())
    if challenge is not None and not body:
        agreed = agreement(challenge)
        return Response(400) if agreed is None else Response(200, agreed, "text/plain; charset=utf-8")
    if verify is not None:
        try:
            verify(headers, body)
        except Exception as error:
            logger.warning("a push that could not be verified was refused: %s", error)
            # Our own words may go to whoever sent it; what another function says may hold anything.
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


def _done(push: OpenPush) -> Response:
    """The answer to a push whose messages were handled."""
    state = push.answered()
    return _LATER if state is None else _ANSWERS[state]


def _failed(push: OpenPush) -> Response:
    push.dropped()
    logger.exception("a pushed message could not be handled; the broker will try again")
    return Response(500)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


async def _whole_body(receive: Receive) -> bytes | None:
    """None when it is too large."""
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
