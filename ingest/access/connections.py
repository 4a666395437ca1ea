"""How many connections one address has at a time."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable


def client_key(host: str) -> str:
    """What counts as one client: an IPv4 address, or the network of 64 bits that an IPv6 address is in.

    One machine has a whole such network to itself, so counting its addresses would count nothing.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can be, or reach, this host. Other names than localhost are not resolved."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class PeerConnections:
    """Counts open connections for each client of one worker. `key` is what an address counts as, None where it is not
    counted."""

    def __init__(self, maximum: int, key: Callable[[str], str | None] = client_key) -> None:
        self._maximum = maximum
        self._key = key
        self._open: dict[str, int] = {}

    def opened(self, host: str) -> bool:
        """Count one; whether it is one too many. It is counted in any case, until `closed`."""
        key = self._key(host)
        if key is None:
            return False
        count = self._open[key] = self._open.get(key, 0) + 1
        return count > self._maximum

    def closed(self, host: str) -> None:
        """One that was opened is gone."""
        key = self._key(host)
        if key is None:
            return
        count = self._open.get(key, 0) - 1
        if count > 0:
            self._open[key] = count
        else:
            self._open.pop(key, None)

    def __len__(self) -> int:
        """Clients that have connections."""
        return len(self._open)
