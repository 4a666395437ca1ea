"""Frames of the framed TCP edge: bytes in, frames out. Pure: no socket, no clock.

A frame is a head of 16 bytes, big endian, and a body:

    magic `ARBC` (4), version 1 (1), type (1), flags (2), correlation (4), length of the body (4)

The body is empty or one MessagePack map with the names of a struct below; unknown names are ignored, so that either
side may be older. A frame begins only at a head.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from arborcast.core.errors import PeerError
from arborcast.wire import limits

MAGIC: Final = b"ARBC"
VERSION: Final = 1

LOOSE: Final = 1
"""In `flags` of PUBLISH and MESSAGE: the payload is text, not one XML element."""

_HEAD = struct.Struct(">4sBBHII")
HEAD_BYTES: Final = _HEAD.size


class FrameKind(IntEnum):
    """Types of frames. Clients send 1, 3, 5, 6, 8 and 9, the server 2, 4, 7 and 15, both the others."""

    CONNECT = 1
    CONNECTED = 2
    PUBLISH = 3
    RECEIPT = 4
    SUBSCRIBE = 5
    UNSUBSCRIBE = 6
    MESSAGE = 7
    ACK = 8
    REFUSE = 9
    PING = 10
    PONG = 11
    CLOSE = 12
    ERROR = 15


NAMES = {int(kind): kind.name for kind in FrameKind}


class FrameError(PeerError):
    """The data are not a frame, or the frame is too long; later data cannot be read either."""


class BodyError(PeerError):
    """The body of a frame does not fit its type; the next frame can be read."""


class Frame(NamedTuple):
    """One frame. `kind` may be a number without a FrameKind."""

    kind: int
    flags: int
    correlation: int
    body: bytes


class ConnectBody(msgspec.Struct, omit_defaults=True):
    """The credentials: user and password, a bearer token, or the TLS certificate alone. `client` is a name for
    operators."""

    user: str = ""
    password: str = ""
    bearer: str = ""
    client: str = ""
    protocol: int = VERSION


class ConnectedBody(msgspec.Struct, omit_defaults=True):
    """The session's name, and its limits."""

    session: str
    max_frame_bytes: int
    idle_s: float
    protocol: int = VERSION


class PublishBody(msgspec.Struct, omit_defaults=True):
    """One notification. `valid_until` is in milliseconds since 1970, `lifespan` in seconds; see p:Publication.

    Repetitions are recognised by their `key`, within `gateway.deduplication_window_s`.
    """

    topic: str
    payload: bytes
    properties: Annotated[dict[str, str], msgspec.Meta(max_length=int(limits.PROPERTIES))] = {}
    priority: int | None = None
    valid_until: int = 0
    lifespan: float = 0.0
    type: str = ""
    reliable: bool = False
    key: str = ""


class SubscribeBody(msgspec.Struct, omit_defaults=True):
    """A subscription; with a `name` it is durable. `delivery` has the attributes of p:Delivery, `window` is the maximum
    number of messages without an ACK."""

    expression: str
    name: str = ""
    delivery: Annotated[dict[str, str], msgspec.Meta(max_length=int(limits.DELIVERY_ATTRIBUTES))] = {}
    types: list[str] = []
    current: bool = False
    window: int = 100


class UnsubscribeBody(msgspec.Struct, omit_defaults=True):
    """`subscription` is the id in the RECEIPT of the SUBSCRIBE."""

    subscription: str


class ReceiptBody(msgspec.Struct, omit_defaults=True):
    """The request is in the log. `id` is the notification's id (empty for a repetition), or the subscription's id."""

    id: str = ""


class MessageBody(msgspec.Struct, omit_defaults=True):
    """One notification for a subscriber, until its ACK or REFUSE with the same correlation."""

    subscription: str
    topic: str
    payload: bytes
    id: str = ""
    properties: dict[str, str] = {}
    attempt: int = 1


class RefuseBody(msgspec.Struct, omit_defaults=True):
    """The reason for refusing a message, which is sent again."""

    reason: str = ""


class ErrorBody(msgspec.Struct, omit_defaults=True):
    """`code` is the class of the error, for programs; `text` is a message. A retry after `retry_after` seconds may
    succeed."""

    code: str
    text: str
    retry_after: float | None = None


Body = (
    ConnectBody
    | ConnectedBody
    | PublishBody
    | SubscribeBody
    | UnsubscribeBody
    | ReceiptBody
    | MessageBody
    | RefuseBody
    | ErrorBody
)

BodyT = TypeVar("BodyT", bound=Body)

_encoder = msgspec.msgpack.Encoder()


def encode(kind: FrameKind, correlation: int = 0, body: Body | None = None, flags: int = 0) -> bytes:
    content = b"" if body is None else _encoder.encode(body)
    return _HEAD.pack(MAGIC, VERSION, kind, flags, correlation, len(content)) + content


def read_body(frame: Frame, kind: type[BodyT]) -> BodyT:
    """Decode the body of a frame. Raises BodyError."""
    try:
        return msgspec.msgpack.decode(frame.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        name = NAMES.get(frame.kind, f"frame of type {frame.kind}")
        raise BodyError(f"the body of a {name} cannot be read: {error!s:.200}") from error


class Decoder:
    """Decodes a stream of bytes into frames."""

    __slots__ = ("_rest", "expected", "limit")

    def __init__(self, limit: int) -> None:
        """`limit` is the maximum size of a body in bytes."""
        self.limit = limit
        self._rest = bytearray()
        self.expected = HEAD_BYTES
        """The size of the incomplete frame, as far as it is known."""

    @property
    def pending(self) -> int:
        """The number of bytes of the incomplete frame so far."""
        return len(self._rest)

    def clear(self) -> None:
        self._rest.clear()

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """The frames that are completed by these bytes. After a FrameError no more data can be read."""
        rest = self._rest
        rest += data
        at, self.expected = 0, HEAD_BYTES
        try:
            while len(rest) - at >= HEAD_BYTES:
                magic, version, kind, flags, correlation, length = _HEAD.unpack_from(rest, at)
                if magic != MAGIC:
                    raise FrameError(f"a frame begins with {MAGIC!r}, not with {bytes(magic)!r}")
                if version != VERSION:
                    raise FrameError(f"frames of version {VERSION} are supported, this one has version {version}")
                if length > self.limit:
                    raise FrameError(
                        f"a frame may have {self.limit} bytes (framed.max_frame_bytes, less before CONNECT), "
                        f"this one has {length}"
                    )
                end = at + HEAD_BYTES + length
                if len(rest) < end:
                    self.expected = HEAD_BYTES + length
                    break
                yield Frame(kind, flags, correlation, bytes(rest[at + HEAD_BYTES : end]))
                at = end
        finally:
            del rest[:at]
