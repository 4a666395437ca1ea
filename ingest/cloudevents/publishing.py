"""POST /publish with CloudEvents: an event in binary or structured mode, or a batch, which is stored as a whole or not.

The topic is in the path, else in the header Arborcast-Topic, else the subject of each event. Data is XML, JSON or text,
as in `http_publish`. Attributes are stored as properties of the notification (`topic_model.cloud_events`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec

from arborcast.core.errors import TopicError
from arborcast.ingest.elements.properties import producer_with
from arborcast.ingest.http.asgi import Headers, header
from arborcast.ingest.http.inflight import SMALL
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.operations.http_publish import Publish, media_type
from arborcast.ingest.operations.publishing import notification_of, read_payload
from arborcast.topic_model.cloud_events import BATCH, EVENT, HEADER, NAME, PROPERTY, VERSION
from arborcast.topic_model.legacy_content import TYPE
from arborcast.topic_model.message_types import read_type
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from arborcast.wire import limits, times
from arborcast.wire.envelope import Request
from arborcast.wire.errors import InvalidRequest, MalformedMessage, TooLarge, WrongMedia
from arborcast.wire.xml_reading import NODE_MEMORY, as_utf8, memory_to_read

_Decoded = TypeVar("_Decoded")

_REQUIRED = ("id", "source", "type")

_DATA, _BASE64 = "data", "data_base64"

# Each event of a batch is read like a request, and may have 65 bytes: this size takes some 20 ms.
_SMALL_BATCH = 8 * 1024

# Events that become notifications in one step, of some milliseconds; then the event loop serves other requests.
_AT_A_TIME = 100

# Of a quoted header value: an escaped character.
_ESCAPED = re.compile(r"\\(.)")


def has_events(headers: Headers) -> bool:
    """Whether the head of a request is that of a CloudEvent, or of a batch."""
    media = media_type(header(headers, b"content-type"))
    return media.startswith(b"application/cloudevents") or bool(header(headers, b"ce-specversion"))


class _Event(NamedTuple):
    """A checked event. `request` is around the element of its payload."""

    attributes: Mapping[str, str]
    request: Request
    where: str


class PublishEvents(Publish):
    """One request with an event or a batch."""

    _events: Sequence[_Event] = ()
    _elements = 0

    def memory(self, body: bytes, elements: int) -> int:
        self._elements = elements
        # JSON may hide the marks of elements in escapes and in base64.
        hidden = b"\\u00" in body or b"base64" in body
        nodes = min(elements, len(body) // 4) if hidden else body.count(b":")
        return super().memory(body, elements) + NODE_MEMORY * nodes

    def takes_long(self, body: bytes, content_type: bytes) -> bool:
        return len(body) > (_SMALL_BATCH if media_type(content_type) == BATCH.encode() else SMALL)

    def read(self, body: bytes, content_type: bytes) -> Request:
        media = media_type(content_type).decode("latin-1")
        if media == BATCH:
            objects = _decoded(body, list[dict[str, msgspec.Raw]], "a list of CloudEvents")
            if not 0 < len(objects) <= limits.EVENTS:
                raise InvalidRequest(f"a batch has 1 to {limits.EVENTS} events, this one has {len(objects)}")
            self._events = [self._of_json(each, f"event {number}: ") for number, each in enumerate(objects, start=1)]
        elif media == EVENT:
            self._events = [self._of_json(_decoded(body, dict[str, msgspec.Raw], "a CloudEvent"), "")]
        elif media.startswith("application/cloudevents"):
            raise WrongMedia(f"CloudEvents are accepted as {EVENT}, {BATCH}, and in binary mode, not as {media[:100]}")
        else:
            attributes = {
                name.decode("latin-1").removeprefix(HEADER): _unquoted(name, value)
                for name, value in self._headers.items()
                if name.startswith(HEADER.encode())
            }
            _check(attributes)
            if media.startswith("text/"):
                attributes["datacontenttype"] = media  # else text such as 42 would be pushed as JSON
            self._events = [_Event(attributes, self._payload(media, body, content_type), "")]
        return self._events[0].request

    def _of_json(self, values: dict[str, msgspec.Raw], where: str) -> _Event:
        with _located(where):
            data, encoded = values.pop(_DATA, None), values.pop(_BASE64, None)
            found = {name: _text(name, value) for name, value in values.items()}
            attributes = {name: text for name, text in found.items() if text is not None}
            media = media_type(attributes.pop("datacontenttype", "application/json").encode()).decode("latin-1")
            _check(attributes)
            if encoded is not None:
                body = _base64(encoded)
            elif data is None:
                media, body = "text/plain", b""
            elif _is_json(media):
                body = bytes(data)
            else:
                body = _decoded(bytes(data), str, "a JSON string, as data that is not JSON has to be,").encode()
            if media.startswith("text/"):
                attributes["datacontenttype"] = media
            memory_to_read(body, self._elements)
            return _Event(attributes, self._payload(media, body), where)

    def _payload(self, media: str, body: bytes, content_type: bytes = b"") -> Request:
        if media in ("application/xml", "text/xml") or media.endswith("+xml"):
            return read_payload(body, content_type, "the data")
        if _is_json(media):
            return read_payload(self._wrapped(body), what="the body")
        if media.startswith("text/") or not body:
            return read_payload(self._loose(as_utf8(body, content_type, "the data").decode()), what="the body")
        raise WrongMedia(f"data is accepted as XML, JSON or text, not as {media[:100] or 'data without a media type'}")

    async def _notifications(self, gateway: Gateway, request: Request, key: str) -> list[Notification]:
        notifications: list[Notification] = []
        for each in self._events:
            notifications.append(self._notification(gateway, each, key, request.traceparent))
            if len(notifications) % _AT_A_TIME == 0:
                await asyncio.sleep(0)
        return notifications

    def _notification(self, gateway: Gateway, event: _Event, key: str, traceparent: str) -> Notification:
        attributes = event.attributes
        with _located(event.where):
            topic = self._topic_of(attributes.get("subject", ""))
            producer = producer_with(
                {PROPERTY + name: text for name, text in attributes.items() if name != "specversion"}
            )
        kind = ""
        if event.request.operation.tag == TYPE:
            # Subscribers filter text and JSON by the type of the event, if it can be the type of a message.
            with suppress(ValueError):
                kind = read_type(attributes["type"], {})
        event.request.traceparent = traceparent
        return notification_of(
            gateway, topic, event.request, producer=producer, message_id=key or _key(attributes), kind=kind
        )

    def _topic_of(self, subject: str) -> TopicPath:
        named = self._text_of(b"arborcast-topic")
        if not (self._topic or named or subject):
            raise InvalidRequest(
                "no topic: it is in the path (/publish/a/b), in Arborcast-Topic, or the event's subject"
            )
        return self._path(self._topic or named or subject)


def _decoded(body: bytes, kind: type[_Decoded], what: str) -> _Decoded:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"this is not {what} in JSON: {error!s:.200}") from error


def _text(name: str, value: msgspec.Raw) -> str | None:
    """The value of an attribute as text; None for one that is not set."""
    found = _decoded(bytes(value), object, f"the value of the attribute {name:.100}")
    if found is None or isinstance(found, str):
        return found
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, int):
        return str(found)
    raise InvalidRequest(f"the attribute {name:.100} is a string, a boolean or an integer, not {bytes(value)[:60]!r}")


def _base64(value: msgspec.Raw) -> bytes:
    try:
        return base64.b64decode(_decoded(bytes(value), str, "a string, as data_base64 has to be,"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedMessage(f"data_base64 is not base64: {error}") from error


def _unquoted(name: bytes, value: bytes) -> str:
    try:
        text = value.decode()  # some senders write UTF-8 as it is
        if len(text) > 1 and text[0] == text[-1] == '"':
            text = _ESCAPED.sub(r"\1", text[1:-1])
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the header {name.decode('latin-1'):.100} is not UTF-8 with percent signs") from error


def _check(attributes: Mapping[str, str]) -> None:
    """Raises InvalidRequest unless these are the attributes of a CloudEvent of this version."""
    version = attributes.get("specversion", "")
    if version != VERSION:
        raise InvalidRequest(f"the attribute specversion is {version[:20]!r}, not {VERSION!r}")
    for name in _REQUIRED:
        if not attributes.get(name):
            raise InvalidRequest(f"the attribute {name} is missing or empty")
    for name in attributes:
        if not NAME.fullmatch(name):
            raise InvalidRequest(f"the name of the attribute {name[:100]!r} is not of a to z and 0 to 9, or is data")
    if "time" in attributes:
        try:
            times.date_time(attributes["time"])
        except (ValueError, OverflowError) as error:
            raise InvalidRequest(f"the attribute time is {attributes['time'][:60]!r} ({error})") from error


def _is_json(media: str) -> bool:
    return media == "application/json" or media.endswith("+json")


def _key(attributes: Mapping[str, str]) -> str:
    """The key of repetitions: events of one source have different ids."""
    key = f"{attributes['source']} {attributes['id']}"
    if key.isascii() and key.isprintable() and len(key) <= limits.KEY:
        return key
    return hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=16).hexdigest()


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Errors name the event of the batch."""
    try:
        yield
    except (InvalidRequest, MalformedMessage, TooLarge, WrongMedia, TopicError) as error:
        raise type(error)(f"{where}{error}") from error
