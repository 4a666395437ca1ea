"""Subscriptions as immutable values: who, what, until when, how.

msgspec structs rather than data classes: a routing table holds a million of them, they are read from the control log
at start, and they cross to Spark's workers; a struct is half the size and decodes ten times as fast. They are kept from
the garbage collector (gc=False): immutable values cannot form a cycle, and walking a million of them takes a second.
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
"""What a deadline or a minimum interval counts for: all topics of a subscription together, or each."""


class EndpointReference(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A WS-Addressing EPR. The XML parts are kept as self-contained fragments, as they were sent."""

    address: str
    reference_parameters: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()


# Headers that we write ourselves into messages to a reference.
_WRITTEN = frozenset({WSA, ARBORCAST_DELIVERY})


def parameter_blocks(reference_parameters: tuple[str, ...]) -> str:
    """Reference parameters as header blocks of a message to their reference, marked as what they are.

    Without any that has the name of a header of ours: that would be there twice (`doubled_header` finds it beforehand).
    """
    # Only here is XML parsed, once per subscription and rarely; workers without such subscribers never load lxml.
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
    """The name, `{namespace}name`, of a reference parameter that is a header of WS-Addressing or of ours; empty when
    none is."""
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
        # With the usual prefix in scope: else the mark would get a made-up one.
        yield etree.fromstring(f'<around xmlns:wsa="{WSA}">{fragment}</around>'.encode(), parser)[0]


class TopicFilter(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A topic expression as it was written, and its normal form, which is all that matching needs."""

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
        """Whether each message has to be settled before the next one may be pushed."""
        return self.order == "strict" or self.reliability == "strict"

    def drops(self, reliable: bool) -> bool:
        """Whether a notification, `reliable` or not, is dropped where that of another subscription would wait."""
        return self.reliability == "timely" and not reliable


DEFAULT_POLICY = DeliveryPolicy()


class SigningSecret(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A secret that pushes are signed with, sealed (`core.security.keyring`); not any more from `until_ms` on."""

    sealed: str
    until_ms: int | None = None


class Protection(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How a receiver knows that a push is ours.

    `secrets` sign, newest first. `authorization` is the value of the HTTP header, sealed; `certificate` the name of a
    client certificate that the operator has put where pushes are made.
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
    """What holds for the topic that a trigger publishes to, by the topic's facts; see `TopicPolicy`. A notification
    there has one of these `types`; none at all means any. `distribution` is where it goes beside this engine
    (`topic_model.tree.distribution`), empty for everywhere."""

    retain: bool | None = None
    priority: int = 0
    reliable: bool = False
    types: tuple[str, ...] = ()
    distribution: str = ""


class Trigger(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What makes a subscription a trigger: what matches it is not pushed, but has a notification published on `topic`.

    That has the `payload`, of this `type`; where it is empty, the payload that matched. `prefixes` are as in a
    notification. `target` follows from the topic tree, and is there in routing tables only: None in records, and for a
    topic that is not there (any more).
    """

    name: str
    topic: TopicPath
    payload: str = ""
    type: str = ""
    prefixes: str = ""
    target: TriggerTarget | None = None

    @property
    def endpoint(self) -> str:
        """What stands where other subscriptions have the address that they are pushed to."""
        return f"trigger:{self.name}"


Datagrams = Literal["", "only", "without"]


class Peer(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The properties of a subscription that is a link to another engine, with pushes in the form `peer`: our name and
    its name, as GROUP/NAME. A link to another group has no NAME: the group's representative is pushed to. Two links may
    share a peer: one has `only` datagrams, the other is `without` them."""

    own: str
    to: str
    datagrams: Datagrams = ""


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One subscription. Filters of one kind are ANDed, as are the kinds; no topic filter at all means every topic.

    `address` is the subscription manager's URL as SubscribeResponse returned it; pushes carry the same one.
    `pull_point` is the id of the pull point of ours that the consumer is, empty for consumers that are pushed to;
    `endpoint` concerns gateways alone. `types` are the types of message that are wanted (`topic_model.message_types`),
    sorted; none at all means every type. One with a `trigger` is none that anybody has subscribed: it has records of
    its own, no address, and no end. `queue`, unless 0, says that it is a server of the queue which is its one topic: it
    gets some of the requests, so many at a time. Nor has anybody subscribed one with a `peer`: gateways make it.
    Times are milliseconds since the epoch, UTC; `terminates_ms` None means no end.
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
        """Whether its notifications go to an endpoint, and not into a log of ours."""
        return not self.pull_point and self.trigger is None

    @property
    def of_settings(self) -> bool:
        """Whether gateways make it by the settings: a link to another engine, a rule of the MQTT bridge. Its id can be
        guessed, and no client may change it."""
        return self.peer is not None or is_mqtt(self.consumer.address)

    @property
    def in_turn(self) -> bool:
        """Whether a waiting retry blocks later notifications of its topic, and no others: the case of links. A strict
        order over all topics allows only one sender."""
        return self.peer is not None and self.policy.strict

    @property
    def receives(self) -> bool:
        """Whether notifications are matched to it at all: a paused one keeps its position, and has what it missed
        when it is resumed. Not so where nothing is kept for it: pull points, timely subscriptions, and the older
        system's subscribers, which register without wanting anything."""
        if not self.paused:
            return True
        return not (self.pull_point or self.form == "legacy" or self.policy.reliability == "timely")

    def expired(self, now_ms: int) -> bool:
        """Whether the termination time is over."""
        return self.terminates_ms is not None and self.terminates_ms <= now_ms

    def selector(self) -> str:
        """The normal form of all topic filters together: equal selectors select equal topics."""
        return " & ".join(sorted({f.normal for f in self.topics}))

    def sealing_context(self) -> str:
        """What its secrets are bound to when they are sealed: they are of no use to another address."""
        return f"{self.id}\n{self.consumer.address}"

    def identity(self) -> tuple[object, ...]:
        """Equal for two subscriptions that would deliver the same things to the same place in the same way.

        How they are protected is left out: who subscribes again with a new secret replaces the old one. So is the size
        of parts: old subscribers are known by their address and topic.
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
    """What stands for all servers of a queue until one of them gets the request: deliveries to it are parked."""
    return Subscription(_QUEUE + topic, EndpointReference(""))


def queue_topic(subscription_id: str) -> TopicPath | None:
    """The queue that an id means; None for that of a subscription."""
    return TopicPath(subscription_id.removeprefix(_QUEUE)) if subscription_id.startswith(_QUEUE) else None
