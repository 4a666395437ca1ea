"""The members of a federation: registrations, heartbeats and silence. Pure; times are parameters.

A member without a heartbeat for SUSPECT_S is suspect, after GONE_S lost; when it returns it registers again, with a new
number. Members that have been lost for a long time are removed.
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
"""Messages for such a member no longer wait: in most engines they expire after a day."""

_MOST_URL = 1_000

_MOST_MEMBERS = 1_000


class NameTaken(PeerError):
    """A live member elsewhere has this name."""


class UnknownMember(PeerError):
    """No member with this name and number: it must register."""


class RegistrationRefused(PeerError):
    """An invalid registration."""


class StoredMember(MemberRegistration, frozen=True, kw_only=True):
    """A member in the file, with the time of its last heartbeat, in milliseconds since the epoch."""

    number: int
    seen_ms: int


class StoredMembers(msgspec.Struct, frozen=True):
    """The file. `version` is that of the topology, `last` the last assigned number."""

    version: int = 0
    last: int = 0
    members: tuple[StoredMember, ...] = ()


@dataclass
class _Member:
    registration: MemberRegistration
    number: int
    last_beat: float  # the last heartbeat, by a monotonic clock; without one, the start of this process
    before_s: float = 0.0  # the silence before that start
    stopped_s: float = 0.0  # since the last heartbeat, the time in which this process did not run
    state: State = "live"

    def silent_s(self, now: float) -> float:
        return now - self.last_beat + self.before_s


class MemberRegister:
    """`now` is in seconds of a monotonic clock. After a start every member has GONE_S for a heartbeat."""

    def __init__(self, stored: StoredMembers, now: float, now_ms: int) -> None:
        self.version = stored.version
        self._last = stored.last
        self._known = {
            each.name: _Member(
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
            existing = known.registration
            if (existing.url, existing.group) != (registration.url, registration.group):
                raise NameTaken(
                    f"the name {registration.name} is taken by the engine at {existing.url}, of the group "
                    f"{existing.group}: choose another federation.name, or wait {GONE_S:.0f} s if that engine has moved"
                )
            if known.registration != registration:
                known.registration = registration
                self.version += 1
            self._beat(known, now)
            return Registered(known.number, self.version)
        if known is None and len(self._known) >= _MOST_MEMBERS:
            raise RegistrationRefused(f"a federation has at most {_MOST_MEMBERS} members")
        self._last += 1
        self._known[registration.name] = _Member(registration, self._last, now)
        self.version += 1
        return Registered(self._last, self.version)

    def beat(self, name: str, number: int, now: float) -> None:
        """Record a heartbeat. Raises UnknownMember for a member that must register."""
        known = self._known.get(name)
        if known is None or known.number != number or known.state == "gone":
            raise UnknownMember(f"there is no member {name[:64]!r} with the number {number} (any more): register")
        self._beat(known, now)

    def check(self, now: float, stopped_s: float = 0.0) -> bool:
        """Detect silent members; returns whether that changes the topology. `stopped_s`: how long this process did not
        run since the last check (stopped, or a write to a slow disk)."""
        before = self.version
        for name, known in list(self._known.items()):
            known.stopped_s += stopped_s
            # The time before the start of this process does not count: the clock may have been wrong at that start.
            silent_s = now - known.last_beat - known.stopped_s
            state: State = "gone" if silent_s >= GONE_S else "suspect" if silent_s >= SUSPECT_S else "live"
            if silent_s >= FORGOTTEN_S:
                del self._known[name]
                self.version += 1
            elif known.state not in ("gone", state):
                known.state = state
                self.version += 1
        return self.version != before

    def topology(self, now: float) -> Topology:
        members = (
            Member(
                **msgspec.structs.asdict(each.registration),
                number=each.number,
                state=each.state,
                silent_ms=int(each.silent_s(now) * 1000),
            )
            for each in self._known.values()
        )
        return Topology(self.version, tuple(sorted(members, key=lambda each: each.number)))

    def stored(self, now: float, now_ms: int) -> StoredMembers:
        """The contents of the file."""
        members = tuple(
            StoredMember(
                **msgspec.structs.asdict(each.registration),
                number=each.number,
                seen_ms=now_ms - int(each.silent_s(now) * 1000),
            )
            for each in self._known.values()
        )
        return StoredMembers(self.version, self._last, members)

    def _beat(self, known: _Member, now: float) -> None:
        known.last_beat, known.before_s, known.stopped_s = now, 0.0, 0.0
        if known.state != "live":
            known.state = "live"
            self.version += 1


def _check(registration: MemberRegistration) -> None:
    for what, name in (("name", registration.name), ("group", registration.group)):
        if not NAME.fullmatch(name):
            raise RegistrationRefused(f"the {what} {name[:64]!r} is not up to 64 letters, digits, - and _")
    url = registration.url
    if not url.startswith(("http://", "https://")) or len(url) > _MOST_URL or not url.isprintable():
        raise RegistrationRefused(f"{url[:100]!r} is not a URL at which others can reach an engine")
    if not 0 <= registration.datagram_port <= 65_535:
        raise RegistrationRefused(f"{registration.datagram_port} is no port")
    if len(registration.version) > 100:
        raise RegistrationRefused("the version is invalid")
