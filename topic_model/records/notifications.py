"""Notification records of the `notifications` log, keyed by topic path.

MessagePack instead of JSON: payloads are XML bytes that must not change, and workers decode a record in about a
microsecond. Versioned like control records.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.core.versions import RecordCodec
from arborcast.topic_model.message_types import root_type
from arborcast.topic_model.subscriptions import EndpointReference
from arborcast.topic_model.topics import TopicPath

VERSION = 1

# Separates the id of a notification from that of its replay.
_AGAIN = "~"

UNSTAMPED = -1
"""No position in the control log: the current subscriptions at matching are the recipients. Also for events for a
single subscription."""

MAX_PRIORITY = 100
"""The highest priority of a notification or subscription; the lowest is its negative."""

MAX_HOPS = 8
"""Maximum length of a chain of triggers."""

MAX_TRIGGERED = 1_000
"""Maximum number of notifications that triggers publish because of one notification, in total."""


class Notification(msgspec.Struct, frozen=True, omit_defaults=True):
    """One accepted notification."""

    id: str
    """The same on every attempt."""
    topic: TopicPath
    payload: bytes
    """The child of wsnt:Message as a self-contained XML fragment in UTF-8 with its namespace declarations."""
    accepted_ms: int
    producer: bytes = b""
    """The wsnt:ProducerReference in the same form, empty for none."""
    message_id: str = ""
    """The publisher's wsa:MessageID."""
    publisher: str = ""
    only: str = ""
    """The only recipient (of a current message or a replay), empty for all matching subscriptions."""
    request: bytes = b""
    """The fingerprint of its request, empty without a message id."""
    request_size: int = 1
    """The number of notifications in its request."""
    replay: str = ""
    """The replay, empty for the notification itself; then `id` is that of this delivery. See `original_id`."""
    traceparent: str = ""
    """The trace context (see `core.telemetry.tracing`), empty for none."""
    unjudged: bool = False
    """For a parked delivery: the subscription's conditions are not evaluated yet."""
    control: int = UNSTAMPED
    """The position of the gateway's view in the control log at acceptance, which decides the recipients
    (`topic_model.routing.history`); UNSTAMPED: the view that matches it decides."""
    prefixes: str = ""
    """The prefixes of the topic's namespaces (`topic_model.tree.prefixes`)."""
    subject: bytes = b""
    """The fragment for conditions, empty for the payload. It is not sent."""
    selector: str = ""
    """The selector of the subscription `only`, if the topic does not match it."""
    valid_until_ms: int = 0
    """The end of its validity, fixed at acceptance; 0 for none."""
    type: str = ""
    """The QName of its type, `{namespace}name`; empty in events of the engine. See `type_of`."""
    priority: int = 0
    """Larger values are pushed first."""
    reliable: bool = False
    """Timely subscriptions do not drop it."""
    cause: str = ""
    """The notification that caused its publication by a trigger, empty for none."""
    hops: int = 0
    """The number of triggers in the chain before it."""
    package: str = ""
    """The wsnt:Package of a message whose parts may be delivered alone (`topic_model.records.packages`)."""
    split_bytes: int = 0
    """The maximum size of a part for old subscribers; 0: not split."""
    queue: bool = False
    """Its topic is a work queue: one server gets it."""
    reply_to: EndpointReference | None = None
    reply_point: str = ""
    """The id of the pull point, if `reply_to` is one of this engine; else empty."""
    merge: bytes = b""
    """Queue requests with the same value are merged; empty: not merged."""
    path: tuple[str, ...] = ()
    """The engines on its way, GROUP/NAME, the accepting one first; empty if published here."""
    distribution: str = ""
    """The routing word (`topic_model.tree.distribution`), empty for everywhere."""
    fast: bool = False
    """Sent to engines of the group as a datagram, if possible."""
    unchanged: int = UNSTAMPED
    """A position up to `control` since which its recipients did not change: a view at it can match."""
    triggers_left: int = MAX_TRIGGERED
    """The number of notifications that triggers may still publish because of it."""

    def is_over(self, now_ms: int) -> bool:
        """Whether its validity has ended."""
        return 0 < self.valid_until_ms <= now_ms

    @property
    def original_id(self) -> str:
        """The id of its first acceptance."""
        return self.id.removesuffix(_AGAIN + self.replay) if self.replay else self.id


def type_of(notification: Notification) -> str:
    """The type of a notification, derived from the payload if it is not stored; empty for an unreadable one."""
    return notification.type or root_type(notification.payload)


def made_at(notification_id: str) -> int:
    """The time of an id, in milliseconds since the epoch; 0 for foreign ids."""
    if len(notification_id) != 32 or notification_id[12:13] != "7":
        return 0
    try:
        return int(notification_id[:12], 16)
    except ValueError:
        return 0


def original_of(notification_id: str) -> str:
    """The id without the suffix of a replay."""
    return notification_id.partition(_AGAIN)[0]


def is_replay(notification_id: str) -> bool:
    """Whether a replayed notification has this id."""
    return _AGAIN in notification_id


def replayed(notification: Notification, replay: str, only: str, now_ms: int, control: int) -> Notification:
    """The notification again, for one subscription, as part of this replay.

    It has a separate id, which distinguishes its deliveries from the first ones, and a new acceptance time and position
    in the control log, so old notifications do not expire and reach current subscriptions. The publisher's validity
    stays.
    """
    return msgspec.structs.replace(
        notification,
        id=f"{notification.original_id}{_AGAIN}{replay}",
        accepted_ms=now_ms,
        only=only,
        request=b"",
        request_size=1,
        replay=replay,
        control=control,
        unchanged=UNSTAMPED,
    )


_codec = RecordCodec[Notification](Notification, "a notification record", VERSION, name="notification")

decode = _codec.decode
"""The notification of a Kafka value. Raises RecordVersionError for a newer version."""


def encode(notification: Notification) -> tuple[bytes, bytes]:
    """Kafka key and value of a notification."""
    return notification.topic.encode(), _codec.encode(notification)


class _Record(Protocol):
    value: bytes | None


def notification_in(record: _Record) -> Notification | None:
    """The notification of a record of the `notifications` log; None for a damaged record, which batches skip too.
    Raises RecordVersionError for a newer version."""
    try:
        return decode(record.value)
    except RecordVersionError:
        raise
    except InfrastructureError:
        return None
