"""Classification of IP addresses (globally routable or special-purpose), and parsing of hosts in URLs.

Pure: no name is resolved, no connection made. The table follows the IANA registries of special-purpose addresses. IPv6
addresses outside the ranges assigned for global use are never public, so ranges that get a purpose later are refused.
"""

from __future__ import annotations

import contextlib
import re
import socket
import unicodedata
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal

from arborcast.core.errors import ConfigError

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

Kind = Literal[
    "public",
    "loopback",
    "unspecified",
    "private",
    "shared",
    "link-local",
    "metadata",
    "multicast",
    "broadcast",
    "documentation",
    "benchmarking",
    "relay",
    "translated",
    "tunnel",
    "reserved",
]

MEANING: dict[Kind, str] = {
    "public": "globally routable",
    "loopback": "a loopback address: this machine itself",
    "unspecified": "an unspecified address, which means this machine itself",
    "private": "an address of a private network",
    "shared": "a shared address behind a provider's NAT",
    "link-local": "a link-local address",
    "metadata": "an address of a cloud's metadata service",
    "multicast": "a multicast address",
    "broadcast": "the broadcast address",
    "documentation": "an address for documentation",
    "benchmarking": "an address for benchmarks",
    "relay": "the address of a 6to4 relay",
    "translated": "an IPv4 address written as an IPv6 address",
    "tunnel": "an IPv6 address of a tunnel to an IPv4 address",
    "reserved": "a reserved address",
}
"""Each kind as the words after "is"."""

# The first match counts, so special ranges precede the ranges that contain them.
_SPECIAL: tuple[tuple[str, Kind], ...] = (
    # Metadata services: AWS, Azure, Google, Oracle, OpenStack; AWS containers; Alibaba; Oracle; Azure's host.
    ("169.254.169.254/32", "metadata"),
    ("169.254.170.2/32", "metadata"),
    ("169.254.170.23/32", "metadata"),
    ("100.100.100.200/32", "metadata"),
    ("192.0.0.192/32", "metadata"),
    ("168.63.129.16/32", "metadata"),
    ("fd00:ec2::/32", "metadata"),
    ("fd20:ce::254/128", "metadata"),
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "relay"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("255.255.255.255/32", "broadcast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::/96", "translated"),  # "IPv4-compatible", deprecated
    ("64:ff9b:1::/48", "translated"),  # a site's own translation
    ("2001:2::/48", "benchmarking"),
    ("2001:db8::/32", "documentation"),
    ("2001::/32", "tunnel"),  # Teredo
    ("2001::/23", "reserved"),
    ("2002::/16", "tunnel"),  # 6to4
    ("3fff::/20", "documentation"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private"),  # site-local, deprecated
    ("ff00::/8", "multicast"),
)
_TABLE = tuple((ip_network(network), kind) for network, kind in _SPECIAL)

# The ranges assigned for global use; the rest of IPv6 is unassigned or special.
_GLOBAL_V6 = IPv6Network("2000::/3")

# RFC 6052: IPv4 addresses for IPv6-only hosts; the embedded address is classified.
_NAT64 = IPv6Network("64:ff9b::/96")

# Interface identifiers of ISATAP, another tunnel: 0000:5efe or 0200:5efe, then the IPv4 address.
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})

# IPv6 forms with an embedded IPv4 address (RFC 4291, 2765, 6052, 3056, 4380), and the position of its last bit from the
# right.
_CARRIERS: tuple[tuple[IPv6Network, int], ...] = (
    (IPv6Network("::ffff:0:0/96"), 0),  # mapped
    (IPv6Network("::/96"), 0),  # "compatible"
    (IPv6Network("::ffff:0:0:0/96"), 0),  # "translated"
    (_NAT64, 0),
    (IPv6Network("2002::/16"), 80),  # 6to4
    (IPv6Network("2001::/32"), 64),  # Teredo: the server; the inverted address of the client is in the last bits
)
_TEREDO = IPv6Network("2001::/32")

# RFC 8215: a site chooses the length of its prefix, and with it the position of the address; the byte at bit 64 is
# skipped (RFC 6052, 2.2).
_SITE_NAT64 = IPv6Network("64:ff9b:1::/48")

_V4 = 0xFFFF_FFFF


# The wildcard address, which an operator may choose to listen on.
EVERYWHERE = "0.0.0.0"  # noqa: S104  # chosen by the operator


def connect_host(listened: str) -> str:
    """The host with which local clients reach a server that listens on `listened`."""
    return "127.0.0.1" if listened in ("", EVERYWHERE, "::") else listened


def in_url(host: str) -> str:
    """The host as in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether the host is this machine's loopback. Names other than localhost are not resolved."""
    address = read_address(host)
    return host == "localhost" if address is None else address.is_loopback


def plain(address: IpAddress) -> IpAddress:
    """The effective address of a connection: IPv4-mapped ones are IPv4; zones are ignored."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.scope_id is not None:
            return IPv6Address(int(address))
    return address


def embedded_ipv4(address: IpAddress) -> frozenset[IPv4Address]:
    """The IPv4 addresses embedded in an IPv6 address, to which translators and tunnels may lead. Mostly empty; several
    if the position is ambiguous. An operator's own NAT64 prefix cannot be recognised."""
    if not isinstance(address, IPv6Address):
        return frozenset()
    bits = int(address)
    found = {bits >> end & _V4 for network, end in _CARRIERS if address in network}
    if address in _TEREDO:
        found.add(~bits & _V4)
    if address in _SITE_NAT64:
        upper, lower = bits >> 64, bits & (1 << 56) - 1  # without the byte in the middle
        joined = upper << 56 | lower
        found |= {joined >> end & _V4 for end in (40, 32, 24)}  # prefixes of 48, 56 and 64 bits
        found.add(bits & _V4)  # of 96
    if bits >> 32 & _V4 in _ISATAP:
        found.add(bits & _V4)
    return frozenset(map(IPv4Address, found))


def kind_of(address: IpAddress) -> Kind:
    """The kind of an address; "public" for globally routable ones only."""
    address = plain(address)
    if address in _NAT64:
        # The embedded address may be a loopback or private address of the translator.
        return "public" if all(kind_of(each) == "public" for each in embedded_ipv4(address)) else "translated"
    for network, kind in _TABLE:
        if address in network:
            return kind
    if isinstance(address, IPv6Address):
        if address not in _GLOBAL_V6:
            return "reserved"
        if (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
            return "tunnel"
    return "public"


@dataclass(frozen=True)
class Host:
    """A host of a URL: an address, or a name to be resolved."""

    name: str
    address: IpAddress | None = None


class InvalidHost(ValueError):
    """A host in an ambiguous spelling, or an invalid one."""


_NUMBER = re.compile("[0-9]+|0x[0-9a-f]*")


def read_host(text: str) -> Host:
    """Parse the host of a URL; IPv6 without brackets. Names are returned in lower case without a final dot.

    Raises InvalidHost for forms that some resolvers read as an address and others do not (`0x7f.1`, `2130706433`,
    `127.1`, `0177.0.0.1`), for percent signs (zones, and escapes that libcurl would undo) and for letters beyond ASCII,
    which may normalise to digits.
    """
    if not text:
        raise InvalidHost("it is empty")
    if "%" in text:
        raise InvalidHost("it has a percent sign: neither zones nor escapes are accepted")
    if ":" in text:
        try:
            return Host(text.lower(), IPv6Address(text))
        except AddressValueError as error:
            raise InvalidHost("it is not an IPv6 address") from error
    if not text.isascii():
        folded = unicodedata.normalize("NFKC", text).replace("\u3002", ".")
        hint = f"; it is read as {folded}" if folded.isascii() else "; write an international name in its xn-- form"
        raise InvalidHost(f"it has characters outside ASCII{hint}")
    name = text.lower().removesuffix(".")
    if not name or len(name) > 253 or not all(0 < len(label) <= 63 for label in name.split(".")):
        raise InvalidHost("its labels are empty or too long")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            return Host(name, IPv4Address(name))
        except AddressValueError as error:
            hint = ""
            with contextlib.suppress(OSError, ValueError):
                hint = f"; it is read as {socket.inet_ntoa(socket.inet_aton(name))}"
            raise InvalidHost(
                f"it ends in a number, but is not an IPv4 address of four decimal numbers{hint}"
            ) from error
    return Host(name)


def read_address(text: str) -> IpAddress | None:
    """Parse an address as the system writes it; None if it is invalid."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def read_networks(text: str, key: str) -> tuple[IpNetwork, ...]:
    """Addresses and networks, separated by commas, of the setting `key`. Raises ConfigError."""
    networks = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ip_network(item))
        except ValueError as error:
            raise ConfigError(f"{key}: {item!r} is not an address or network such as 10.1.0.0/16: {error}") from error
    return tuple(networks)
