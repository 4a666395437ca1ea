"""Records of the `pullpoints` log, keyed by pull point: what was put into it, and what was taken out.

    StoredMessage    put in, by dispatch or by a Notify to the pull point itself
    Claimed          somebody wants to hand these out; the log's order decides who gets them
    Settled          a claim's messages have reached the client
    Returned         they have not, and wait again

MessagePack, versioned like the other logs. The log has one partition: whoever reads it comes to the same result, so
several gateways never hand out the same message, without talking to each other.
"""

from __future__ import annotations

import msgspec

from core.errors import InfrastructureError, RecordVersionError

VERSION = 1

"""Name of the log, for KafkaSettings.topic."""


class StoredMessage(msgspec.Struct, frozen=True, omit_defaults=True, tag="message"):
    """A message in a pull point. `element` is a whole wsnt:NotificationMessage, self-contained, in UTF-8.

    `notification` and `subscription` say where it is from; they are empty for what a client put in.
    """

    element: bytes
    notification: str = ""
    subscription: str = ""
    accepted_ms: int = 0


class Claimed(msgspec.Struct, frozen=True, tag="claimed"):
    """`claim` takes all messages that wait at the offsets from `first` to `last`.

    After `until_ms` (milliseconds since the epoch) whoever claimed them counts as dead: anybody may return them.
    """

    claim: str
    first: int
    last: int
    until_ms: int


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """The claim's messages are gone for good."""

    claim: str


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """The claim's messages wait again, where they were."""

    claim: str


PullRecord = StoredMessage | Claimed | Settled | Returned


class _Versioned(msgspec.Struct, frozen=True):
    v: int
    record: PullRecord


class _VersionOnly(msgspec.Struct, frozen=True):
    v: int


_encoder = msgspec.msgpack.Encoder()

_decoder = msgspec.msgpack.Decoder(_Versioned)

_version_decoder = msgspec.msgpack.Decoder(_VersionOnly)


def encode(pull_point_id: str, record: PullRecord) -> tuple[bytes, bytes]:
    """Kafka key and value of a record."""
    return pull_point_id.encode(), _encoder.encode(_Versioned(VERSION, record))


def decode(key: bytes, value: bytes | None) -> tuple[str, PullRecord]:
    """The pull point and the record behind a Kafka key and value.

    Raises RecordVersionError for a record of a newer version and InfrastructureError for one that cannot be read.
    """
    if value is None:
        raise InfrastructureError("a record of a pull point has no value")
    try:
        versioned = _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # What a newer version wrote may look like nothing to us; it must not pass for damaged.
        _refuse_newer(_version_of(value))
        raise InfrastructureError(f"a record of a pull point cannot be read: {error}") from error
    _refuse_newer(versioned.v)
    return key.decode(), versioned.record


def _version_of(value: bytes) -> int:
    try:
        return _version_decoder.decode(value).v
    except (msgspec.DecodeError, UnicodeDecodeError):
        return VERSION


def _refuse_newer(version: int) -> None:
    if version > VERSION:
        raise RecordVersionError(
            f"a record of a pull point has version {version}, this Arborcast knows up to {VERSION}: upgrade it first"
        )
