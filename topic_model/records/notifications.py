"""Notification records: what the `notifications` log holds, keyed by topic path.

MessagePack rather than JSON: payloads are XML bytes that must come out as they went in, and the gateway writes and the
workers read this on the hot path (a decode is about a microsecond). Versioned like the control records.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from arborcast.core.errors import InfrastructureError, RecordVersionError
from arborcast.core.versions import Versioned, VersionedCodec
from arborcast.topic_model.message_types import root_type
from arborcast.topic_model.subscriptions import EndpointReference
from arborcast.topic_model.topics import TopicPath

VERSION = 1

# Between the id of a notification and that of the replay which brings it again.
_AGAIN = "~"

UNSTAMPED = -1

"""No position in the control log: the notification belongs to those who are there when it is matched, as do events for
the one subscription that they are about."""

MOST_PRIORITY = 100
"""Of a notification or a subscription; the least is the same below zero."""

MOST_HOPS = 8
"""So many triggers in a row publish something because of one notification."""

MOST_TRIGGERED = 1_000
"""So many notifications do triggers publish because of one, in all."""


class Notification(msgspec.Struct, frozen=True, omit_defaults=True):
    """One accepted notification.

    `payload` is the one child of wsnt:Message as a self-contained XML fragment (every namespace that was in scope and
    is used is declared on it), UTF-8. `producer` is the wsnt:ProducerReference in the same form, empty when there was
    none. `message_id` is what the publisher called it (wsa:MessageID), `id` is ours and the same on every attempt.
    `request` is the fingerprint of the request that it came in, empty when that had no message id, and `request_size`
    how many notifications the request had.
    `only` is the one subscription that gets it, empty for all that match: so a new subscriber gets a topic's current
    message. `replay` is the replay that brings it again, empty for the notification itself; then `id` is that of this
    delivery, and `original_id` what its receiver knows it by. `traceparent` is its trace context (see
    `core.telemetry.tracing`), empty for none. `unjudged`, only of what is parked, says that the subscription's
    conditions are still to be asked whether it wants it. `control` is the position in the control log of the view that
    its gateway had when it accepted it: who gets it is decided by the subscriptions as they were there
    (`topic_model.routing.history`); UNSTAMPED for those of the view that matches it. `unchanged` is a position up to
    there from which on nothing has changed who that is: a view that has come so far can say; UNSTAMPED where that is
    not known. `prefixes` are those of the topic's namespaces (`topic_model.tree.prefixes`), empty where nobody has
    said. `subject` is what conditions are asked about, a fragment like the payload; empty where that is the payload
    itself. It does not leave the engine. `selector`, of what is for `only` one, is how that one is found where the
    topic does not lead there; empty where it does. `valid_until_ms` is until when its publisher wants it delivered, 0
    for no such time: fixed when it was accepted. `type` is the QName, `{namespace}name`, of what it is: as its
    publisher says, else of the payload's element; empty in events of the engine (`type_of`). `priority` ranks it among
    others of its topic, larger first. `reliable` says that nobody is to lose it for the sake of time. `cause` is the id
    of the notification that matched the trigger which has published this one, empty for one that a trigger has nothing
    to do with; `hops` is how many triggers there were in a row, `triggers_left` how many notifications triggers may
    publish because of it, directly or not. `package` is what an old publisher said in its wsnt:Package, of messages
    whose parts may be delivered alone (`topic_model.records.packages.write_package`): which part it is of which
    message, or that it is whole. `split_bytes`, unless 0, is what a push of it to an old subscriber may have: a larger
    one leaves in parts. `queue` says that its topic is a queue: it is for one of its servers. `reply_to` is where the
    answer is awaited, None where nobody awaits one; `reply_point` is the id of the pull point of ours that this is,
    empty for another address. Requests of a queue with the same `merge` are equal; empty where they are not to be done
    together. `path` names the engines that it has passed, as GROUP/NAME, first the one that accepted it; empty for one
    that was published here. `distribution` says where it goes beside this engine (`topic_model.tree.distribution`),
    empty for everywhere; `fast` that it leaves for engines of the group as a datagram, if it can.
    """

    id: str
    topic: TopicPath
    payload: bytes
    accepted_ms: int
    producer: bytes = b""
    message_id: str = ""
    publisher: str = ""
    only: str = ""
    request: bytes = b""
    request_size: int = 1
    replay: str = ""
    traceparent: str = ""
    unjudged: bool = False
    control: int = UNSTAMPED
    prefixes: str = ""
    subject: bytes = b""
    selector: str = ""
    valid_until_ms: int = 0
    type: str = ""
    priority: int = 0
    reliable: bool = False
    cause: str = ""
    hops: int = 0
    package: str = ""
    split_bytes: int = 0
    queue: bool = False
    reply_to: EndpointReference | None = None
    reply_point: str = ""
    merge: bytes = b""
    path: tuple[str, ...] = ()
    distribution: str = ""
    fast: bool = False
    unchanged: int = UNSTAMPED
    triggers_left: int = MOST_TRIGGERED

    def is_over(self, now_ms: int) -> bool:
        """Whether its publisher does not want it delivered any more."""
        return 0 < self.valid_until_ms <= now_ms

    @property
    def original_id(self) -> str:
        """The id under which it was accepted first."""
        return self.id.removesuffix(_AGAIN + self.replay) if self.replay else self.id


def type_of(notification: Notification) -> str:
    """The type of a notification, also where it is not kept beside the payload; empty for one that cannot be read."""
    return notification.type or root_type(notification.payload)


def made_at(notification_id: str) -> int:
    """When the id was made, in milliseconds since the epoch; 0 when it does not say (it is none of the gateway's)."""
    if len(notification_id) != 32 or notification_id[12:13] != "7":
        return 0
    try:
        return int(notification_id[:12], 16)
    except ValueError:
        return 0


def is_replay(notification_id: str) -> bool:
    """Whether the id is that of a notification which a replay has brought again."""
    return _AGAIN in notification_id


def replayed(notification: Notification, replay: str, only: str, now_ms: int, control: int) -> Notification:
    """The notification once more, for one subscription, as part of this replay.

    It has an id of its own, so that everything that is kept of deliveries tells it from the first time, and it is
    accepted anew, with the control log at this position: a replay of last week's notifications is not too old to be
    delivered, and goes to a subscription of today. What its publisher said of its validity stays.
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


class _Value(Versioned, frozen=True):
    notification: Notification


_codec = VersionedCodec(_Value, "a notification record", VERSION)


def encode(notification: Notification) -> tuple[bytes, bytes]:
    """Kafka key and value of a notification."""
    return notification.topic.encode(), _codec.encode(_Value(VERSION, notification))


def decode(value: bytes | None) -> Notification:
    """The notification behind a Kafka value; RecordVersionError when a newer Arborcast wrote it."""
    return _codec.decode(value).notification


class _Record(Protocol):
    value: bytes | None


def notification_in(record: _Record) -> Notification | None:
    """What a record of the `notifications` log holds; None for a damaged one, which no batch can read either.

    Raises RecordVersionError for a record of a newer Arborcast.
    """
    try:
        return decode(record.value)
    except RecordVersionError:
        raise
    except InfrastructureError:
        return None
