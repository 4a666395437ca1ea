"""Later results of pushes: the promise in a push's address and the records of the log `results`. Also the tokens with
which queue servers may answer into pull points of other owners.

The address of such a push contains a promise: the push, its subscription, and the deadline of the result. It has a MAC
with the engine's keys (`core.security.keyring`), so only the receiver of the address can report. A promise needs no
stored state; a result is a record with it, appended by a gateway and read by the redelivery.
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal, NamedTuple

import msgspec

from arborcast.core.errors import SecretError
from arborcast.core.security.keyring import Keys
from arborcast.core.versions import RecordCodec
from arborcast.topic_model.namespaces import ARBORCAST_QUEUE

PATH = "/results/"

VERSION = 1

_CONTEXT = "results of pushes"

State = Literal["delivered", "failed", "refused"]
"""The result of a push: delivered; failed, to be retried; refused."""


class ForeignAddress(SecretError):
    """An address of a result that this engine has not made."""


class Promise(NamedTuple):
    """A push with a possible later result: its subscription, its start and the deadline of the result (milliseconds
    since the epoch), and the number of messages."""

    subscription: str
    push: str
    started_ms: int
    until_ms: int
    messages: int = 1


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a push, reported by its receiver at `at_ms` (milliseconds since the epoch). For a push that was
    parked without an answer the worker writes it, with the class of the error, the HTTP status and Retry-After."""

    promise: Promise
    state: State
    at_ms: int
    text: str = ""
    error: str = ""
    status: int = 0
    retry_after_s: float = 0.0


_codec = RecordCodec[Result](Result, "the result of a push", VERSION, name="result")

decode = _codec.decode
"""The result in a record's value. Raises RecordVersionError, or InfrastructureError."""

_encoder = msgspec.msgpack.Encoder()

_decoder = msgspec.msgpack.Decoder(Promise)


def encode(result: Result) -> tuple[bytes, bytes]:
    """The key and the value of a record."""
    return result.promise.subscription.encode(), _codec.encode(result)


_ANSWERS = "answers to requests of queues"

ANSWER = f"{{{ARBORCAST_QUEUE}}}Answer"
"""The reference parameter with the token in a request's ReplyTo: a header block of the answer."""


class ServedRequest(NamedTuple):
    """A request given to a queue server: the pull point of its answer, its message id, and the owner of the server's
    subscription."""

    point: str
    message_id: str
    server: str


def write_answer_token(request: ServedRequest, until_ms: int, keys: Keys) -> str:
    """The token with which this server may answer this request until `until_ms` (milliseconds since the epoch). Raises
    SecretError."""
    return f"{until_ms}.{keys.mac(_encoder.encode((request, until_ms)), _ANSWERS)}"


def may_answer(token: str, request: ServedRequest, now_ms: int, keys: Keys) -> bool:
    """Whether the token permits this server to answer this request now. Raises SecretError if the keys cannot be
    read."""
    until, _, made = token.partition(".")
    if not (until.isascii() and until.isdecimal() and len(until) < 16 and now_ms <= int(until)):
        return False
    return keys.is_valid_mac(made, _encoder.encode((request, int(until))), _ANSWERS)


def write_promise(promise: Promise, keys: Keys) -> str:
    """The promise as the end of an address. Raises SecretError."""
    packed = _encoder.encode(promise)
    return f"{base64.urlsafe_b64encode(packed).decode().rstrip('=')}.{keys.mac(packed, _CONTEXT)}"


def read_promise(text: str, keys: Keys) -> Promise:
    """The promise at the end of an address. Raises ForeignAddress, or SecretError without the keys to check it."""
    encoded, _, mac = text.partition(".")
    try:
        packed = base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True)
        if keys.is_valid_mac(mac, packed, _CONTEXT):
            return _decoder.decode(packed)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise ForeignAddress("this is not the address of a push") from error
    raise ForeignAddress("this address differs from the one in the push")
