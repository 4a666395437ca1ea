"""The members of a federation, as reported by the administrator. Values."""

from __future__ import annotations

from typing import Literal

import msgspec

from arborcast.core.errors import DeliveryError

State = Literal["live", "suspect", "gone"]


class MemberRegistration(msgspec.Struct, frozen=True):
    """The registration of an engine. It receives datagrams at the host of its URL and `datagram_port`, unless that is
    0."""

    name: str
    group: str
    url: str
    version: str
    datagram_port: int = 0


class Member(MemberRegistration, frozen=True, kw_only=True):
    """An engine. `number` is that of its registration; `silent_ms` is the age of its last heartbeat when the topology
    was made."""

    number: int
    state: State = "live"
    silent_ms: int = 0

    @property
    def engine(self) -> str:
        """GROUP/NAME."""
        return f"{self.group}/{self.name}"


class Topology(msgspec.Struct, frozen=True):
    """All members, including dead ones. The greater `version` is newer."""

    version: int = 0
    members: tuple[Member, ...] = ()

    def agrees_with(self, other: Topology) -> bool:
        """Whether it is equal except for times of silence."""
        return [msgspec.structs.replace(each, silent_ms=0) for each in self.members] == [
            msgspec.structs.replace(each, silent_ms=0) for each in other.members
        ] and self.version == other.version

    def groups(self) -> list[str]:
        """Sorted."""
        return sorted({each.group for each in self.members})

    def representative(self, group: str) -> Member | None:
        """The representative of a group: the member that registered first and is not dead. A suspect one stays, since
        otherwise each pause would change links."""
        there = [each for each in self.members if each.group == group and each.state != "gone"]
        return min(there, key=lambda each: each.number, default=None)

    def named(self, name: str) -> Member | None:
        return next((each for each in self.members if each.name == name), None)


class Registered(msgspec.Struct, frozen=True):
    """The answer to a registration."""

    number: int
    topology: int


class Beat(msgspec.Struct, frozen=True):
    """A heartbeat of the engine with this registration."""

    number: int


class AdministratorRefused(DeliveryError):
    """The administrator or another engine refused; `status` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
