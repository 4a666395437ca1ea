"""Proxies in front of the gateway: whose word counts for the address of a client.

Behind one, every connection comes from the same address, and what is counted by address (wrong credentials, rates,
connections, handshakes) would be one account for everybody. So a proxy that the operator names is believed when it says
in a header whom it speaks for, and nobody else is: the header of a stranger is a stranger's word.
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

# Proxies behind one another. More than a few are a client's invention, and would cost us time.
_MOST_HOPS = 16

# RFC 7239: pairs, with `;` between those of one hop and `,` between hops. Brackets and colons need quotes there; some
# proxies write them without.
_ESCAPED = re.compile(r"\\(.)")

_PAIR = re.compile(
    r"""[ \t]*+(?:([\w!#$%&'*+.^`|~-]++)=([\w!#$%&'*+.^`|~:[\]-]++|"(?:[^"\\]|\\.)*+"))?+[ \t]*+([;,]|$)"""
)


class Proxies:
    """The proxies that are trusted. The constructor raises ConfigError for what is no list of networks."""

    def __init__(self, networks: str = "", header: Literal["X-Forwarded-For", "Forwarded"] = "X-Forwarded-For") -> None:
        self._networks = trusted_networks(networks)
        self._name = header.lower().encode()
        self._hops = _forwarded if header == "Forwarded" else _forwarded_for
        # Of connections there are few addresses behind a proxy, and each is asked about with each request.
        self._is_trusted = lru_cache(1_000)(self._looked_up)

    def trusts(self, host: str) -> bool:
        """Whether that is a proxy of ours, by the address of its connection."""
        return bool(self._networks) and self._is_trusted(host)

    def connection_key(self, host: str) -> str | None:
        """What a connection counts as before anything has come over it, None for a proxy's: it is for many clients,
        and bounds what each of them may have by itself."""
        return None if self.trusts(host) else client_key(host)

    def client(self, scope: Mapping[str, Any]) -> str:
        """The address of who sent a request, in ASGI's words: the nearest one that no proxy of ours has.

        Read from the right, where the proxy next to us has written: what stands further left may be anybody's
        invention. What cannot be read ends it, so that such a request counts as the proxy that let it pass.
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
        raise ConfigError(f"{KEY}: everybody would be a proxy, and could name any address as its own")
    return networks


def _forwarded_for(text: str) -> list[str]:
    return [hop.strip(" \t") for hop in text.split(",")] if text else []


def _forwarded(text: str) -> list[str]:
    """The `for` of each hop, empty where a hop has none. Nothing of a header that is not well-formed is believed: an
    open quotation mark of a client's would swallow what the proxy has written behind it."""
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
