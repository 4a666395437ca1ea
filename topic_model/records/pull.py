"""Records of the `pullpoints` log, keyed by pull point: messages put in, and messages taken out.

    StoredMessage    put in, by dispatch or by a Notify to the pull point itself
    Claimed          a gateway claims messages for a client; the order of the log decides between several claims
    Settled          a claim's messages have reached the client
    Returned         a claim's messages have not, and wait again

MessagePack, versioned like the other logs. The log has one partition: every reader gets the same result, so several
gateways never deliver the same message, without communicating.
"""

from __future__ import annotations

import msgspec

from arborcast.core.versions import RecordCodec

VERSION = 1


class StoredMessage(msgspec.Struct, frozen=True, omit_defaults=True, tag="message"):
    """A message in a pull point. `element` is a self-contained wsnt:NotificationMessage in UTF-8. `notification` and
    `subscription` are its origin, empty for messages of a Notify to the pull point. It is not delivered after
    `valid_until_ms`; 0: no limit."""

    element: bytes
    notification: str = ""
    subscription: str = ""
    accepted_ms: int = 0
    valid_until_ms: int = 0


ERASED = "erased-"
"""The beginning of a claim by which an erasure takes messages out."""


class Claimed(msgspec.Struct, frozen=True, tag="claimed"):
    """`claim` takes all waiting messages at the offsets from `first` to `last`. After `until_ms` (milliseconds since
    the epoch) any gateway may return them. The claims with one `claimer_of` have the time of its newest record. Without
    offsets (`renewal`) it is the record of a claimer."""

    claim: str
    first: int
    last: int
    until_ms: int


def claimer_of(claim: str) -> str:
    """The gateway process in the name of a claim."""
    return claim.partition("-")[0]


def renewal(claimer: str, until_ms: int) -> Claimed:
    """The open claims of a gateway process continue, in all pull points."""
    return Claimed(claimer, 0, -1, until_ms)


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """The claim's messages were delivered."""

    claim: str


class Returned(msgspec.Struct, frozen=True, omit_defaults=True, tag="returned"):
    """The claim's messages wait again in their places, except those at the offsets in `settled`."""

    claim: str
    settled: tuple[int, ...] = ()


PullRecord = StoredMessage | Claimed | Settled | Returned


_codec = RecordCodec[PullRecord](PullRecord, "a record of a pull point", VERSION)


def encode(pull_point_id: str, record: PullRecord) -> tuple[bytes, bytes]:
    """Kafka key and value of a record."""
    return pull_point_id.encode(), _codec.encode(record)


def decode(key: bytes, value: bytes | None) -> tuple[str, PullRecord]:
    """The pull point and the record of a Kafka key and value. Raises RecordVersionError for a newer version and
    InfrastructureError for an unreadable record."""
    record = _codec.decode(value)
    return key.decode(), record
