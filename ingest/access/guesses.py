"""Wrong credentials: how many one address may send, for one name and in all.

By the name too, because behind an address there may be many people: who gets one name wrong again and again must not
keep all others out. And in all, because one password may be tried with many names.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ingest.access.errors import TooManyRequests
from ingest.access.rates import Buckets

_ADDRESSES = 10_000
_NAMES = 100_000

# Longer names are nobody's, and are not kept.
_MOST_OF_A_NAME = 200


class Guesses:
    """Counts for each address, and for each name from each address. An address has at least what one name has."""

    def __init__(self, per_minute: int, of_address: int, clock: Callable[[], float] = time.monotonic) -> None:
        of_address = max(per_minute, of_address)
        self._names = Buckets(per_minute / 60, per_minute, _NAMES)
        self._addresses = Buckets(of_address / 60, of_address, _ADDRESSES)
        self._per_minute, self._of_address = per_minute, of_address
        self._clock = clock

    def may_begin(self, address: str, name: str = "") -> None:
        """Raises TooManyRequests when there were too many. Tokens have no name that could be trusted: empty."""
        now = self._clock()
        wait_s = self._names.missing_s(_pair(address, name), now)
        if wait_s:
            raise TooManyRequests(
                f"more than {self._per_minute} wrong credentials for one name in a minute: come again later", wait_s
            )
        wait_s = self._addresses.missing_s(address, now)
        if wait_s:
            raise TooManyRequests(
                f"more than {self._of_address} wrong credentials from one address in a minute: come again later", wait_s
            )

    def wrong(self, address: str, name: str = "") -> None:
        """Count one."""
        self._count(address, name, 1)

    def not_wrong(self, address: str, name: str) -> None:
        """Take one back that was counted before it was known."""
        self._count(address, name, -1)

    def _count(self, address: str, name: str, number: int) -> None:
        now = self._clock()
        self._names.take(_pair(address, name), number, now)
        self._addresses.take(address, number, now)


def _pair(address: str, name: str) -> str:
    # No address has a blank.
    return f"{address} {name[:_MOST_OF_A_NAME]}"
