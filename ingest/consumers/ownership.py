"""Asking a consumer whether it wants to be one, before it is pushed to: else a stranger could aim us at others.

The consumer's address gets a POST without a body, whose header Arborcast-Challenge holds a word that cannot be guessed;
it agrees by a 200 whose body is that word and nothing else. A service that merely repeats what it is sent does not.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from core.errors import InfrastructureError
from core.security.ip_addresses import read_address
from core.security.outbound import AddressPolicy, Refusal, place_of
from ingest.consumers import http_post
from ingest.consumers.http_post import DIRECT, OutboundRoute
from ingest.elements.endpoints import refused
from ingest.errors import ConsumerRefused, NoAnswer, NotCalled

# The subscriber's name server may be arbitrarily slow.
_LONGEST_S = 2.0

Resolve = Callable[[str, int], list[str]]


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, by the system's resolver. Raises OSError."""
    return [str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class DnsCheck:
    """Resolves the host of a subscriber and checks its addresses, so that an unreachable one is refused at Subscribe.

    Only for an early answer: a name can resolve to another address a second later, so the transport checks again.
    Hence it is bounded: what cannot be resolved now is accepted. The resolver runs in threads.
    """

    def __init__(self, policy: AddressPolicy, resolver: Resolve = resolve, longest_s: float = _LONGEST_S) -> None:
        self._policy = policy
        self._resolve = resolver
        self._longest_s = longest_s
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="lookup")
        self._under_way = 0

    async def refusal(self, url: str) -> Refusal | None:
        """Why none of the host's addresses may be reached; None when one may, or without an answer in time."""
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
            lookup.exception()  # or asyncio logs an exception that was never retrieved


async def check_name(dns_check: DnsCheck | None, url: str) -> None:
    """Raises ConsumerRefused for a URL whose host leads nowhere that may be reached."""
    refusal = await dns_check.refusal(url) if dns_check is not None else None
    if refusal is not None:
        # Without the address: to which internal address a name resolves must not be disclosed.
        raise refused(url, Refusal(refusal.rule, f"has a host that may not be reached (rule {refusal.rule})"))


HEADER = "Arborcast-Challenge"

_TOTAL_S = 10

_AT_ONCE = 16

# One who names consumers that do not answer must not keep all others from subscribing.
_OF_ONE_OWNER = 4

_WORD = re.compile(r"[A-Za-z0-9_-]{20,100}")


class OwnershipProof:
    """Asks consumers. On the event loop's thread, but for the requests."""

    def __init__(self, policy: AddressPolicy, route: OutboundRoute = DIRECT) -> None:
        self._policy = policy
        self._route = route
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="challenge")
        self._under_way = 0
        self._of: Counter[str] = Counter()

    async def ask(self, url: str, owner: str = "") -> None:
        """Returns when the consumer agrees. Raises ConsumerRefused when it does not, InfrastructureError when too many
        are being asked, in all or of this owner (empty without authentication)."""
        if self._under_way >= _AT_ONCE or (owner and self._of[owner] >= _OF_ONE_OWNER):
            raise InfrastructureError("too many consumers are being asked whether they agree", retry_after=1.0)
        self._under_way += 1
        self._of[owner] += 1
        word = secrets.token_urlsafe(32)
        asked = asyncio.get_running_loop().run_in_executor(self._threads, partial(self._post, url, word))
        asked.add_done_callback(partial(self._done, owner))
        # A client that hangs up does not free the thread that asks for it.
        status, answer = await asyncio.shield(asked)
        if status != 200 or not hmac.compare_digest(answer.strip(), word.encode()):
            raise ConsumerRefused(
                f"the consumer at {url[:200]!r} did not agree to be one: a POST with the header {HEADER} must be "
                f"answered with 200 and that header's value as the whole body; it answered {status}",
                "ownership",
            )

    def _post(self, url: str, word: str) -> tuple[int, bytes]:
        headers = [f"{HEADER}: {word}", "Content-Type: text/plain"]
        try:
            return http_post.post(url, headers, b"", self._policy, self._route, total_s=_TOTAL_S, max_answer=1_024)
        except NotCalled as error:
            raise ConsumerRefused(
                f"the ConsumerReference {url[:200]!r} may not be reached (rule {error.rule})", error.rule
            ) from error
        except NoAnswer as error:
            raise ConsumerRefused(
                f"the consumer at {url[:200]!r} gave no answer when it was asked whether it agrees to be one",
                "ownership",
            ) from error

    def _done(self, owner: str, asked: asyncio.Future[tuple[int, bytes]]) -> None:
        self._under_way -= 1
        self._of[owner] -= 1
        if not self._of[owner]:
            del self._of[owner]
        if not asked.cancelled():
            asked.exception()  # or asyncio logs an exception that was never retrieved


def agreement(challenge: str) -> bytes | None:
    """What a consumer answers to the value of the header, None when that is no challenge of ours."""
    return challenge.encode() if _WORD.fullmatch(challenge) else None
