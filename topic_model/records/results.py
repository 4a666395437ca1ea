"""What receivers say later of pushes that they have taken: the promise that a push's address carries, and the records
of the log `results`. And the marks by which servers of queues may answer into pull points of others.

A push that its receiver may answer for later names an address with a promise in it: which push it is, for whom, and
until when its result is taken. The promise is marked with the keys of the engine (`core.security.keyring`), so whoever
has the address may say how this push ended, and nobody else. Nothing is kept of a promise; a result is a record that
holds it, which a gateway appends and the redelivery reads.
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal, NamedTuple

import msgspec

from arborcast.core.errors import SecretError
from arborcast.core.security.keyring import Marks
from arborcast.core.versions import Versioned, VersionedCodec
from arborcast.topic_model.namespaces import ARBORCAST_QUEUE

PATH = "/results/"

VERSION = 1

_CONTEXT = "results of pushes"

State = Literal["delivered", "failed", "refused"]

"""How a push ended: well; not, and it is to be tried again; not, and never will."""


class Promise(NamedTuple):
    """A push whose result may come later: of which subscription, when it began, until when its result is taken
    (milliseconds since the epoch), and how many messages travelled in it."""

    subscription: str
    push: str
    started_ms: int
    until_ms: int
    messages: int = 1


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a push ended, as its receiver said at this time (milliseconds since the epoch). Of a push that had no answer
    when its deliveries were parked its worker writes it: with the class of the error and the HTTP status."""

    promise: Promise
    state: State
    at_ms: int
    text: str = ""
    error: str = ""
    status: int = 0


class _Value(Versioned, frozen=True):
    result: Result


_codec = VersionedCodec(_Value, "the result of a push", VERSION)

_encoder = msgspec.msgpack.Encoder()

_decoder = msgspec.msgpack.Decoder(Promise)


def encode(result: Result) -> tuple[bytes, bytes]:
    """The key and the value of a record."""
    return result.promise.subscription.encode(), _codec.encode(_Value(VERSION, result))


def decode(value: bytes | None) -> Result:
    """The result in a record's value. Raises RecordVersionError, or InfrastructureError."""
    return _codec.decode(value).result


_ANSWERS = "answers to requests of queues"

ANSWER = f"{{{ARBORCAST_QUEUE}}}Answer"
"""The reference parameter of a request's ReplyTo that has the mark: a header block of the answer."""


class AskedRequest(NamedTuple):
    """A request that a server of a queue was given: the pull point of ours where its answer is awaited, its message id,
    and the owner of the server's subscription."""

    point: str
    message_id: str
    server: str


def write_answer_mark(request: AskedRequest, until_ms: int, keys: Marks) -> str:
    """What lets this server answer this request until then (milliseconds since the epoch). Raises SecretError."""
    return f"{until_ms}.{keys.mark(_encoder.encode((request, until_ms)), _ANSWERS)}"


def may_answer(mark: str, request: AskedRequest, now_ms: int, keys: Marks) -> bool:
    """Whether this mark lets this server answer this request now. Raises SecretError where the keys cannot be read."""
    until, _, made = mark.partition(".")
    if not (until.isascii() and until.isdecimal() and len(until) < 16 and now_ms <= int(until)):
        return False
    return keys.is_marked(made, _encoder.encode((request, int(until))), _ANSWERS)


def write_promise(promise: Promise, keys: Marks) -> str:
    """The promise as the end of an address. Raises SecretError."""
    packed = _encoder.encode(promise)
    return f"{base64.urlsafe_b64encode(packed).decode().rstrip('=')}.{keys.mark(packed, _CONTEXT)}"


def read_promise(text: str, keys: Marks) -> Promise:
    """The promise in the end of an address. Raises SecretError when it is none of ours."""
    encoded, _, mark = text.partition(".")
    try:
        packed = base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True)
        if keys.is_marked(mark, packed, _CONTEXT):
            return _decoder.decode(packed)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise SecretError("this is no address that a push has named") from error
    raise SecretError("this address is not as a push has named it")
