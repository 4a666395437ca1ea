"""Subscriptions as immutable values: consumer, filters, termination, delivery policy.

msgspec structs instead of data classes: a routing table has a million of them, they are read from the control log at
start and sent to Spark's workers; a struct has half the size and decodes ten times as fast. They are exempt from
garbage collection (gc=False): immutable values cannot form a cycle, and walking a million of them takes a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from arborcast.topic_model.mqtt_names import is_mqtt
from arborcast.topic_model.namespaces import ARBORCAST_DELIVERY, WSA
from arborcast.topic_model.topics import TopicPath

if TYPE_CHECKING:
    from lxml import etree

DeliveryForm = Literal[
    "notify", "raw", "legacy", "peer", "cloudevents-binary", "cloudevents-structured", "cloudevents-batched"
]
SEVERAL: frozenset[DeliveryForm] = frozenset({"notify", "peer", "cloudevents-batched"})
"""The forms whose pushes carry several notifications."""


def is_cloud_events(form: str) -> bool:
    """Whether pushes in this form are CloudEvents."""
    return form.startswith("cloudevents-")


SoapVersion = Literal["1.1", "1.2"]
Reliability = Literal["strict", "adaptive", "timely"]
Order = Literal["acceptance", "strict", "none"]
Per = Literal["subscription", "topic"]
"""The scope of a deadline or a minimum interval: all topics of a subscription together, or each topic."""


class EndpointReference(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A WS-Addressing EPR. The XML parts are self-contained fragments, as received."""

    address: str
    reference_parameters: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()


# Namespaces of the headers that the engine writes into messages to a reference.
_WRITTEN = frozenset({WSA, ARBORCAST_DELIVERY})


def parameter_blocks(reference_parameters: tuple[str, ...]) -> str:
    """Reference parameters as header blocks of a message to their reference, with wsa:IsReferenceParameter.

    Parameters with the name of one of the engine's headers are omitted: the header would be duplicated (see
    `doubled_header`).
    """
    # lxml is loaded only by workers with such subscribers.
    if not reference_parameters:
        return ""
    from lxml import etree

    blocks = []
    for element in _elements(reference_parameters):
        if etree.QName(element).namespace not in _WRITTEN:
            element.set(f"{{{WSA}}}IsReferenceParameter", "true")
            blocks.append(etree.tostring(element, encoding="unicode", with_tail=False))
    return "".join(blocks)


def doubled_header(reference_parameters: tuple[str, ...]) -> str:
    """The name, `{namespace}name`, of the first reference parameter that is a header of WS-Addressing or of the engine;
    empty for none."""
    if not reference_parameters:
        return ""
    from lxml import etree

    names = (etree.QName(element) for element in _elements(reference_parameters))
    return next((name.text for name in names if name.namespace in _WRITTEN), "")


def _elements(fragments: tuple[str, ...]) -> Iterator[etree._Element]:
    from lxml import etree

    from arborcast.core.xml import xml_parser

    parser = xml_parser()
    for fragment in fragments:
        # With the usual prefix in scope, else lxml would generate one for wsa:IsReferenceParameter.
        yield etree.fromstring(f'<around xmlns:wsa="{WSA}">{fragment}</around>'.encode(), parser)[0]


class TopicFilter(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A topic expression as written, and its normal form, which matching uses."""

    dialect: str
    text: str
    normal: str
    namespaces: dict[str, str] = {}


class XPathFilter(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A boolean expression over the payload or over the producer's properties, with the prefixes in scope."""

    dialect: str
    text: str
    namespaces: dict[str, str] = {}


class DeliveryPolicy(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A subscriber's policy beyond "push it". None means the engine's setting; for `deadline_ms` (a notice after this
    time without a message) no deadline.

    `interval_ms`, unless 0, is the minimum time between accepted messages, of each topic or of all together; `priority`
    ranks the subscription among others in pushes, larger first. `fragment_bytes`, unless 0, is the maximum size of a
    push in the older form: larger messages are split.
    """

    reliability: Reliability = "adaptive"
    order: Order = "acceptance"
    priority: int = 0
    lifespan_ms: int | None = None
    maximum_attempts: int | None = None
    deadline_ms: int | None = None
    deadline_per: Per = "subscription"
    interval_ms: int = 0
    interval_per: Per = "topic"
    fragment_bytes: int = 0

    @property
    def strict(self) -> bool:
        """Whether each message must be settled before the next one is pushed."""
        return self.order == "strict" or self.reliability == "strict"

    def drops(self, reliable: bool) -> bool:
        """Whether a notification, `reliable` or not, is dropped instead of waiting."""
        return self.reliability == "timely" and not reliable


DEFAULT_POLICY = DeliveryPolicy()


class SigningSecret(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A sealed secret (`core.security.keyring`) that signs pushes, until `until_ms` if set."""

    sealed: str
    until_ms: int | None = None


class Protection(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Authentication of pushes for their receiver.

    `secrets` sign, newest first. `authorization` is the sealed value of the HTTP header; `certificate` is the name of a
    client certificate, installed by the operator on the hosts that push.
    """

    secrets: tuple[SigningSecret, ...] = ()
    authorization: str = ""
    certificate: str = ""


class BoundEndpoint(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The remainder of a pull point that a client of HPwsn made for its subscription: its address is one of the
    subscription's addresses. `name` is the client's name for it, empty for none."""

    id: str
    name: str = ""


class TriggerTarget(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Properties of the topic to which a trigger publishes; see `TopicPolicy`. A notification on it has one of these
    `types`; an empty tuple means any. `distribution` is its routing word (`topic_model.tree.distribution`), empty for
    everywhere."""

    retain: bool | None = None
    priority: int = 0
    reliable: bool = False
    types: tuple[str, ...] = ()
    distribution: str = ""


class Trigger(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The trigger of a subscription: for each matching notification, another one is published on `topic` instead of a
    push.

    It has the `payload` with this `type`, or the matching payload if `payload` is empty. `prefixes` are as in a
    notification. `target` is derived from the topic tree, in routing tables only: None in records, and for a topic that
    does not exist.
    """

    name: str
    topic: TopicPath
    payload: str = ""
    type: str = ""
    prefixes: str = ""
    target: TriggerTarget | None = None

    @property
    def endpoint(self) -> str:
        """The value in place of the address of a pushed subscription."""
        return f"trigger:{self.name}"


Datagrams = Literal["", "only", "without"]


class Peer(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A link to another engine: a subscription with pushes in the form `peer`. `own` and `to` are the names of this
    engine and the other one, as GROUP/NAME. A link to another group has no NAME: its representative gets the pushes.
    Two links may have the same peer: one has `only` datagrams, the other is `without` them."""

    own: str
    to: str
    datagrams: Datagrams = ""


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One subscription. All filters are ANDed; no topic filter means every topic.

    `address` is the subscription manager's URL as in SubscribeResponse; pushes have the same one. `pull_point` is the
    id of the engine's pull point that is the consumer, empty for pushes; `endpoint` is for gateways only. `types` are
    the selected types of messages (`topic_model.message_types`), sorted; an empty tuple means every type. With a
    `trigger` it is the internal subscription of a trigger, with its own kind of records, no address, and no end.
    `queue`, unless 0: it is a server of the queue that is its only topic, with at most this number of requests at a
    time. With a `peer` it is the internal subscription of a federation link, created by gateways. Times are
    milliseconds since the epoch, UTC; `terminates_ms` None means no end.
    """

    id: str
    consumer: EndpointReference
    address: str = ""
    topics: tuple[TopicFilter, ...] = ()
    content: tuple[XPathFilter, ...] = ()
    producer: tuple[XPathFilter, ...] = ()
    form: DeliveryForm = "notify"
    soap: SoapVersion = "1.1"
    addressing: bool = False
    policy: DeliveryPolicy = DEFAULT_POLICY
    created_ms: int = 0
    terminates_ms: int | None = None
    paused: bool = False
    owner: str = ""
    pull_point: str = ""
    protection: Protection | None = None
    endpoint: BoundEndpoint | None = None
    types: tuple[str, ...] = ()
    trigger: Trigger | None = None
    queue: int = 0
    peer: Peer | None = None

    @property
    def pushed(self) -> bool:
        """Whether its notifications are pushed to an endpoint, not put into a pull point or published by a trigger."""
        return not self.pull_point and self.trigger is None

    @property
    def of_settings(self) -> bool:
        """Whether gateways create it from the settings: a link to another engine, a rule of the MQTT bridge. Its id is
        predictable, and clients may not change it."""
        return self.peer is not None or is_mqtt(self.consumer.address)

    @property
    def in_turn(self) -> bool:
        """Whether a waiting retry blocks later notifications of the same topic only, as for links. A strict order over
        all topics would allow only one sender."""
        return self.peer is not None and self.policy.strict

    @property
    def receives(self) -> bool:
        """Whether notifications are matched to it. A paused subscription stays matched, and gets the missed
        notifications after it is resumed, unless nothing is stored for it: pull points, timely subscriptions, and the
        older system's subscribers."""
        if not self.paused:
            return True
        return not (self.pull_point or self.form == "legacy" or self.policy.reliability == "timely")

    def expired(self, now_ms: int) -> bool:
        """Whether the termination time is over."""
        return self.terminates_ms is not None and self.terminates_ms <= now_ms

    def selector(self) -> str:
        """The combined normal form of all topic filters: equal selectors select equal topics."""
        return " & ".join(sorted({f.normal for f in self.topics}))

    def sealing_context(self) -> str:
        """The context of its sealed secrets, which binds them to this subscription and address."""
        return f"{self.id}\n{self.consumer.address}"

    def identity(self) -> tuple[object, ...]:
        """A key that is equal for two subscriptions with the same deliveries.

        It excludes the protection, so that a repeated Subscribe with a new secret replaces the old one, and the size of
        parts, since old subscribers are identified by address and topic.
        """
        return (
            self.consumer.address,
            self.consumer.reference_parameters,
            self.selector(),
            tuple((f.dialect, f.text, tuple(sorted(f.namespaces.items()))) for f in self.content),
            tuple((f.dialect, f.text, tuple(sorted(f.namespaces.items()))) for f in self.producer),
            self.form,
            self.soap,
            msgspec.structs.replace(self.policy, fragment_bytes=0) if self.policy.fragment_bytes else self.policy,
            self.owner,
            self.pull_point,
            self.types,
            self.trigger,
            self.queue > 0,
            self.peer,
        )


_QUEUE = "queue:"


def queue_of(topic: TopicPath) -> Subscription:
    """The placeholder for all servers of a queue until one of them gets the request; deliveries to it are parked."""
    return Subscription(_QUEUE + topic, EndpointReference(""))


def queue_topic(subscription_id: str) -> TopicPath | None:
    """The queue of a placeholder's id; None for the id of a subscription."""
    return TopicPath(subscription_id.removeprefix(_QUEUE)) if subscription_id.startswith(_QUEUE) else None
