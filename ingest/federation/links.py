"""Links: the required ones, and the control records that create them. Pure.

There is one to each other member of the group and, at the representative, one to each other group, addressed to its
representative, so messages waiting for a group go to a new representative. A link that is no longer required accepts
nothing and delivers its waiting messages; it ends as an expired subscription.

A member of the group with a datagram port has a second link for datagrams, and the first one excludes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from arborcast.ingest.federation.interests import PeerInterests
from arborcast.ingest.federation.topology import Member, Topology
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records.control import ControlRecord, SubscriptionRecord, Tombstone
from arborcast.topic_model.records.peers import PATH, group_of
from arborcast.topic_model.routing.interest import merged
from arborcast.topic_model.subscriptions import (
    Datagrams,
    DeliveryPolicy,
    EndpointReference,
    Peer,
    Subscription,
    TopicFilter,
)

# Order is kept, and each message is tried until its lifespan ends.
POLICY = DeliveryPolicy(reliability="strict")

# Datagrams are not acknowledged, so nothing is retried.
DATAGRAM_POLICY = DeliveryPolicy(reliability="timely")


NOWHERE: Mapping[str, str] = {}


class Link(NamedTuple):
    """A required link: its peer, as in Peer, address, interest, and transport."""

    to: str
    url: str
    topics: tuple[str, ...]
    datagrams: Datagrams = ""

    @property
    def id(self) -> str:
        """That of its subscription. No name has a dot."""
        group, _, name = self.to.partition("/")
        if self.datagrams == "only":
            return f"peer-fast.{name}"
        return f"peer-{name}" if name else f"peer-group.{group}"


def required_links(
    own: str, topology: Topology, interests: PeerInterests, datagrams: Mapping[str, str] = NOWHERE
) -> list[Link]:
    """The links of the engine `own`, GROUP/NAME, with topics to forward. `datagrams` are the datagram addresses of
    members."""
    group = group_of(own)
    links: list[Link] = []
    for each in topology.members:
        if each.group == group and each.engine != own:
            topics, address = interests.all(each.engine), datagrams.get(each.engine)
            if address is not None:
                # First: between the two records messages go over both, and duplicates are dropped.
                links.append(Link(each.engine, address, topics, "only"))
            links.append(Link(each.engine, each.url, topics, "" if address is None else "without"))
    if is_representative(own, topology):
        for other in topology.groups():
            speaker = topology.representative(other)
            if other != group and speaker is not None:
                links.append(Link(f"{other}/", speaker.url, interests.topics(f"{other}/")))
    return [each for each in links if each.topics]


def absent_groups(topology: Topology) -> frozenset[str]:
    """Groups without a live member; their messages wait."""
    return frozenset(f"{each}/" for each in topology.groups() if topology.representative(each) is None)


def is_representative(own: str, topology: Topology) -> bool:
    speaker = topology.representative(group_of(own))
    return speaker is not None and speaker.engine == own


def changes(
    own: str,
    required: Iterable[Link],
    there: Iterable[Subscription],
    now_ms: int,
    protect: Callable[[Subscription], Subscription],
    kept: frozenset[str] = frozenset(),
) -> list[ControlRecord]:
    """The changes from the current links, as subscriptions, to the required ones. `protect` adds signing; it returns
    the same subscription if that is signed already. Links to `kept` stay."""
    links = {each.id: each for each in there if each.peer is not None}
    records: list[ControlRecord] = []
    for link in required:
        old = links.pop(link.id, None)
        new = protect(_subscription(own, link, old, now_ms))
        if new != old:
            records.append(SubscriptionRecord(new))
    for left in links.values():
        if left.terminates_ms is None and left.peer is not None and left.peer.to not in kept:
            records.append(SubscriptionRecord(msgspec.structs.replace(left, terminates_ms=now_ms)))
    return records


def forgotten(topology: Topology, interests: PeerInterests) -> list[ControlRecord]:
    """The records that forget the interest of former members."""
    known = {each.engine for each in topology.members} | {f"{each}/" for each in topology.groups()}
    return [Tombstone.of("interest", each.peer) for each in interests if each.peer not in known]


def reached(to: str, topology: Topology) -> Member | None:
    """The member addressed for `to`, as in Peer; None without a live one."""
    group, _, name = to.partition("/")
    return topology.named(name) if name else topology.representative(group)


def resumed(required: Iterable[Link], topology: Topology, suspended: Callable[[str], bool]) -> list[ControlRecord]:
    """The records that resume suspended links whose peer is back."""
    return [
        Tombstone.of("susp", link.id)
        for link in required
        if suspended(link.id) and (member := reached(link.to, topology)) is not None and member.state == "live"
    ]


Report = tuple[tuple[str, ...], tuple[str, ...]]
"""A report for a peer: the summary of the own interest, and that of other groups."""


def reports_of(
    own: str, topology: Topology, interests: PeerInterests, interest: tuple[str, ...]
) -> Mapping[str, Report]:
    """The reports by engine or group, as in Peer. `interest` is that of the engine's own subscribers. To the
    members of the group the representative reports the interest of other groups, too; to other groups, that of the
    whole group. The interest of members is not reported back to them."""
    group = group_of(own)
    represents = is_representative(own, topology)
    abroad = [each for each in topology.groups() if each != group] if represents else []
    others = merged(interests.topics(f"{each}/") for each in abroad)
    members = [each for each in topology.members if each.group == group and each.engine != own]
    ours = merged((interest, *(interests.topics(each.engine) for each in members)))
    return {each.engine: (merged([interest]), others) for each in members if each.state != "gone"} | {
        f"{each}/": (ours, ()) for each in abroad
    }


def _subscription(own: str, link: Link, old: Subscription | None, now_ms: int) -> Subscription:
    expression = "|".join(link.topics)
    topics = (TopicFilter("", expression, parse_normal(expression).normal),)
    by_datagrams = link.datagrams == "only"
    consumer = EndpointReference(link.url if by_datagrams else link.url.rstrip("/") + PATH)
    peer, policy = Peer(own, link.to, link.datagrams), DATAGRAM_POLICY if by_datagrams else POLICY
    if old is None:
        return Subscription(link.id, consumer, topics=topics, form="peer", policy=policy, created_ms=now_ms, peer=peer)
    # Its secrets are sealed for the address.
    protection = old.protection if old.consumer == consumer else None
    return msgspec.structs.replace(
        old, consumer=consumer, topics=topics, peer=peer, terminates_ms=None, protection=protection
    )
