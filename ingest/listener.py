"""A small HTTP receiver for pushed notifications, for consumers that have no web server of their own.

with Listener(lambda message: print(message.topic, message.payload)) as listener:
    client.subscribe("plant//.", to=listener.url)
    ...
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from ingest import faults
from ingest.errors import UnreadableRequest
from ingest.gateway import utc_now
from ingest.ownership import HEADER, agreement
from ingest.received import OnMessage, ReceivedMessage, Verify, read_push, read_push_request
from topic_model.errors import PeerError, SignatureError

__all__ = ["Listener", "ListenerApp", "OnMessage", "ReceivedMessage", "Verify", "read_push"]

logger = logging.getLogger(__name__)

# A broker that stops in the middle of a request must not hold a thread for ever.
_READ_TIMEOUT_S = 30

_MAX_BODY = 64 * 1024 * 1024

# Python's int() takes signs, underscores and other scripts' digits too.
_LENGTH = re.compile(r"[0-9]{1,10}")
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")


OnMessageAsync = Callable[[ReceivedMessage], Awaitable[None]]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Listener:
    """Receives pushes in threads and hands over each message; what the callback raises makes the broker try again.

    The callback may run in several threads at once. Port 0 takes a free one; see `url`. With `verify`, a push for which
    it raises is answered 401 and not handed over.
    """

    def __init__(
        self, on_message: OnMessage, port: int = 0, host: str = "127.0.0.1", *, verify: Verify | None = None
    ) -> None:
        self._server = _Server((host, port), on_message, verify)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="listener", daemon=True)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """What to give as ConsumerReference."""
        host = str(self._server.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def stop(self) -> None:
        """Stop receiving."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class ListenerApp:
    """The same as an ASGI application, for a web server of one's own: `uvicorn.run(ListenerApp(on_message))`.

    The callback may be a coroutine function; one that is not runs on the event loop and must not block it.
    """

    def __init__(self, on_message: OnMessage | OnMessageAsync, verify: Verify | None = None) -> None:
        self._on_message = on_message
        self._verify = verify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["method"] != "POST":
            await _respond(send, Response(405))
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        body = await _whole_body(receive)
        if body is None:
            await _respond(send, Response(413))
            return
        messages = _accept(headers, body, self._verify)
        if isinstance(messages, Response):
            await _respond(send, messages)
            return
        try:
            for message in messages:
                handled = self._on_message(message)
                if handled is not None:
                    await handled
        except Exception:
            await _respond(send, _failed())
        else:
            await _respond(send, Response(202))


@dataclass(frozen=True)
class Response:
    """What a push is answered with."""

    status: int
    body: bytes = b""
    content_type: str = ""


def _accept(headers: Mapping[str, str], body: bytes, verify: Verify | None) -> list[ReceivedMessage] | Response:
    """The messages of a push, or the answer to what is none."""
    challenge = headers.get(HEADER.lower())
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
        return read_push_request(headers, body)
    except PeerError as error:
        soap = error.soap if isinstance(error, UnreadableRequest) else "1.1"
        answer = faults.of_peer(error, soap, None, utc_now())
        return Response(answer.status, answer.body, answer.content_type.decode())


def _failed() -> Response:
    logger.exception("a pushed message could not be handled; the broker will try again")
    return Response(500)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], on_message: OnMessage, verify: Verify | None) -> None:
        super().__init__(address, _Handler)
        self.on_message = on_message
        self.verify = verify


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _READ_TIMEOUT_S
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        body = self._body()
        if body is None:
            return
        messages = _accept({k.lower(): v for k, v in self.headers.items()}, body, self.server.verify)
        if isinstance(messages, Response):
            self._answer(messages)
            return
        try:
            for message in messages:
                self.server.on_message(message)
        except Exception:
            self._answer(_failed())
        else:
            self._answer(Response(202))

    def log_message(self, format: str, *args: object) -> None:
        """No access log on stderr."""
        logger.debug(format, *args)

    def _body(self) -> bytes | None:
        """The request's body; None when it could not be read and the answer is given."""
        codings, lengths = (self.headers.get_all(name) or [] for name in ("Transfer-Encoding", "Content-Length"))
        if [each.lower() for each in codings] == ["chunked"] and not lengths:
            return self._chunks()
        # Where it ends must be said in one way only, or a proxy in front may read something else.
        length = lengths[0] if lengths else "0"
        if codings or len(lengths) > 1 or not _LENGTH.fullmatch(length) or int(length) > _MAX_BODY:
            self._refuse()
            return None
        return self.rfile.read(int(length))

    def _chunks(self) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            written = self.rfile.readline(64).partition(b";")[0].strip()
            length = int(written, 16) if _CHUNK_SIZE.fullmatch(written) else -1
            size += length
            if length < 0 or size > _MAX_BODY:
                self._refuse()
                return None
            if length == 0:
                while self.rfile.readline(1024).strip():
                    pass
                return b"".join(parts)
            parts.append(self.rfile.read(length))
            self.rfile.readline(2)

    def _refuse(self) -> None:
        self.close_connection = True
        self._answer(Response(400))

    def _answer(self, response: Response) -> None:
        self.send_response(response.status)
        if response.content_type:
            self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        self.wfile.write(response.body)


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
        if size > _MAX_BODY:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


async def _respond(send: Send, response: Response) -> None:
    headers = [(b"content-length", str(len(response.body)).encode())]
    if response.content_type:
        headers.append((b"content-type", response.content_type.encode()))
    if response.status == 405:
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
