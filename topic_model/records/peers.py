"""Messages between engines of a federation, and the rules of forwarding. Pure.

An engine is a member of a group, written GROUP/NAME. It sends its own notifications to the other members of its group;
the group's representative sends them to the other groups. Notifications from another group are forwarded to the
members of the own group only, those from a member to other groups only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from arborcast.core.security.ip_addresses import in_url
from arborcast.core.security.signatures import ID_HEADER, NAME, SIGNATURE_HEADER, TIMESTAMP_HEADER
from arborcast.core.versions import Versioned, VersionedCodec
from arborcast.topic_model.records.notifications import MAX_TRIGGERED, Notification
from arborcast.topic_model.subscriptions import Peer
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.distribution import LOCAL, goes_to

PATH = "/federation"
"""Path of pushes of other engines, below a member's URL."""

INTEREST_PATH = "/federation/interest"
"""Path of interests of other engines, below a member's URL."""

MEDIA_TYPE = "application/vnd.msgpack"

MAX_PER_PUSH = 500
"""Maximum number of notifications in a push."""

MAX_ENGINES = 8
"""Maximum number of engines on a notification's path."""

DATAGRAMS = "udp://"
"""Prefix of the address of a link for datagrams."""

MAX_DATAGRAM = 8_192
"""Maximum size of a datagram."""

# Size of a datagram without the texts of its notification: names of fields, ids, engines, signatures by two keys.
_OVERHEAD = 1_400

_BEGINNING = b"ACD1"

_SIGNED = (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER)

_MAX_SIGNATURE_BYTES = 1_000

_VERSION = 1

# The engine's own events are not forwarded.
_OWN_TOPICS = "{urn:arborcast}"


class Forwarded(msgspec.Struct, frozen=True, omit_defaults=True):
    """A forwarded notification; see Notification. `path` ends with the sender."""

    id: str
    topic: TopicPath
    payload: bytes
    path: tuple[str, ...]
    producer: bytes = b""
    publisher: str = ""
    priority: int = 0
    valid_until_ms: int = 0
    type: str = ""
    reliable: bool = False
    traceparent: str = ""
    prefixes: str = ""
    subject: bytes = b""
    package: str = ""
    cause: str = ""
    hops: int = 0
    distribution: str = ""
    triggers_left: int = MAX_TRIGGERED


class PeerPush(Versioned, frozen=True):
    """A push from one engine, `sender`, to another engine or group, `to`; both as in Peer."""

    sender: str
    to: str
    notifications: list[Forwarded]


class Interest(Versioned, frozen=True):
    """The interest of `sender`, for itself or its group, sent to `to`: a summary (`topic_model.routing.interest`);
    `others` is a summary for other groups. The larger `version` of a sender is newer."""

    sender: str
    to: str
    version: int
    topics: tuple[str, ...]
    others: tuple[str, ...] = ()


_pushes = VersionedCodec(PeerPush, "a push of another engine", _VERSION)

_interests = VersionedCodec(Interest, "an interest of another engine", _VERSION, readable=True)

decode_push, decode_interest = _pushes.decode, _interests.decode
"""They raise RecordVersionError for a newer version, InfrastructureError for invalid data."""


def encode_push(notifications: Sequence[Notification], peer: Peer) -> bytes:
    """The body of a push over a link."""
    forwarded = [
        msgspec.structs.replace(
            msgspec.convert(each, Forwarded, from_attributes=True), id=each.original_id, path=(*each.path, peer.own)
        )
        for each in notifications
    ]
    return _pushes.encode(PeerPush(_VERSION, peer.own, peer.to, forwarded))


def datagram_url(address: str, port: int) -> str:
    """The address of a link for datagrams."""
    return f"{DATAGRAMS}{in_url(address)}:{port}"


def encode_datagram(headers: Mapping[str, str], body: bytes) -> bytes:
    """A push as a datagram, with its signature. Raises ValueError if it is too large or unsigned."""
    try:
        signed = "\n".join(headers[name] for name in _SIGNED)
    except KeyError:
        raise ValueError("a datagram must be signed, but the link has no secret") from None
    data = b"%s%s\n%s" % (_BEGINNING, signed.encode(), body)
    if len(data) > MAX_DATAGRAM:
        raise ValueError(f"a datagram has at most {MAX_DATAGRAM} bytes, this one would have {len(data)}")
    return data


def is_like_datagram(data: bytes) -> bool:
    """Whether the data begin like a datagram."""
    return data.startswith(_BEGINNING)


def decode_datagram(data: bytes) -> tuple[dict[str, str], bytes]:
    """The signature of a datagram, by names of headers, and its push, both unverified. Raises ValueError for invalid
    data."""
    if len(data) > MAX_DATAGRAM or not is_like_datagram(data):
        raise ValueError("this is not a datagram of an engine")
    *signed, body = data[len(_BEGINNING) :].split(b"\n", len(_SIGNED))
    if len(signed) != len(_SIGNED) or sum(map(len, signed)) > _MAX_SIGNATURE_BYTES:
        raise ValueError("the datagram does not begin with a signature")
    return {name: part.decode("ascii") for name, part in zip(_SIGNED, signed, strict=True)}, body


def encode_interest(sender: str, to: str, version: int, topics: Sequence[str], others: Sequence[str] = ()) -> bytes:
    """The body of an interest."""
    return _interests.encode(Interest(_VERSION, sender, to, version, tuple(topics), tuple(others)))


def group_of(engine: str) -> str:
    """The group in GROUP/NAME."""
    return engine.partition("/")[0]


def is_engine(text: str) -> bool:
    """Whether the text has the form GROUP/NAME."""
    group, slash, name = text.partition("/")
    return bool(slash and NAME.fullmatch(group) and NAME.fullmatch(name))


def is_datagram(notification: Notification) -> bool:
    """Whether a notification is sent to engines of the group as a datagram. Reliable (by topic or publisher), replayed
    and large ones are pushed."""
    if not notification.fast or notification.reliable or notification.only:
        return False
    texts = (notification.topic, notification.publisher, notification.type, notification.package, *notification.path)
    written = (notification.traceparent, notification.prefixes, notification.cause, notification.distribution)
    size = len(notification.payload) + len(notification.producer) + len(notification.subject)
    return size + sum(len(each.encode()) for each in (*texts, *written)) + _OVERHEAD <= MAX_DATAGRAM


def is_forwarded(notification: Notification, peer: Peer) -> bool:
    """Whether a matching notification is sent over a link."""
    if peer.datagrams and is_datagram(notification) != (peer.datagrams == "only"):
        return False
    path, distribution = notification.path, notification.distribution
    group, other = group_of(peer.own), group_of(peer.to)
    if distribution == LOCAL or len(path) >= MAX_ENGINES or notification.topic.startswith(_OWN_TOPICS):
        return False
    if notification.queue:
        return False  # a request is for one of this engine's servers
    if other == group:
        # A member sends it to all other members itself.
        return (not path or group_of(path[-1]) != group) and peer.to not in path
    return goes_to(distribution, other) and all(group_of(each) == group for each in path)


def drop_reason(forwarded: Forwarded, own: str) -> str:
    """The reason for dropping an arrived notification, one word; empty if it is accepted."""
    if own in forwarded.path:
        return "loop"
    return "hops" if len(forwarded.path) > MAX_ENGINES else ""
