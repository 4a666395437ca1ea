"""Reverse proxies: the address of a client.

Behind a proxy every connection has the same address, and limits by address (failures, rates, connections, handshakes)
would be shared by all clients. The header of a configured proxy is trusted; that of other clients is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from arborcast.core.errors import ConfigError
from arborcast.core.security.ip_addresses import IpAddress, IpNetwork, plain, read_address, read_networks
from arborcast.ingest.access.rates import client_key

KEY = "gateway.trusted_proxies"

# Proxies in a chain. Longer chains are forged, and parsing them takes time.
_MOST_HOPS = 16

# RFC 7239: pairs, with `;` between those of one hop and `,` between hops. Brackets and colons need quotes there; some
# proxies write them without.
_ESCAPED = re.compile(r"\\(.)")

_PAIR = re.compile(
    r"""[ \t]*+(?:([\w!#$%&'*+.^`|~-]++)=([\w!#$%&'*+.^`|~:[\]-]++|"(?:[^"\\]|\\.)*+"))?+[ \t]*+([;,]|$)"""
)


class Proxies:
    """The trusted proxies. The constructor raises ConfigError for an invalid list of networks."""

    def __init__(self, networks: str = "", header: Literal["X-Forwarded-For", "Forwarded"] = "X-Forwarded-For") -> None:
        self._networks = trusted_networks(networks)
        self._name = header.lower().encode()
        self._hops = _forwarded if header == "Forwarded" else _forwarded_for
        # Behind a proxy, connections come from few addresses, which are checked with each request.
        self._is_trusted = lru_cache(1_000)(self._looked_up)

    def trusts(self, host: str) -> bool:
        """Whether the address of a connection is a trusted proxy's."""
        return bool(self._networks) and self._is_trusted(host)

    def connection_key(self, host: str) -> str | None:
        """The key of a connection before its first byte, None for a proxy's, which serves many clients."""
        return None if self.trusts(host) else client_key(host)

    def client(self, scope: Mapping[str, Any]) -> str:
        """The client's address of a request, in ASGI's form: the nearest one that is not a trusted proxy.

        Read from the right, where the nearest proxy writes; addresses further left may be forged. An unreadable part
        ends it, and the request counts as the proxy's.
        """
        peer = scope.get("client")
        host = str(peer[0]) if peer else ""
        if not self.trusts(host):
            return host
        values = [value.decode("latin-1") for name, value in scope["headers"] if name == self._name]
        for hop in reversed(self._hops(", ".join(values))[-_MOST_HOPS:]):
            address = _address(hop)
            if address is None:
                break
            host = str(address)
            if not any(address in network for network in self._networks):
                break
        return host

    def _looked_up(self, host: str) -> bool:
        address = _address(host)
        return address is not None and any(address in network for network in self._networks)


def trusted_networks(text: str) -> tuple[IpNetwork, ...]:
    """The networks of a setting. Raises ConfigError."""
    networks = read_networks(text, KEY)
    if any(network.prefixlen == 0 for network in networks):
        raise ConfigError(f"{KEY}: every client would be a proxy, and could name any address as its own")
    return networks


def _forwarded_for(text: str) -> list[str]:
    return [hop.strip(" \t") for hop in text.split(",")] if text else []


def _forwarded(text: str) -> list[str]:
    """The `for` of each hop, empty without one. A malformed header is not trusted: an open quotation mark of a client
    would swallow the proxy's part."""
    hops = [""]
    position = 0
    while position < len(text):
        pair = _PAIR.match(text, position)
        if pair is None:
            return []
        name, value, end = pair.groups()
        if name is not None and name.lower() == "for":
            hops[-1] = _ESCAPED.sub(r"\1", value[1:-1]) if value.startswith('"') else value
        if end == ",":
            hops.append("")
        position = pair.end()
    return hops if text else []


def _address(hop: str) -> IpAddress | None:
    """`192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`; None for anything else."""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    address = read_address(hop)
    return None if address is None else plain(address)


NONE = Proxies()
"""Where there are none: the address of the connection is the client's."""
