"""The federation of an engine: its members, and the links to them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from arborcast.core.errors import ConfigError, DeliveryError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations.views import DeliveryViews
from arborcast.dispatch.operations.waiting import Waiting
from arborcast.engine.settings.loading import Settings
from arborcast.ingest.federation.topology import Topology
from arborcast.topic_model.control_view import ControlView


class MemberStatus(msgspec.Struct, frozen=True):
    """An engine. `number` is its place in the order of registration."""

    engine: str
    state: str
    represents: bool
    url: str
    number: int
    version: str
    silent_s: float


class MemberList(NamedTuple):
    """The engines. With a `problem` the administrator does not answer, and these are the last known engines."""

    members: tuple[MemberStatus, ...]
    problem: str


class GroupStatus(NamedTuple):
    """A group: the names of its engines, and of the one that represents it."""

    representative: str | None
    members: tuple[str, ...]


class Groups(NamedTuple):
    """The groups by name, of this version of the topology; `problem` as in `MemberList`."""

    version: int
    groups: dict[str, GroupStatus]
    problem: str


class LinkStatus(msgspec.Struct, frozen=True):
    """A subscription of another engine, or of a group, at this one. `waiting_since_ms` is 0 if nothing waits."""

    link: str
    to: str
    url: str
    state: str
    topics: tuple[str, ...]
    since_ms: int
    waiting: int = 0
    waiting_since_ms: int = 0


def members(settings: Settings) -> MemberList:
    """The engines of the federation. Raises ConfigError."""
    topology, problem = _topology(settings)
    found = (
        MemberStatus(
            engine=each.engine,
            state=each.state,
            represents=topology.representative(each.group) == each,
            url=each.url,
            number=each.number,
            version=each.version,
            silent_s=each.silent_ms / 1000,
        )
        for each in topology.members
    )
    return MemberList(tuple(found), problem)


def groups(settings: Settings) -> Groups:
    """The groups of the federation. Raises ConfigError."""
    topology, problem = _topology(settings)
    found: dict[str, GroupStatus] = {}
    for group in topology.groups():
        representative = topology.representative(group)
        names = tuple(each.name for each in topology.members if each.group == group)
        found[group] = GroupStatus(None if representative is None else representative.name, names)
    return Groups(topology.version, found, problem)


def links(control: ControlView) -> tuple[LinkStatus, ...]:
    """The links of this engine, without their waiting deliveries; see `with_waiting`."""
    found = (
        LinkStatus(
            link=each.id,
            to=each.peer.to,
            url=each.consumer.address,
            state="closing" if each.terminates_ms is not None else control.suspensions.state_of(each),
            topics=tuple(part for topic in each.topics for part in topic.text.split("|")),
            since_ms=each.created_ms,
        )
        for each in control.table.subscriptions()
        if each.peer is not None
    )
    return tuple(sorted(found, key=lambda each: each.link))


def with_waiting(
    kafka: KafkaSettings, current: tuple[LinkStatus, ...], views: DeliveryViews | None = None
) -> tuple[LinkStatus, ...]:
    """The same links with the number of waiting deliveries, and the time of the oldest. `views` are cached for later
    queries. Raises InfrastructureError."""
    counted = Waiting(kafka, views).tally({each.link for each in current}) if current else {}
    return tuple(
        msgspec.structs.replace(each, waiting=count, waiting_since_ms=since_ms)
        for each in current
        for count, since_ms in [counted.get(each.link, (0, 0))]
    )


def _topology(settings: Settings) -> tuple[Topology, str]:
    """The administrator's topology; while it does not answer, that in the data directory, and the reason."""
    if not settings.federation.name:
        raise ConfigError("this engine is in no federation: federation.name is not set")
    # They load the gateway and an HTTP client: 10 MiB that a console without federation does not need.
    from arborcast.engine.gateway.federation import TOPOLOGY_FILE
    from arborcast.ingest.federation.calls import Administrator
    from arborcast.ingest.federation.keys import SharedKeys
    from arborcast.ingest.federation.member import read_file

    try:
        return Administrator(
            settings.federation.administrator, SharedKeys(settings.federation.key_file)
        ).topology().result(), ""
    except DeliveryError as error:
        return read_file(settings.home / TOPOLOGY_FILE), str(error)
