"""The outbound policy: one for every outgoing request.

Subscribers choose the URLs of pushes. Each URL is checked as text beforehand (`check_url`), and its address at each
connection (`check_address`), since a name can resolve differently each time. Transports open their sockets with
`GuardedSockets`.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from arborcast.core.errors import ConfigError
from arborcast.core.printable import is_printable
from arborcast.core.security.ip_addresses import (
    MEANING,
    InvalidHost,
    IpAddress,
    IpNetwork,
    Kind,
    embedded_ipv4,
    kind_of,
    plain,
    read_address,
    read_host,
    read_networks,
)
from arborcast.core.security.uris import to_uri
from arborcast.core.settings import setting

_Found = TypeVar("_Found", bound=tuple[Any, ...])

_SCOPES: dict[str, frozenset[Kind]] = {
    "public": frozenset({"public"}),
    "private": frozenset({"public", "private"}),
    "loopback": frozenset({"public", "loopback"}),
}

_NOT_IN_URLS = frozenset('"<>\\^`{|}\x7f')


@dataclass(frozen=True)
class OutboundSettings:
    """Allowed addresses of pushes and other outgoing requests, checked at every new connection."""

    scope: Literal["public", "private", "loopback"] = setting(
        "public",
        "public: globally routable addresses. private: also private networks. loopback: also this machine.",
    )
    allow: str = setting("", "Further networks: addresses or CIDR, separated by commas.")
    deny: str = setting("", "Forbidden networks, even if allowed.")
    ports: str = setting("", "Such as 443,8000-8999; empty: all but the engine's own.")
    look_up_names: bool = setting(
        True,
        "Resolve the host at Subscribe. Off: answers do not reveal names of the network.",
    )
    prove_ownership: bool = setting(
        False,
        "Ask consumers for consent, also publishers with Demand and, once an hour, the ReplyTo of queue requests.",
    )
    https_only: bool = setting(False, "Only https URLs.")

    def __post_init__(self) -> None:
        read_networks(self.allow, "outbound.allow")
        read_networks(self.deny, "outbound.deny")
        _ports(self.ports)


@dataclass(frozen=True)
class Refusal:
    """Why a URL is refused. `rule` is one word for programs, `reason` a sentence without a subject."""

    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.reason} (outbound rule: {self.rule})"


@dataclass(frozen=True)
class AddressPolicy:
    """The settings with the engine's own services. A value: compared, and sent to Spark's workers."""

    settings: OutboundSettings = field(default_factory=OutboundSettings)
    own: frozenset[tuple[str, int]] = frozenset()
    """Hosts and ports of the engine's own services (gateway, Kafka, directory), which are never endpoints."""
    schemes: tuple[str, str] = ("http", "https")
    """The scheme of URLs without TLS, and the one with it."""

    def check_url(self, url: str) -> Refusal | None:
        """Check a URL as text; None if it is allowed. An IRI is checked as its URI."""
        if not is_printable(url) or any(c <= " " or c in _NOT_IN_URLS for c in url):
            return Refusal("spelling", "has characters that are not allowed in a URL")
        url = to_uri(url)
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            return Refusal("spelling", f"is not a URL: {error}")
        plain_scheme, tls_scheme = self.schemes
        if parts.scheme not in self.schemes:
            return Refusal("scheme", f"must be an {plain_scheme} or {tls_scheme} URL")
        if self.settings.https_only and parts.scheme != tls_scheme:
            return Refusal("https-only", f"must be an {tls_scheme} URL: outbound.https_only is set")
        if "@" in parts.netloc:
            # Credentials would be stored and returned in clear text, and parsers disagree on the host part.
            return Refusal("userinfo", "must not have a user name or password")
        if not parts.hostname or port == 0:
            return Refusal("spelling", "names no usable host and port")
        return self._check_place(parts.netloc, parts.hostname, port or (443 if parts.scheme == "https" else 80))

    def _check_place(self, netloc: str, hostname: str, port: int) -> Refusal | None:
        if (":" in hostname) != netloc.startswith("["):
            return Refusal("spelling", "has a host with misplaced brackets")
        try:
            host = read_host(hostname)
        except InvalidHost as error:
            return Refusal("spelling", f"has an invalid host: {error}")
        address = host.address
        if address is None and (host.name == "localhost" or host.name.endswith(".localhost")):
            address = read_address("127.0.0.1")
        if address is not None:
            return self.check(address, port)
        if (host.name, port) in self.own:
            return Refusal("own-port", f"leads back to this engine: port {port} of {host.name}")
        return self._check_port(port)

    def check_address(self, address: str, port: int) -> Refusal | None:
        """Check the address of a connection, as written by the resolver."""
        read = read_address(address)
        if read is None:
            return Refusal("address", f"leads to {address!r}, which is not an IP address")
        return self.check(read, port)

    def check(self, address: IpAddress, port: int) -> Refusal | None:
        """Check an address and port. Denied networks and the engine's own services first, allowed ones afterwards."""
        address = plain(address)
        faces = (address, *embedded_ipv4(address))
        if any(face in network for face in faces for network in self._denied):
            return Refusal("denied", f"leads to {address}, in a network that outbound.deny names")
        if any(self._is_own(face, port) for face in faces):
            return Refusal("own-port", f"leads back to this engine: port {port} of {address}")
        refusal = self._check_port(port)
        if refusal is not None:
            return refusal
        kind = kind_of(address)
        if kind in _SCOPES[self.settings.scope] or any(address in network for network in self._allowed):
            return None
        scope = self.settings.scope
        return Refusal(kind, f"leads to {address}, which is {MEANING[kind]}; outbound.scope is {scope}")

    def _check_port(self, port: int) -> Refusal | None:
        if not self._ports or any(low <= port <= high for low, high in self._ports):
            return None
        return Refusal("port", f"has port {port}, which is none of outbound.ports")

    def _is_own(self, address: IpAddress, port: int) -> bool:
        """The port decides in most cases; else also the operating system, since this machine may have many
        addresses."""
        if port not in self._own_ports:
            return False
        return (
            kind_of(address) in ("loopback", "unspecified")
            or (str(address), port) in self.own
            or _is_this_machine(address)
        )

    @cached_property
    def _allowed(self) -> tuple[IpNetwork, ...]:
        return read_networks(self.settings.allow, "outbound.allow")

    @cached_property
    def _denied(self) -> tuple[IpNetwork, ...]:
        return read_networks(self.settings.deny, "outbound.deny")

    @cached_property
    def _ports(self) -> tuple[tuple[int, int], ...]:
        return _ports(self.settings.ports)

    @cached_property
    def _own_ports(self) -> frozenset[int]:
        return frozenset(port for _, port in self.own)


@dataclass(frozen=True)
class OutboundRoute:
    """The route of outgoing requests, the same as for pushes: the proxy (empty for none), and the authorities of
    servers (a PEM file; empty for the public ones). With a proxy only the text of a URL is checked; the proxy has to
    check addresses."""

    proxy: str = ""
    ca_file: str = ""


DIRECT = OutboundRoute()


def place_of(url: str) -> tuple[str, int]:
    """Host and port of an http or https URL that `check_url` accepts. Raises ValueError."""
    parts = urlsplit(url)
    return (parts.hostname or "").lower().removesuffix("."), parts.port or (443 if parts.scheme == "https" else 80)


class GuardedSockets:
    """Opens the sockets of one request and stores refusals."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._refusal: Refusal | None = None
        self._opened = False

    def begin(self) -> None:
        self._refusal, self._opened = None, False

    @property
    def refusal(self) -> Refusal | None:
        """The reason why no address was allowed; None once one was."""
        return None if self._opened else self._refusal

    def open(self, family: int, kind: int, protocol: int, address: tuple[object, ...]) -> AutoCloseSocket | None:
        """An unconnected socket for one address (as in `getaddrinfo`); None if it is refused."""
        if family not in (socket.AF_INET, socket.AF_INET6):
            self._refusal = Refusal("address", "leads to neither an IPv4 nor an IPv6 address")
            return None
        host, port = address[:2]
        refusal = self._policy.check_address(str(host), int(str(port)))
        if refusal is not None:
            self._refusal = refusal
            return None
        self._opened = True
        return AutoCloseSocket(family, kind, protocol)


def families_in_turn(found: Sequence[_Found]) -> list[_Found]:
    """The addresses of a name, as from `getaddrinfo`, with IPv6 and IPv4 in turn (RFC 8305, 4)."""
    first = [each for each in found if each[0] == found[0][0]]
    others = [each for each in found if each[0] != found[0][0]]
    return [each for pair in zip_longest(first, others) for each in pair if each is not None]


def connect_share(left_s: float, addresses_left: int) -> float:
    """The connect timeout of the next address: half of the time left, so that one without an answer leaves time for
    others; all of it for the last one."""
    return left_s / 2 if addresses_left > 1 else left_s


class AutoCloseSocket(socket.socket):
    """A socket that is closed with its last reference, without a warning: pycurl uses a duplicate, and the Kafka client
    leaves those of refused attempts."""

    def __del__(self) -> None:
        if self.fileno() >= 0:  # not where the system refused it
            self.close()


def _is_this_machine(address: IpAddress) -> bool:
    """Whether this machine has the address: the system chooses it as the source address. Sends nothing."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return read_address(str(probe.getsockname()[0])) == address
    except OSError:
        return False


def _ports(text: str) -> tuple[tuple[int, int], ...]:
    ranges = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        low, dash, high = item.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise ConfigError(f"outbound.ports: {item!r} is neither a port nor a range such as 8000-8999")
        first, last = int(low), int(high or low)
        if not 1 <= first <= last <= 65_535:
            raise ConfigError(f"outbound.ports: {item!r} must lie between 1 and 65535, the smaller number first")
        ranges.append((first, last))
    return tuple(ranges)
