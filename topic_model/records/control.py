"""Control records: the records of the compacted `control` log, one entity per key.

    key                value
    topic:<path>       TopicRecord | TopicRemoved | null
    sub:<id>           SubscriptionRecord | SubscriptionEnded | null
    pull:<id>          PullPointRecord | PullPointEnded | null
    pub:<id>           RegistrationRecord | RegistrationEnded | null
    susp:<id>          SubscriptionSuspended | null
    seal:<id>          SecretsResealed | null
    places:<path>      TopicPlaces | null
    trigger:<id>       TriggerRecord | TriggerEnded | null
    interest:<peer>    PeerInterest | null
    erase:<id>         Erasure | null
    camera:<name>      CameraRecord | null
    camstate:<name>    CameraState | null

A record holds the complete state of its entity, never a difference, so that any suffix that compaction leaves folds to
the same table. Topics are keyed by path, which excludes siblings of one name and cycles. Every value has its version; a
reader refuses records of a newer version (RecordVersionError). JSON, so that an operator can read the log with any
Kafka tool.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from arborcast.core.versions import RecordCodec
from arborcast.topic_model.publishers import Registration
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath

VERSION = 1

# Words of a topic's routing policy.
RELIABLE = "reliable"
SPLIT = "split"
FAST = "fast"

EndReason = Literal["unsubscribed", "expired", "gone", "removed", "destroyed"]


class _Ended(msgspec.Struct, frozen=True):
    id: str
    reason: EndReason
    at_ms: int


class TopicPolicy(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The policy of a topic. `retain`: its last message is kept; None means the default of all topics
    (topics.retain_all). `publishers` are the only users, and groups as `group:NAME`, that may publish; empty means all
    with the right to publish; ignored without authentication. `routing` is words separated by spaces. `queue`: one of
    its servers gets each notification, in addition to ordinary subscribers; `merge`: equal waiting requests are
    executed once."""

    retain: bool | None = None
    priority: int = 0
    routing: str = ""
    publishers: tuple[str, ...] = ()
    queue: bool = False
    merge: bool = True

    @property
    def reliable(self) -> bool:
        """Whether all its messages are reliable."""
        return RELIABLE in self.routing.split()

    @property
    def fast(self) -> bool:
        """Whether its messages are sent as datagrams within the group."""
        return FAST in self.routing.split()

    @property
    def split(self) -> bool:
        """Whether large messages are sent to old subscribers in parts."""
        return SPLIT in self.routing.split()


class TopicRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, tag="topic"):
    """A topic with its properties. Ancestors without records are nodes, not topics. `placed`: the code was generated
    from the topic's place (`topic_model.tree.places`). `prefixes` are the original prefixes of its namespaces
    (`topic_model.tree.prefixes`), which the tree stores by namespace."""

    path: TopicPath
    code: str = ""
    message_types: tuple[str, ...] = ()
    final: bool = False
    policy: TopicPolicy = TopicPolicy()
    prefixes: str = ""
    placed: bool = False

    @property
    def facts(self) -> TopicRecord:
        """The record without prefixes: the part that is compared and stored for a topic."""
        return msgspec.structs.replace(self, prefixes="") if self.prefixes else self


class TopicRemoved(msgspec.Struct, frozen=True, tag="topic-removed"):
    """The topic was removed; topics below it have their own records."""

    path: TopicPath


class TopicPlaces(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, tag="topic-places"):
    """The place of the node `path` (empty: the virtual root) and the last ordinal given below it. `used`: the place was
    the code of a topic there, now or formerly."""

    path: TopicPath
    place: str = ""
    last: int = 0
    used: bool = False


class SubscriptionRecord(msgspec.Struct, frozen=True, tag="subscription"):
    """The subscription in its current state."""

    subscription: Subscription


class SubscriptionEnded(_Ended, frozen=True, tag="subscription-ended"):
    """The subscription ended, with the reason."""


class PullPointRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, tag="pull-point"):
    """The pull point. `name` is its owner's name for it; most have none. With `until_ms` it is provisional and ends
    then, unless it is used; 0: permanent."""

    id: str
    address: str
    name: str = ""
    created_ms: int = 0
    owner: str = ""
    until_ms: int = 0


class PullPointEnded(_Ended, frozen=True, tag="pull-point-ended"):
    """The pull point was removed, with its messages."""


class RegistrationRecord(msgspec.Struct, frozen=True, tag="registration"):
    """The publisher's registration in its current state."""

    registration: Registration


class RegistrationEnded(_Ended, frozen=True, tag="registration-ended"):
    """The registration ended, with the reason."""


class SubscriptionSuspended(msgspec.Struct, frozen=True, tag="subscription-suspended"):
    """No pushes to the subscription until a null follows; its notifications wait for their lifespan. The cause is its
    `endpoint`, which has failed since `since_ms`, or expensive `conditions`, which are not evaluated. `reason` is a
    message for operators."""

    id: str
    reason: str
    since_ms: int
    at_ms: int
    cause: Literal["endpoint", "conditions"] = "endpoint"


class SecretsResealed(msgspec.Struct, frozen=True, tag="secrets-resealed"):
    """The secrets of a subscription, or of a camera (`id` is its key), under another key, by their old ciphertexts; see
    `projections.resealing`."""

    id: str
    sealed: dict[str, str]


class TriggerRecord(msgspec.Struct, frozen=True, tag="trigger"):
    """A trigger: a subscription with a `trigger`."""

    subscription: Subscription


class TriggerEnded(_Ended, frozen=True, tag="trigger-ended"):
    """The trigger was removed, with the reason."""


class PeerInterest(msgspec.Struct, frozen=True, tag="peer-interest"):
    """The interest of another engine or group: normal forms of patterns. `others` is its interest for other groups.
    `peer` is as in `Peer.to`, `sender` the reporting engine; `version` increases with each report."""

    peer: str
    sender: str
    version: int
    topics: tuple[str, ...]
    others: tuple[str, ...] = ()


ErasedPlace = Literal["notifications", "waiting", "dead_letters", "pull_points", "current_messages"]
"""Places in which erasures count removed copies; `notifications` are rows of the table."""


class ErasureScope(msgspec.Struct, frozen=True, omit_defaults=True):
    """The notifications of the erasure `id`: those accepted before `before_ms` that fulfil each non-empty condition.
    `topic` is the normal form of a topic expression; `subject` is the complete text of an element or value of an
    attribute in the payload, or in the producer's reference."""

    id: str
    before_ms: int
    topic: str = ""
    notification: str = ""
    subject: str = ""


class Erasure(msgspec.Struct, frozen=True, omit_defaults=True, tag="erasure"):
    """An erasure of payloads, requested `by` a user at `at_ms`. `erased` counts the removed copies by place. From
    `done_ms` on only the Kafka topics and tables in `kept_until_ms` may have copies; the value is the time at which
    they delete these; 0: no limit."""

    scope: ErasureScope
    by: str
    at_ms: int
    erased: dict[ErasedPlace, int] = {}
    done_ms: int = 0
    kept_until_ms: dict[str, int] = {}


class CameraRecord(msgspec.Struct, frozen=True, omit_defaults=True, tag="camera"):
    """An ONVIF device whose events the engine fetches. `url` is its device service; `sealed` is the password, sealed
    for this `sealing_context`. `key` is the secret part of the address to which the device may push. `insecure`: its
    TLS certificate is not verified."""

    name: str
    url: str
    key: str
    user: str = ""
    sealed: str = ""
    insecure: bool = False
    paused: bool = False

    def sealing_context(self) -> str:
        """The context of the password, which binds it to this camera and address."""
        return f"camera {self.name}\n{self.url}"


CameraCondition = Literal["connected", "away", "refused"]


class CameraState(msgspec.Struct, frozen=True, omit_defaults=True, tag="camera-state"):
    """The state of a camera since `since_ms`, written at each change. away: it does not answer; refused: it answers,
    but grants no subscription; `error` is the reason. `subscription` is the engine's subscription at the camera: of
    base notification if `push`, else a pull point. `consumer` is the address to which the camera pushes; empty:
    unknown."""

    name: str
    state: CameraCondition
    since_ms: int
    error: str = ""
    subscription: EndpointReference | None = None
    push: bool = False
    consumer: str = ""


Kind = Literal[
    "topic", "sub", "pull", "pub", "susp", "seal", "places", "trigger", "interest", "erase", "camera", "camstate"
]
"""The kinds of entities: the first words of their keys. `susp`, `seal` and `camstate` are no fields of the subscription
or camera, since they have other writers; a node with `places` need not be a topic."""


class Tombstone(msgspec.Struct, frozen=True, tag="tombstone"):
    """A null value, which deletes the entity of this key. It follows an Ended or Removed record."""

    key: str

    @staticmethod
    def of(kind: Kind, identifier: str) -> Tombstone:
        """That of the entity with this id, path or name."""
        return Tombstone(f"{kind}:{identifier}")

    @property
    def subject(self) -> tuple[str, str]:
        """The kind of the entity (the first word of its key), and its id, path or name."""
        kind, _, identifier = self.key.partition(":")
        return kind, identifier


_Stated = (
    TopicRecord
    | TopicRemoved
    | SubscriptionRecord
    | SubscriptionEnded
    | PullPointRecord
    | PullPointEnded
    | RegistrationRecord
    | RegistrationEnded
    | SubscriptionSuspended
    | SecretsResealed
    | TopicPlaces
    | TriggerRecord
    | TriggerEnded
    | PeerInterest
    | Erasure
    | CameraRecord
    | CameraState
)
ControlRecord = _Stated | Tombstone


_codec = RecordCodec[_Stated](_Stated, "control record", VERSION, readable=True)


def key_of(record: ControlRecord) -> str:
    """The Kafka key of a record."""
    match record:
        case TopicRecord(path=path) | TopicRemoved(path=path):
            return f"topic:{path}"
        case SubscriptionRecord(subscription=Subscription(id=identifier)) | SubscriptionEnded(id=identifier):
            return f"sub:{identifier}"
        case PullPointRecord(id=identifier) | PullPointEnded(id=identifier):
            return f"pull:{identifier}"
        case RegistrationRecord(registration=Registration(id=identifier)) | RegistrationEnded(id=identifier):
            return f"pub:{identifier}"
        case SubscriptionSuspended(id=identifier):
            return f"susp:{identifier}"
        case SecretsResealed(id=identifier):
            return f"seal:{identifier}"
        case TopicPlaces(path=path):
            return f"places:{path}"
        case TriggerRecord(subscription=Subscription(id=identifier)) | TriggerEnded(id=identifier):
            return f"trigger:{identifier}"
        case PeerInterest(peer=peer):
            return f"interest:{peer}"
        case Erasure(scope=scope):
            return f"erase:{scope.id}"
        case CameraRecord(name=name):
            return f"camera:{name}"
        case CameraState(name=name):
            return f"camstate:{name}"
        case Tombstone(key=key):
            return key


def subscription_of(record: ControlRecord) -> str:
    """The id of the subscription or trigger of a record; empty for other records."""
    match record:
        case SubscriptionRecord(subscription=subscription):  # first: the most frequent kind
            return subscription.id
        case SubscriptionEnded(id=identifier) | SubscriptionSuspended(id=identifier) | SecretsResealed(id=identifier):
            return identifier
        case TriggerRecord(subscription=Subscription(id=identifier)) | TriggerEnded(id=identifier):
            return identifier
        case Tombstone(subject=("sub" | "susp" | "seal" | "trigger", identifier)):
            return identifier
    return ""


def ending(subscription_id: str, reason: EndReason, at_ms: int) -> list[ControlRecord]:
    """The records that end a subscription: the reason, and nulls for all its keys. Some keys have other writers with
    possibly unread records, so nulls for all are written."""
    return [
        SubscriptionEnded(subscription_id, reason, at_ms),
        Tombstone.of("sub", subscription_id),
        Tombstone.of("susp", subscription_id),
        Tombstone.of("seal", subscription_id),
    ]


def ending_pull_point(pull_point_id: str, reason: EndReason, at_ms: int) -> list[ControlRecord]:
    """The records that end a pull point."""
    return [PullPointEnded(pull_point_id, reason, at_ms), Tombstone.of("pull", pull_point_id)]


def ending_trigger(trigger_id: str, reason: EndReason, at_ms: int) -> list[ControlRecord]:
    """The records that end a trigger."""
    return [
        TriggerEnded(trigger_id, reason, at_ms),
        Tombstone.of("trigger", trigger_id),
        Tombstone.of("susp", trigger_id),
    ]


def ending_camera(name: str) -> list[ControlRecord]:
    """The records that end a camera."""
    key = f"camera:{name}"
    return [Tombstone(key), Tombstone.of("camstate", name), Tombstone.of("seal", key)]


def encode(record: ControlRecord) -> tuple[bytes, bytes | None]:
    """Kafka key and value of a record."""
    return key_of(record).encode(), None if isinstance(record, Tombstone) else _codec.encode(record)


def decode(key: bytes, value: bytes | None) -> ControlRecord:
    """The record of a Kafka key and value. Raises RecordVersionError for a newer version, InfrastructureError for an
    unreadable value, UnicodeDecodeError for an unreadable key."""
    return Tombstone(key.decode()) if value is None else _codec.decode(value, key)
