"""How many pushes may be under way to one endpoint and to one host, so that none can take all there are.

Pure. An endpoint is a subscriber's address; a host is the name or number in it, whatever the port: what is behind one
host shares its network, its cores and often its fate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from core.recent import Recent

Scope = tuple[Literal["endpoint", "host"], str]


@dataclass(frozen=True, slots=True)
class Limits:
    """Pushes under way at once."""

    per_endpoint: int
    per_host: int


# Bytes of addresses, twice: some ten thousand of ordinary length.
_REMEMBERED = 4 * 1024 * 1024
_known: Recent[str, tuple[Scope, Scope]] = Recent(_REMEMBERED)


def scopes_of(address: str) -> tuple[Scope, Scope]:
    """The endpoint and the host of an address. One that cannot be read is a host of its own: it will fail anyway."""
    scopes = _known.get(address)
    if scopes is None:
        scopes = _scopes(address)
        _known.put(address, scopes, 2 * len(address))
    return scopes


def _scopes(address: str) -> tuple[Scope, Scope]:
    try:
        host = urlsplit(address).hostname or address
    except ValueError:
        host = address
    return ("endpoint", address), ("host", host)


class InFlightLimiter:
    """Counts the pushes under way against the limits."""

    def __init__(self, limits: Limits) -> None:
        self._bounds = {"endpoint": limits.per_endpoint, "host": limits.per_host}
        self._under_way: dict[Scope, int] = {}

    def full(self, scope: Scope) -> bool:
        """Whether no further push may begin there."""
        return self._under_way.get(scope, 0) >= self._bounds[scope[0]]

    def enter(self, scopes: tuple[Scope, Scope]) -> None:
        """A push there begins."""
        for scope in scopes:
            self._under_way[scope] = self._under_way.get(scope, 0) + 1

    def leave(self, scopes: tuple[Scope, Scope]) -> None:
        """It has ended."""
        for scope in scopes:
            if self._under_way[scope] == 1:
                del self._under_way[scope]
            else:
                self._under_way[scope] -= 1
