"""Looking up the hosts of subscribers when they subscribe, so that one who could never be reached is told at once.

A courtesy, not the guard: names can lead elsewhere a second later, so whoever connects checks again. Hence it is
bounded and gives way: what cannot be looked up now is accepted.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ingest.endpoints import refused
from topic_model.addresses import read_address
from topic_model.outbound import AddressPolicy, Refusal, place_of

# A name server of the subscriber's may be as slow as it likes.
_LONGEST_S = 2.0
_AT_ONCE = 16

Resolve = Callable[[str, int], list[str]]


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, by the system's resolver. Raises OSError."""
    return [str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Lookups:
    """Asks the resolver and then the policy. On the event loop's thread, but for the resolver."""

    def __init__(self, policy: AddressPolicy, resolver: Resolve = resolve, longest_s: float = _LONGEST_S) -> None:
        self._policy = policy
        self._resolve = resolver
        self._longest_s = longest_s
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="lookup")
        self._under_way = 0

    async def refusal(self, url: str) -> Refusal | None:
        """Why none of the host's addresses may be reached; None when one may, or when nobody knows (in time)."""
        host, port = place_of(url)
        if read_address(host) is not None or self._under_way >= _AT_ONCE:
            return None
        self._under_way += 1
        lookup = asyncio.get_running_loop().run_in_executor(self._threads, partial(self._resolve, host, port))
        lookup.add_done_callback(self._done)
        try:
            addresses = await asyncio.wait_for(asyncio.shield(lookup), self._longest_s)
        except (OSError, UnicodeError):  # TimeoutError is one
            return None
        refusals = [self._policy.check_address(address, port) for address in addresses]
        return refusals[0] if refusals and all(refusals) else None

    def _done(self, lookup: asyncio.Future[list[str]]) -> None:
        self._under_way -= 1
        if not lookup.cancelled():
            lookup.exception()  # or asyncio reports the one that nobody waited for


async def check_name(lookups: Lookups | None, url: str) -> None:
    """Raises ConsumerRefused for a URL whose host leads nowhere that may be reached."""
    refusal = await lookups.refusal(url) if lookups is not None else None
    if refusal is not None:
        # Not the address itself: what a name leads to inside is nobody's business outside.
        raise refused(url, Refusal(refusal.rule, f"has a host that may not be reached (rule {refusal.rule})"))
