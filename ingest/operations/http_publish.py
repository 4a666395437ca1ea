"""POST /publish/TOPIC: a notification without SOAP, for curl and other clients that send XML or JSON.

The body is the payload: one XML element, or JSON, which travels as text in the element that loose content has
(`topic_model.legacy_content`). From there on it is a Notify with one message: the same rights, bounds and log.
Errors are plain text with the HTTP status that fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from arborcast.core.errors import InfrastructureError, PeerError, TopicError, TopicNotSupported, UnknownResource
from arborcast.ingest.addresses import Target
from arborcast.ingest.elements.publication import (
    LIFESPAN,
    MERGE,
    PRIORITY,
    RELIABLE,
    TYPE,
    VALID_UNTIL,
    Publication,
    checked_key,
    read_attributes,
)
from arborcast.ingest.http.asgi import TEXT
from arborcast.ingest.http.inflight import SMALL
from arborcast.ingest.operations.gateway import Gateway, Operation, Stored
from arborcast.ingest.operations.publishing import (
    PublishingClient,
    PublishRequest,
    loose_payload,
    notification_of,
    publish,
    read_payload,
)
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath, parse_path
from arborcast.wire.envelope import Request
from arborcast.wire.errors import (
    AccessRefused,
    Compressed,
    InvalidRequest,
    MalformedMessage,
    NotAuthenticated,
    NotRegistered,
    ResultRefused,
    TooLarge,
    WrongMedia,
)
from arborcast.wire.faults import Answer, seconds_until
from arborcast.wire.xml_reading import memory_to_read

ROOT = "/publish"

_XML = (b"application/xml", b"text/xml")

_JSON = b"application/json"

# Headers with the options of p:Publication in a Notify.
_HEADERS = {
    b"arborcast-valid-until": VALID_UNTIL,
    b"arborcast-lifespan": LIFESPAN,
    b"arborcast-type": TYPE,
    b"arborcast-priority": PRIORITY,
    b"arborcast-reliable": RELIABLE,
    b"arborcast-merge": MERGE,
}

# Characters of JSON strings that XML does not allow.
_NOT_IN_XML = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}


def media_type(content_type: bytes) -> bytes:
    """The media type in a Content-Type, in lower case and without parameters."""
    return content_type.partition(b";")[0].strip().lower()


class Publish:
    """One request, with the topic in the path and delivery options in headers."""

    def __init__(self, path: str, headers: Sequence[tuple[bytes, bytes]], limit: int) -> None:
        self._topic = path.removeprefix(ROOT).removeprefix("/").removesuffix("/")
        self._headers = dict(reversed(headers))  # of several of one name the first counts
        self._limit = limit
        self.operation = Operation("Publish", self._publish, carries_messages=True)

    def memory(self, body: bytes, elements: int) -> int:
        """The memory that `read` takes, in bytes. Raises MalformedMessage for too many elements."""
        return memory_to_read(body, elements)

    def takes_long(self, body: bytes, _content_type: bytes) -> bool:
        """Whether `read` would block the event loop."""
        return len(body) > SMALL

    def read(self, body: bytes, content_type: bytes) -> Request:
        """The request around the payload's element, for any thread. Raises UnreadableRequest."""
        media = media_type(content_type)
        if media == _JSON:
            body, content_type = self._wrapped(body), b""
        elif media not in _XML:
            named = f"not {media.decode('latin-1')[:100]!r}" if media else "and this body has no Content-Type"
            raise WrongMedia(f"application/xml, text/xml and application/json are published, {named}")
        return read_payload(body, content_type, "the body")

    def _wrapped(self, body: bytes) -> bytes:
        try:
            msgspec.json.decode(body, type=msgspec.Raw)
            text = body.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(f"the body is not JSON in UTF-8: {error!s:.200}") from error
        return self._loose(text.strip())

    def _loose(self, text: str) -> bytes:
        """The payload around a text."""
        payload = loose_payload(text.translate(_NOT_IN_XML).encode())
        if len(payload) > self._limit:
            raise TooLarge(f"written as XML text the body has {len(payload)} bytes, more than {self._limit}")
        return payload

    async def _publish(self, gateway: Gateway, request: Request, target: Target) -> Stored:
        key = checked_key(self._headers.get(b"idempotency-key", b"").decode("latin-1"))
        notifications, publication = await self._notifications(gateway, request, key), self._publication()
        publisher = PublishingClient(request.caller, request.client, target)
        return await publish(
            gateway, PublishRequest(notifications, publisher, {each.id: publication for each in notifications})
        )

    async def _notifications(self, gateway: Gateway, request: Request, key: str) -> list[Notification]:
        return [notification_of(gateway, self._path(self._topic), request, message_id=key)]

    def _path(self, topic: str) -> TopicPath:
        try:
            if "\ufffd" in topic:  # else topics with different letters would be one
                raise TopicError("the address is not percent-encoded UTF-8")
            return parse_path(topic)
        except TopicError as error:
            raise TopicError(f"{error}: a topic is names with slashes, {ROOT}/a/b or {ROOT}/{{urn:my}}a/b") from error

    def _publication(self) -> Publication:
        texts = {attribute: text for name, attribute in _HEADERS.items() if (text := self._text_of(name))}
        return read_attributes(texts, {}, "the headers")

    def _text_of(self, name: bytes) -> str:
        """The value of a header; empty without it. Raises InvalidRequest."""
        try:
            return self._headers.get(name, b"").decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the header {name.decode()} is not UTF-8") from error


_STATUS: Mapping[type[PeerError], int] = {
    NotAuthenticated: 401,
    NotRegistered: 403,
    TopicNotSupported: 404,
    UnknownResource: 410,
    TooLarge: 413,
    Compressed: 415,
    WrongMedia: 415,
}


def refused(error: PeerError | InfrastructureError) -> Answer:
    """The answer in place of a SOAP fault."""
    body = f"{error}\n".encode(errors="replace")
    if isinstance(error, InfrastructureError):
        return Answer(503, body, TEXT, seconds_until(error))
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 400)
    if isinstance(error, (AccessRefused, ResultRefused)) and status == 400:
        status = error.status
    headers = tuple(error.headers()) if isinstance(error, AccessRefused) else ()
    return Answer(status, body, TEXT, headers=headers)


DEFECT = Answer(500, b"internal error\n", TEXT)
"""The answer to an unexpected error of the engine."""
