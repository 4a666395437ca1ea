"""The members of a federation: registrations, heartbeats and silence. Pure; times are passed in.

A member without a heartbeat for SUSPECT_S is suspect, after GONE_S gone; when it returns it registers again, with a new
number. Members gone for long are removed.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from arborcast.core.errors import PeerError
from arborcast.core.security.signatures import NAME
from arborcast.ingest.federation.topology import Member, MemberRegistration, Registered, State, Topology

SUSPECT_S = 5.0

GONE_S = 15.0

FORGOTTEN_S = 7 * 86_400.0
"""Messages for a member wait no longer anyway, in most engines a day."""

_MOST_URL = 1_000

_MOST_MEMBERS = 1_000


class NameTaken(PeerError):
    """A live member elsewhere has this name."""


class UnknownMember(PeerError):
    """No member of this name and number: it has to register."""


class RegistrationRefused(PeerError):
    """A registration that cannot be."""


class StoredMember(msgspec.Struct, frozen=True):
    """A member in the file; when it was heard of last, in milliseconds since the epoch."""

    name: str
    group: str
    url: str
    version: str
    number: int
    seen_ms: int
    datagram_port: int


class StoredMembers(msgspec.Struct, frozen=True):
    """The file. `version` is that of the topology, `last` the last number given."""

    version: int = 0
    last: int = 0
    members: tuple[StoredMember, ...] = ()


@dataclass
class _Known:
    registration: MemberRegistration
    number: int
    heard: float  # by a monotonic clock; of one not heard of since our start, that start
    before_s: float = 0.0  # how long it had been silent at our start
    state: State = "live"

    def silent_s(self, now: float) -> float:
        return now - self.heard + self.before_s


class MemberRegister:
    """`now` is in seconds of a monotonic clock. After a start every member has GONE_S for a heartbeat."""

    def __init__(self, stored: StoredMembers, now: float, now_ms: int) -> None:
        self.version = stored.version
        self._last = stored.last
        self._known = {
            each.name: _Known(
                MemberRegistration(each.name, each.group, each.url, each.version, each.datagram_port),
                each.number,
                now,
                max(0.0, (now_ms - each.seen_ms) / 1000),
            )
            for each in stored.members
        }

    def register(self, registration: MemberRegistration, now: float) -> Registered:
        """Register a member. The same engine, known by its URL, keeps its number unless it is gone. Raises NameTaken,
        or RegistrationRefused."""
        _check(registration)
        known = self._known.get(registration.name)
        if known is not None and known.state != "gone":
            there = known.registration
            if (there.url, there.group) != (registration.url, registration.group):
                raise NameTaken(
                    f"the name {registration.name} is taken by the engine at {there.url}, of the group {there.group}: "
                    f"choose another federation.name, or wait {GONE_S:.0f} s when that engine has moved"
                )
            if known.registration != registration:
                known.registration = registration
                self.version += 1
            self._heard(known, now)
            return Registered(known.number, self.version)
        if known is None and len(self._known) >= _MOST_MEMBERS:
            raise RegistrationRefused(f"a federation has at most {_MOST_MEMBERS} members")
        self._last += 1
        self._known[registration.name] = _Known(registration, self._last, now)
        self.version += 1
        return Registered(self._last, self.version)

    def beat(self, name: str, number: int, now: float) -> None:
        """A member is there. Raises UnknownMember for one that has to register."""
        known = self._known.get(name)
        if known is None or known.number != number or known.state == "gone":
            raise UnknownMember(f"there is no member {name[:64]!r} with the number {number} (any more): register")
        self._heard(known, now)

    def look(self, now: float) -> bool:
        """Detect silent members; whether that changes the topology."""
        before = self.version
        for name, known in list(self._known.items()):
            # Silence before the start is the administrator's own.
            silent_s = now - known.heard
            state: State = "gone" if silent_s >= GONE_S else "suspect" if silent_s >= SUSPECT_S else "live"
            if known.state == "gone" and known.silent_s(now) >= FORGOTTEN_S:
                del self._known[name]
                self.version += 1
            elif known.state != "gone" and known.state != state:
                known.state = state
                self.version += 1
        return self.version != before

    def topology(self, now: float) -> Topology:
        """All that there are."""
        members = (
            Member(
                each.registration.name,
                each.registration.group,
                each.registration.url,
                each.registration.version,
                each.number,
                each.state,
                int(each.silent_s(now) * 1000),
                each.registration.datagram_port,
            )
            for each in self._known.values()
        )
        return Topology(self.version, tuple(sorted(members, key=lambda each: each.number)))

    def stored(self, now: float, now_ms: int) -> StoredMembers:
        """The contents of the file."""
        members = tuple(
            StoredMember(
                each.registration.name,
                each.registration.group,
                each.registration.url,
                each.registration.version,
                each.number,
                now_ms - int(each.silent_s(now) * 1000),
                each.registration.datagram_port,
            )
            for each in self._known.values()
        )
        return StoredMembers(self.version, self._last, members)

    def _heard(self, known: _Known, now: float) -> None:
        known.heard, known.before_s = now, 0.0
        if known.state != "live":
            known.state = "live"
            self.version += 1


def _check(registration: MemberRegistration) -> None:
    for what, name in (("name", registration.name), ("group", registration.group)):
        if not NAME.fullmatch(name):
            raise RegistrationRefused(f"the {what} {name[:64]!r} is not up to 64 letters, digits, - and _")
    url = registration.url
    if not url.startswith(("http://", "https://")) or len(url) > _MOST_URL or not url.isprintable():
        raise RegistrationRefused(f"{url[:100]!r} is no URL under which others reach an engine")
    if not 0 <= registration.datagram_port <= 65_535:
        raise RegistrationRefused(f"{registration.datagram_port} is no port")
    if len(registration.version) > 100:
        raise RegistrationRefused("that is no version")
