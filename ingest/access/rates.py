"""How fast each client may go: token buckets for requests, bytes and deliveries, for a bounded number of clients."""

from __future__ import annotations

import time
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network

from arborcast.core.recent import BoundedDict
from arborcast.core.security.ip_addresses import plain, read_address
from arborcast.ingest.access.settings import LimitSettings
from arborcast.wire.errors import TooManyRequests


def client_key(host: str) -> str:
    """The key of a client: an IPv4 address, or the /64 of an IPv6 address, since one machine has a whole /64."""
    if ":" not in host:
        return host
    found = read_address(host)
    address = host if found is None else plain(found)
    return str(IPv6Network((int(address) >> 64 << 64, 64)) if isinstance(address, IPv6Address) else address)


class PeerConnections:
    """Open connections per client of one worker; 0: no maximum. `key` maps an address, None if it is not counted."""

    def __init__(self, maximum: int, key: Callable[[str], str | None] = client_key) -> None:
        self._maximum = maximum
        self._key = key if maximum else lambda _: None
        self._open: dict[str, int] = {}

    def opened(self, host: str) -> bool:
        """Count one; whether it is one too many. It is counted in any case, until `closed`."""
        key = self._key(host)
        if key is None:
            return False
        count = self._open[key] = self._open.get(key, 0) + 1
        return count > self._maximum

    def closed(self, host: str) -> None:
        """A counted connection was closed."""
        key = self._key(host)
        if key is None:
            return
        count = self._open.get(key, 0) - 1
        if count > 0:
            self._open[key] = count
        else:
            self._open.pop(key, None)


UNLIMITED = PeerConnections(0)


class Buckets:
    """A token bucket for each of many keys, of one rate and size; the least recently used are forgotten.

    A bucket grants as long as it is not empty, and may go below zero: a request larger than the bucket is possible, and
    later ones wait for it. A forgotten bucket is full again, which bounds the memory.
    """

    def __init__(self, rate: float, size: float, keys: int) -> None:
        self._rate, self._size = rate, size
        self._filled: BoundedDict[str, tuple[float, float]] = BoundedDict(keys)  # key to level and when it had that

    def missing_s(self, key: str, now: float) -> float:
        """The time until the bucket grants again, 0 if it does now."""
        if key not in self._filled:
            return 0.0  # the usual case for failures
        level = self._level(key, now)
        # A whole token, or all of a small bucket: with less, each call could grant one more.
        least = min(1.0, self._size)
        return 0.0 if level >= least else (least - level) / self._rate

    def check(self, key: str, now: float, excess: str) -> None:
        """Raises TooManyRequests, with this message, unless the bucket grants."""
        wait_s = self.missing_s(key, now)
        if wait_s:
            raise TooManyRequests(f"{excess}: try again in {wait_s:.1f} s", wait_s)

    def take(self, key: str, amount: float, now: float) -> None:
        """Take this amount, even if the bucket gets below zero."""
        level = self._level(key, now) - amount
        if level >= self._size:
            # Returned completely: full, as an unused one.
            self._filled.pop(key, None)
            return
        self._filled[key] = (level, now)

    def _level(self, key: str, now: float) -> float:
        level, at = self._filled.get(key, (self._size, now))
        return min(self._size, level + (now - at) * self._rate)


class Rates:
    """The rates of all clients of one worker."""

    def __init__(self, limits: LimitSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._requests = Buckets(limits.requests_per_s, limits.request_burst, limits.clients)
        self._bytes = Buckets(limits.bytes_per_s, limits.byte_burst, limits.clients)
        per_minute = limits.deliveries_per_minute
        self._deliveries = Buckets(per_minute / 60, per_minute, limits.clients)

    @property
    def requests_per_minute(self) -> int:
        """The rate of one client; 0 for no limit."""
        return int(self._limits.requests_per_s * 60)

    @property
    def enabled(self) -> bool:
        limits = self._limits
        return limits.requests_per_s > 0 or limits.bytes_per_s > 0 or limits.deliveries_per_minute > 0

    def request(self, client: str) -> None:
        """A request begins. Raises TooManyRequests, and then it does not count."""
        now, limits = self._clock(), self._limits
        if limits.bytes_per_s:
            self._bytes.check(client, now, f"more than {limits.bytes_per_s} bytes per second")
        if limits.requests_per_s:
            self._requests.check(client, now, f"more than {limits.requests_per_s:g} requests per second")
            self._requests.take(client, 1, now)

    def received(self, client: str, size: int) -> None:
        """A request's body has this number of bytes; an excess delays the next one."""
        if self._limits.bytes_per_s:
            self._bytes.take(client, size, self._clock())

    def deliveries(self, client: str, count: Callable[[], int]) -> None:
        """A client's notifications cause this number of pushes. Raises TooManyRequests before they are counted."""
        if limit := self._limits.deliveries_per_minute:
            now = self._clock()
            self._deliveries.check(client, now, f"your notifications cause more than {limit} deliveries per minute")
            self._deliveries.take(client, count(), now)
