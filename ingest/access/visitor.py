"""Who asks, and what that one may do."""

from __future__ import annotations

from dataclasses import dataclass

from ingest.access.grants import NOTHING, Grant


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who has proved who it is."""

    name: str
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Caller:
    """An identity with what it may do. Operations get None where nobody has to say who it is: all is allowed then."""

    identity: Identity
    publish: Grant = NOTHING
    subscribe: Grant = NOTHING
    manage: Grant = NOTHING

    @property
    def name(self) -> str:
        """What it is called: the owner of what it makes."""
        return self.identity.name


@dataclass(slots=True)
class Visitor:
    """Who is behind a request, as far as is known at this moment."""

    address: str
    identity: Identity | None = None

    @property
    def client(self) -> str:
        """What rates are counted by. No address begins with `@`, so no user can be taken for one."""
        return self.address if self.identity is None else f"@{self.identity.name}"
