"""Who asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who has proved who it is."""

    name: str
    groups: frozenset[str] = frozenset()


@dataclass(slots=True)
class Visitor:
    """Who is behind a request, as far as is known at this moment. `caller` is None until it has proved who it is."""

    address: str
    caller: Caller | None = None

    @property
    def client(self) -> str:
        """What rates are counted by. No user can have a name that looks like an address: of those, `@` is no part."""
        return self.address if self.caller is None else f"@{self.caller.name}"
