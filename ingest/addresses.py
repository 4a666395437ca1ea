"""The gateway's own addresses: paths by kind of resource, and the addresses given to clients."""

from __future__ import annotations

import random
import re
import secrets
import time
from dataclasses import dataclass
from hashlib import blake2b
from urllib.parse import urlsplit

from arborcast.core.security.ip_addresses import in_url, is_loopback, read_address
from arborcast.core.security.uris import to_uri
from arborcast.wire.endpoints import Kind

_SEQUENCE_BITS = 12

_RANDOM_BITS = 62

_VERSION = 0x7 << (_SEQUENCE_BITS + 2 + _RANDOM_BITS)

_VARIANT = 0x2 << _RANDOM_BITS


class NotificationIds:
    """UUIDs of version 7 as 32 hexadecimal digits: as text they sort in the order in which they were made here.

    The twelve bits after the time count within a millisecond; a busier millisecond borrows from the next.
    """

    def __init__(self) -> None:
        self._last = 0
        self._random = random.Random(secrets.randbits(128))  # noqa: S311  # unlike every other process's, not secret

    def next(self) -> str:
        now = (time.time_ns() // 1_000_000) << _SEQUENCE_BITS
        self._last = max(self._last + 1, now)
        milliseconds, sequence = self._last >> _SEQUENCE_BITS, self._last & ((1 << _SEQUENCE_BITS) - 1)
        value = milliseconds << 80 | _VERSION | sequence << 64 | _VARIANT | self._random.getrandbits(_RANDOM_BITS)
        return f"{value:032x}"


def derived_id(at_ms: int, of: bytes) -> str:
    """The identifier of these bytes and this time, the same in all processes; among those of NotificationIds it sorts
    by time."""
    digest = int.from_bytes(blake2b(of, digest_size=16).digest())
    sequence = digest >> 64 & ((1 << _SEQUENCE_BITS) - 1)
    value = at_ms << 80 | _VERSION | sequence << 64 | _VARIANT | digest & ((1 << _RANDOM_BITS) - 1)
    return f"{value:032x}"


def resource_id() -> str:
    """An unguessable id for a resource: a client with the id may end the resource."""
    # On a command line, a word that begins with a dash is an option.
    while (made := secrets.token_urlsafe(18)).startswith("-"):
        pass
    return made


FACTORIES = frozenset(
    {
        Kind.BROKER,
        Kind.PULL_POINT_FACTORY,
        Kind.REGISTRATION_FACTORY,
        Kind.LEGACY,
        Kind.EVENT_SERVICE,
        Kind.DEVICE_SERVICE,
    }
)

# Addresses of the standard's operations in clients of the older system.
_ALIASES = {"/WSN/Broker": Kind.BROKER, "/WSN/CreatePullPoint": Kind.PULL_POINT_FACTORY}


@dataclass(frozen=True)
class Target:
    """The addressee of a request; `id` is empty for a singleton. `old`: one of HPwsn's addresses, which accepts the
    standard's operations in the form of its clients."""

    kind: Kind
    id: str = ""
    old: bool = False


# The addressees of nearly all requests.
_PLACES = {kind.value: Target(kind, old=kind is Kind.LEGACY) for kind in FACTORIES} | {
    path: Target(kind, old=True) for path, kind in _ALIASES.items()
}

_RESOURCE = re.compile(r"/wsn/(subscriptions|pullpoints|registrations)/([^/]+)/?")

_RESOURCE_KINDS = {
    "subscriptions": Kind.SUBSCRIPTION,
    "pullpoints": Kind.PULL_POINT,
    "registrations": Kind.REGISTRATION,
}


def target_of(path: str) -> Target | None:
    """The addressee with this path, None without one."""
    place = _PLACES.get(path.rstrip("/"))
    if place is not None:
        return place
    resource = _RESOURCE.fullmatch(path)
    if resource is None:
        return None
    return Target(_RESOURCE_KINDS[resource[1]], resource[2])


class OwnAddresses:
    """The gateway's address for clients, and a check for URLs that lead back to it."""

    def __init__(self, host: str, port: int, public_url: str = "") -> None:
        self._host, self._port = host, port
        self.base = to_uri(public_url.rstrip("/")) or f"http://{in_url(host)}:{port}"
        public = urlsplit(self.base)
        self._public = (public.hostname, public.port or (443 if public.scheme == "https" else 80))

    @property
    def broker(self) -> str:
        """Where the NotificationBroker is."""
        return self.base + Kind.BROKER.value

    def resource(self, kind: Kind, identifier: str) -> str:
        """The URL of a subscription, pull point or registration."""
        return self.base + kind.value + identifier

    def id_in(self, url: str, kind: Kind) -> str:
        """The id of the resource of this kind with a URL that the gateway issued; empty for another URL. The host is
        ignored: ids are unguessable and unique."""
        try:
            path = urlsplit(url).path
        except ValueError:
            return ""
        # The public URL may have a path of its own in front, which a proxy takes off.
        target = target_of(path[max(0, path.rfind("/wsn/")) :])
        return target.id if target is not None and target.kind is kind else ""

    def is_ours(self, url: str) -> bool:
        """Whether a URL begins with our own address."""
        return url.startswith(f"{self.base}/")

    def is_own_address(self, host: str, port: int) -> bool:
        """Whether a push to this host and port would come back to this gateway. Names are compared, not resolved."""
        host = host.lower().rstrip(".")
        if (host, port) == self._public:
            return True
        if port != self._port:
            return False
        return host == self._host.lower() or (_is_local(host) and _is_local(self._host))


def _is_local(host: str) -> bool:
    """Whether a host is this machine's loopback, or the wildcard that includes it."""
    address = read_address(host)
    return is_loopback(host) or (address is not None and address.is_unspecified)
