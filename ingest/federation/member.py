"""This engine as a member: registration with the administrator, interest, links.

Runs in the gateway with the lease; its state is in the control log and in a file with the last topology. While the
administrator is away everything continues.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from arborcast.core.backoff import Backoff, repeated, retried
from arborcast.core.errors import DeliveryError, InfrastructureError, PeerError
from arborcast.core.files import write_atomically
from arborcast.core.http_client import HttpClient
from arborcast.core.security.outbound import AddressPolicy
from arborcast.core.settings import KafkaSettings
from arborcast.core.single_flight import SingleFlight, spawn
from arborcast.core.threads import pool
from arborcast.core.wall_clock import time_ms
from arborcast.ingest.federation import links, takeover
from arborcast.ingest.federation.calls import Administrator, call
from arborcast.ingest.federation.interests import PeerInterests
from arborcast.ingest.federation.keys import SharedKeys
from arborcast.ingest.federation.links import Report
from arborcast.ingest.federation.settings import FederationSettings
from arborcast.ingest.federation.topology import AdministratorRefused, Member, MemberRegistration, Topology
from arborcast.ingest.operations.gateway import Gateway
from arborcast.topic_model.records.peers import INTEREST_PATH, datagram_url, encode_interest, group_of
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.routing.interest import summary_of
from arborcast.topic_model.subscriptions import Subscription
from arborcast.wire import times

logger = logging.getLogger(__name__)

BEAT_S = 1.0

# Interval of name resolution. All links wait for it: a lookup without an answer takes ten seconds and more.
_RESOLVE_S = 60.0
_LOOKUP_S, _LOOKUPS = 2.0, 32

# Interval of checks of required links and interest.
_CHECK_S = 0.25
_SEND_S = 1.0

# Interval at which interest is sent again, for peers that missed it.
_AGAIN_S = 30.0

# A walk over all subscriptions takes a second for a million: not again before nine times the duration has passed.
_SHARE = 9

# Time for a new representative to report its interest for other groups.
_TAKEOVER_S = 4.0

_BACKOFF = Backoff(0.5, 5.0)

# Peers may not answer; a missing heartbeat makes this engine count as dead.
_SENDERS = 16


class _Sent(NamedTuple):
    """The last report to a peer, and its time; `number` is that of the peer's registration: after a restart it needs
    another report."""

    report: Report
    version: int
    number: int
    at: float
    taken: bool


class _Membership:
    """The registration of this engine at the administrator."""

    def __init__(self, registration: MemberRegistration, administrator: Administrator) -> None:
        self.administrator = administrator
        self._registration = registration
        self._number = 0

    async def renew(self) -> None:
        """Register, once, and send a heartbeat."""
        if not self._number:
            registered = await asyncio.wrap_future(self.administrator.register(self._registration))
            self._number = registered.number
            own = self._registration
            logger.info("this is %s/%s of the federation, number %d", own.group, own.name, registered.number)
        try:
            await asyncio.wrap_future(self.administrator.beat(self._registration.name, self._number))
        except AdministratorRefused as error:
            if error.status in (404, 409):
                self._number = 0  # the administrator has removed this engine
            raise


class _LoggedPolicy:
    """The outbound policy, with one log entry for each address that it refuses."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._logged: set[str] = set()

    @property
    def https_only(self) -> bool:
        return self._policy.settings.https_only

    def allows_url(self, to: str, url: str) -> bool:
        """Whether the outbound policy allows this URL of an engine: else each push of a link would be a dead letter."""
        refusal = self._policy.check_url(url)
        if refusal is not None and url not in self._logged:
            self._logged.add(url)
            logger.error("%s is not called: %s %s; let [outbound] allow it", to, url, refusal)
        return refusal is None

    def allows_datagrams(self, to: str, address: str, port: int) -> bool:
        refusal = self._policy.check_address(address, port)
        if refusal is not None and address not in self._logged:
            self._logged.add(address)
            logger.warning("no datagrams go to %s: its address %s", to, refusal)
        return refusal is None


class _DatagramAddresses:
    """The resolved datagram addresses of members of this group: workers do not resolve names. Datagrams are not
    encrypted, so none are used where https is required; a member without an address, or with a refused one, gets pushes
    instead."""

    def __init__(self, settings: FederationSettings, outbound: _LoggedPolicy) -> None:
        self._settings = settings
        self._outbound = outbound
        self._threads = pool("datagram-lookup", _LOOKUPS)
        self._lookups: SingleFlight[tuple[str, str], str] = SingleFlight()
        self._found: Mapping[str, str] = links.NOWHERE
        self._resolved: tuple[int, float] | None = None

    async def of(self, topology: Topology) -> Mapping[str, str]:
        """The datagram URL of each engine that has one. Names are resolved for each topology and each minute."""
        now = time.monotonic()
        if self._resolved is not None and self._resolved[0] == topology.version and now < self._resolved[1]:
            return self._found
        group, own = self._settings.group, self._settings.engine
        receivers = [each for each in topology.members if each.datagram_port and each.group == group]
        others = [] if self._outbound.https_only else [each for each in receivers if each.engine != own]
        addresses = await asyncio.gather(*map(self._address, others))
        self._found = {
            each.engine: datagram_url(address, each.datagram_port)
            for each, address in zip(others, addresses, strict=True)
            if address and self._outbound.allows_datagrams(each.engine, address, each.datagram_port)
        }
        self._resolved = topology.version, now + _RESOLVE_S
        return self._found

    async def _address(self, member: Member) -> str:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_LOOKUP_S):
                return await self._lookups.run(
                    (member.engine, member.url), lambda: loop.run_in_executor(self._threads, address_of, member)
                )
        except TimeoutError:
            logger.warning("no datagrams go to %s: the lookup of its host has no answer", member.engine)
            return ""


class _Summary:
    """The topics of this engine's subscriptions, as one summary."""

    def __init__(self, table: RoutingTable) -> None:
        self._table = table
        self._topics: tuple[str, ...] = ()
        self._position, self._next = -2, 0.0  # no position

    async def current(self, now: float) -> tuple[str, ...]:
        if self._table.position != self._position and now >= self._next:
            position, there = self._table.position, list(self._table.subscriptions())
            self._topics = await asyncio.to_thread(summary_of, there)
            self._position, self._next = position, time.monotonic() + _SHARE * (time.monotonic() - now)
        return self._topics


class _InterestSender:
    """The reports that other engines have, as far as this engine sent them."""

    def __init__(self, engine: str, peers: HttpClient, keys: SharedKeys) -> None:
        self.peers = peers
        self._engine = engine
        self._keys = keys
        self._sent: dict[str, _Sent] = {}
        self._under_way: set[str] = set()

    def is_due(self, to: str, report: Report, number: int, now: float) -> bool:
        """Whether to `send` to this engine now. Changed reports are sent at once, others again from time to time."""
        if to in self._under_way:
            return False
        sent = self._sent.get(to)
        same = sent is not None and sent.report == report
        if sent is not None and same and sent.number == number and sent.taken and now <= sent.at + _AGAIN_S:
            return False
        before = 0 if sent is None else sent.version
        # Versions grow over starts, too, and after a clock was put back.
        version = before if same else max(before + 1, time_ms())
        self._sent[to] = _Sent(report, version, number, now, False)
        return True

    async def send(self, to: str, url: str) -> None:
        """Send the report of the last `is_due`."""
        self._under_way.add(to)
        sent = self._sent[to]
        body = encode_interest(self._engine, to, sent.version, *sent.report)
        try:
            await asyncio.wrap_future(
                call(self.peers, url, "POST", INTEREST_PATH, body, self._keys, lambda _: None, answers=False)
            )
        except DeliveryError as error:
            # The next heartbeat follows soon; the administrator decides whether the engine is alive.
            logger.debug("%s could not be notified of the interest of this engine: %s", to, error)
        else:
            self._sent[to] = sent._replace(taken=True)
        finally:
            self._under_way.discard(to)


class FederationMember:
    """`run` until cancelled. Used on the event loop."""

    def __init__(
        self,
        gateway: Gateway,
        settings: FederationSettings,
        kafka: KafkaSettings,
        keys: SharedKeys,
        interests: PeerInterests,
        url: str,
        version: str,
        file: Path,
    ) -> None:
        self._gateway = gateway
        self._settings = settings
        self._kafka = kafka
        self._keys = keys
        self._interests = interests
        self._membership = _Membership(
            MemberRegistration(settings.name, settings.group, url, version, settings.datagram_port),
            Administrator(settings.administrator, keys),
        )
        self._file = file
        self._outbound = _LoggedPolicy(gateway.outbound)
        self._datagrams = _DatagramAddresses(settings, self._outbound)
        self._summary = _Summary(gateway.table)
        self._sent = _InterestSender(
            settings.engine, HttpClient(gateway.outbound, gateway.route, threads=_SENDERS, name="interest"), keys
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._takeovers = 0  # that are in progress
        self._links_as_of: tuple[int, int, bytes, Mapping[str, str]] | None = None
        self.topology = Topology()

    async def run(self) -> None:
        """Until cancelled. Failures are logged and retried."""
        self.topology = read_file(self._file)
        known = DeliveryError, InfrastructureError, PeerError
        try:
            async with asyncio.TaskGroup() as tasks:
                for what, work, pause_s in (
                    ("the administrator", self._membership.renew, BEAT_S),
                    ("the topology", self._follow, 0.0),
                    ("links to other engines", self._keep_links, _CHECK_S),
                    ("topics of interest", self._send_interests, _SEND_S),
                ):
                    tasks.create_task(repeated(f"federation, {what}", work, pause_s, _BACKOFF, *known))
        finally:
            for task in self._tasks:
                task.cancel()
            self._membership.administrator.close()
            self._sent.peers.close()

    # The administrator

    async def _follow(self) -> None:
        known = self.topology
        found = await asyncio.wrap_future(self._membership.administrator.topology(known.version))
        if found.agrees_with(known):
            return
        self.topology = found
        self._check_takeover(known, found)
        await self._store()

    async def _store(self) -> None:
        """The file has the former representative until its notifications are sent again: also after a restart."""
        if not self._takeovers:
            await asyncio.to_thread(_write, self._file, self.topology)

    def _check_takeover(self, before: Topology, after: Topology) -> None:
        group = self._settings.group
        old, new = before.representative(group), after.representative(group)
        if old is None or new is None or old.engine == new.engine:
            return
        former = after.named(old.name)
        since_s = time.time() - takeover.span_s(former.silent_ms if former is not None else 0)
        logger.warning("%s represents the group %s, and no longer %s", new.name, group, old.name)
        self._takeovers += 1
        spawn(self._tasks, self._take_over(new.engine, since_s))

    async def _take_over(self, successor: str, since_s: float) -> None:
        await asyncio.sleep(_TAKEOVER_S)
        own, group = self._settings.engine, self._settings.group
        across = successor == own
        chosen = [
            each
            for each in self._links()
            if each.peer is not None
            and (group_of(each.peer.to) != group if across else each.peer.to == successor)
            and each.terminates_ms is None
            and each.peer.datagrams != "only"  # their arrival is not guaranteed
        ]
        position = self._gateway.table.position
        if chosen:
            send = partial(asyncio.to_thread, takeover.send_again, self._kafka, chosen, since_s, position)
            what = "notifications that the former representative may not have forwarded"
            pauses = Backoff(_BACKOFF.longest_s, _BACKOFF.longest_s)
            sent = await retried(what, send, pauses, InfrastructureError)
            logger.info("%d %s are sent again", sent, what)
        self._takeovers -= 1
        await self._store()

    # Links

    def _links(self) -> list[Subscription]:
        found = map(self._gateway.table.get, sorted(self._interests.links))
        return [each for each in found if each is not None]

    async def _keep_links(self) -> None:
        gateway, own, topology = self._gateway, self._settings.engine, self.topology
        datagrams = await self._datagrams.of(topology)
        as_of = (topology.version, gateway.table.position, self._keys.current, datagrams)
        if as_of == self._links_as_of or not topology.version:
            return
        absent = links.absent_groups(topology) if links.is_representative(own, topology) else frozenset()
        now_ms = times.to_ms(gateway.now())

        def protect(link: Subscription) -> Subscription:
            return gateway.protector.with_secret(link, self._keys.current, now_ms, 0)[0]

        required = [
            each
            for each in links.required_links(own, topology, self._interests, datagrams)
            if each.datagrams == "only" or self._outbound.allows_url(each.to, each.url)
        ]
        records = links.changes(own, required, self._links(), now_ms, protect, absent)
        records += links.forgotten(topology, self._interests)
        records += links.resumed(required, topology, gateway.suspensions.__contains__)
        if records:
            await gateway.changes.commit(records)
        self._links_as_of = as_of

    # Interest

    async def _send_interests(self) -> None:
        own, now = self._settings.engine, time.monotonic()
        own_interest = await self._summary.current(now)
        for to, report in links.reports_of(own, self.topology, self._interests, own_interest).items():
            member = links.reached(to, self.topology)
            if member is None or not self._outbound.allows_url(to, member.url):
                continue
            if self._sent.is_due(to, report, member.number, now):
                spawn(self._tasks, self._sent.send(to, member.url))


def address_of(member: Member) -> str:
    """The IP address of a member's URL; empty if it cannot be resolved."""
    try:
        host = urlsplit(member.url).hostname or ""
        return str(socket.getaddrinfo(host, member.datagram_port, type=socket.SOCK_DGRAM)[0][4][0])
    except (OSError, ValueError) as error:
        logger.warning("no datagrams go to %s: its host cannot be found: %s", member.engine, error)
        return ""


def read_file(file: Path) -> Topology:
    """The topology that an engine stored in this file; an empty one without it."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Topology)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return Topology()


def _write(file: Path, topology: Topology) -> None:
    try:
        write_atomically(file, msgspec.json.encode(topology).decode())
    except OSError as error:
        logger.warning("the topology cannot be kept in %s: %s", file, error)
