"""A small HTTP receiver for pushed notifications, for consumers that have no web server of their own.

with Listener(lambda message: print(message.topic, message.payload)) as listener:
    client.subscribe("plant//.", to=listener.url)
    ...
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from ingest import answers, faults
from ingest.envelope import Request, parse
from ingest.errors import InvalidRequest, UnreadableRequest
from ingest.gateway import utc_now
from ingest.namespaces import wsa, wsnt
from ingest.topic_reading import read_topic
from topic_model.errors import PeerError
from topic_model.topics import TopicPath

logger = logging.getLogger(__name__)

_PAYLOAD_DEPTH = 6
_RAW_DEPTH = 3

# A broker that stops in the middle of a request must not hold a thread for ever.
_READ_TIMEOUT_S = 30

_MAX_BODY = 64 * 1024 * 1024


@dataclass(frozen=True)
class ReceivedMessage:
    """One notification that was pushed to us.

    `payload` is self-contained XML in UTF-8. `topic` and `subscription` (the subscription manager's address) are None
    in raw pushes. `notification_id` is the same on every attempt and empty when the broker says none; `attempt` counts
    from 1.
    """

    payload: bytes
    topic: TopicPath | None = None
    subscription: str | None = None
    notification_id: str = ""
    attempt: int = 1


OnMessage = Callable[[ReceivedMessage], None]


class Listener:
    """Receives pushes in threads and hands over each message; what the callback raises makes the broker try again.

    The callback may run in several threads at once. Port 0 takes a free one; see `url`.
    """

    def __init__(self, on_message: OnMessage, port: int = 0, host: str = "127.0.0.1") -> None:
        self._server = _Server((host, port), on_message)
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


def read_push(body: bytes, content_type: bytes, ids: str = "", attempt: int = 1) -> list[ReceivedMessage]:
    """The messages in a push: those of a wsnt:Notify, or the one payload of a raw push. Raises PeerError.

    `ids` are the notifications' ids in order, separated by commas, as our broker's HTTP header has them.
    """
    request = parse(body, content_type)
    numbered = ids.split(",") if ids else []
    if request.name != wsnt("Notify"):
        source = request.source(_RAW_DEPTH)
        payload = source.fragment(source.node(request.operation))
        return [ReceivedMessage(payload, notification_id=numbered[0] if numbered else "", attempt=attempt)]
    return _read_notify(request, numbered, attempt)


def _read_notify(request: Request, ids: list[str], attempt: int) -> list[ReceivedMessage]:
    source = request.source(_PAYLOAD_DEPTH)
    received = []
    for number, message in enumerate(request.operation.iterchildren(wsnt("NotificationMessage"))):
        content, topic = message.find(wsnt("Message")), message.find(wsnt("Topic"))
        if content is None or not len(content):
            raise InvalidRequest("a NotificationMessage without a payload")
        address = message.findtext(f"{wsnt('SubscriptionReference')}/{wsa('Address')}")
        received.append(
            ReceivedMessage(
                source.fragment(source.node(content[0])),
                None if topic is None else read_topic(topic),
                address.strip() if address else None,
                ids[number] if number < len(ids) else "",
                attempt,
            )
        )
    return received


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], on_message: OnMessage) -> None:
        super().__init__(address, _Handler)
        self.on_message = on_message


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _READ_TIMEOUT_S
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        body = self._body()
        if body is None:
            return
        attempt = self.headers.get("Arborcast-Attempt", "1")
        try:
            messages = read_push(
                body,
                self.headers.get("Content-Type", "").encode("latin-1"),
                self.headers.get("Arborcast-Notification-Id", ""),
                int(attempt) if attempt.isdigit() else 1,
            )
            for message in messages:
                self.server.on_message(message)
        except PeerError as error:
            soap = error.soap if isinstance(error, UnreadableRequest) else "1.1"
            answer = faults.of_peer(error, soap, None, utc_now())
            self._answer(answer.status, answer.body, answer.content_type.decode())
        except Exception:
            logger.exception("a pushed message could not be handled; the broker will try again")
            self._answer(500, b"", answers.media_type("1.1").decode())
        else:
            self._answer(202, b"", "")

    def log_message(self, format: str, *args: object) -> None:
        """No access log on stderr."""
        logger.debug(format, *args)

    def _body(self) -> bytes | None:
        """The request's body; None when it could not be read and the answer is given."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return self._chunks()
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > _MAX_BODY:
            self._refuse()
            return None
        return self.rfile.read(int(length))

    def _chunks(self) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                length = int(self.rfile.readline(64).partition(b";")[0], 16)
            except ValueError:
                length = -1
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
        self._answer(400, b"", "")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        if content_type:
            self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
