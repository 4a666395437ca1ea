"""Checks of a consumer before it is pushed to: the addresses of its name, and its consent."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial

from arborcast.core.errors import InfrastructureError, NoAnswer, OutboundRefused
from arborcast.core.http_client import HttpAnswer, HttpClient
from arborcast.core.recent import Recent
from arborcast.core.security.ip_addresses import read_address
from arborcast.core.security.outbound import DIRECT, AddressPolicy, OutboundRoute, Refusal, place_of
from arborcast.core.single_flight import SingleFlight
from arborcast.core.threads import pool
from arborcast.ingest.cloudevents import web_hooks
from arborcast.ingest.elements.endpoints import refused
from arborcast.wire.endpoints import CHALLENGE_HEADER
from arborcast.wire.errors import ConsumerRefused

# The subscriber's name server may be arbitrarily slow.
_LONGEST_S = 2.0

# Each request of a queue names an address for its answer. The result of its check is kept for this time, in two
# generations of this size.
_NAME_S, _AGREED_S = 60.0, 3_600.0
_REMEMBERED = 1024 * 1024

Resolve = Callable[[str, int], list[str]]


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, by the system's resolver. Raises OSError."""
    return [str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class DnsCheck:
    """Resolves the host of a subscriber and checks its addresses, so that an unreachable one is refused at Subscribe.

    For an early answer only: a name can resolve to another address a second later, so the transport checks again. A
    name that does not resolve within the time limit is accepted. The resolver runs in threads.
    """

    def __init__(self, policy: AddressPolicy, resolver: Resolve = resolve, longest_s: float = _LONGEST_S) -> None:
        self._policy = policy
        self._resolve = resolver
        self._longest_s = longest_s
        self._threads = pool("lookup", _AT_ONCE)
        self._good: Recent[str, bool] = Recent(_REMEMBERED, age_s=_NAME_S)
        self._lookups: SingleFlight[str, list[str]] = SingleFlight()

    async def refusal(self, url: str) -> Refusal | None:
        """The reason why all addresses of the host are forbidden; None if one is allowed, or without an answer in
        time."""
        host, port = place_of(url)
        place = f"{host}:{port}"
        if read_address(host) is not None or len(self._lookups) >= _AT_ONCE or self._good.get(place):
            return None
        look_up = partial(asyncio.get_running_loop().run_in_executor, self._threads, self._resolve, host, port)
        try:
            addresses = await asyncio.wait_for(self._lookups.run(place, look_up), self._longest_s)
        except (OSError, UnicodeError):  # TimeoutError is one
            return None
        refusals = [self._policy.check_address(address, port) for address in addresses]
        if refusals and all(refusals):
            return refusals[0]
        self._good.put(place, True, len(place))
        return None


async def check_name(dns_check: DnsCheck | None, url: str) -> None:
    """Raises ConsumerRefused for a URL whose host has forbidden addresses only."""
    refusal = await dns_check.refusal(url) if dns_check is not None else None
    if refusal is not None:
        # Without the address: to which internal address a name resolves must not be disclosed.
        raise refused(url, Refusal(refusal.rule, f"has a host that may not be reached (rule {refusal.rule})"))


_TOTAL_S = 10

_AT_ONCE = 16

# An owner of unresponsive consumers must not block the subscriptions of others.
_OF_ONE_OWNER = 4


class OwnershipProof:
    """Requests the consent of consumers before the first push: else a stranger could direct pushes at others.

    The consumer's address gets a POST without a body, whose header Arborcast-Challenge has a random word; it agrees by
    a 200 with exactly this word as the body. A service that echoes bodies does not agree. For a consumer of CloudEvents
    the validation of web hooks is used (`ingest.cloudevents.web_hooks`).
    """

    def __init__(self, policy: AddressPolicy, route: OutboundRoute = DIRECT) -> None:
        self._client = HttpClient(policy, route, threads=_AT_ONCE, name="challenge")
        self._under_way: Counter[str] = Counter()  # by owner
        self._agreed: Recent[str, bool] = Recent(_REMEMBERED, age_s=_AGREED_S)
        self._challenges: SingleFlight[str, None] = SingleFlight()

    async def prove_once(self, url: str, owner: str = "") -> None:
        """As `prove`, without a request for a consumer that agreed within the last hour. Parallel calls share one
        request."""
        key = f"{owner}\n{url}"

        async def prove() -> None:
            await self.prove(url, owner)
            self._agreed.put(key, True, len(key))

        if not self._agreed.get(key):
            await self._challenges.run(key, prove)

    async def prove(self, url: str, owner: str = "", hook_of: str = "") -> None:
        """Returns when the consumer agrees. Raises ConsumerRefused if it does not, and InfrastructureError with too
        many requests in progress, in total or of this owner (empty without authentication). With `hook_of`, the address
        of this engine, the validation is that of web hooks."""
        if self._under_way.total() >= _AT_ONCE or (owner and self._under_way[owner] >= _OF_ONE_OWNER):
            raise InfrastructureError("too many ownership challenges are in progress", retry_after=1.0)
        word = secrets.token_urlsafe(32)
        method, headers = "POST", {CHALLENGE_HEADER: word, "Content-Type": "text/plain"}
        if hook_of:
            method, headers = "OPTIONS", web_hooks.request_headers(hook_of)
        challenge = asyncio.wrap_future(
            self._client.call(method, url, headers, b"", lambda answer: answer, total_s=_TOTAL_S, max_answer=1_024)
        )
        self._under_way[owner] += 1  # not before: `call` raises where no thread can be started
        challenge.add_done_callback(partial(self._done, owner))
        try:
            # The thread stays busy when the client hangs up.
            answer = await asyncio.shield(challenge)
        except OutboundRefused as error:
            raise ConsumerRefused(
                f"the ConsumerReference {url[:200]!r} may not be reached (rule {error.rule})", error.rule
            ) from error
        except NoAnswer as error:
            raise ConsumerRefused(
                f"the consumer at {url[:200]!r} did not answer the ownership challenge",
                "ownership",
            ) from error
        if hook_of:
            agrees = web_hooks.agrees(answer, hook_of)
            wanted = f"agree as a web hook: OPTIONS with the header {web_hooks.ORIGIN}"
            place = ", or *, in WebHook-Allowed-Origin"
        else:
            agrees = answer.status == 200 and hmac.compare_digest(answer.body.strip(), word.encode())
            wanted = f"confirm the ownership challenge: a POST with the header {CHALLENGE_HEADER}"
            place = " as the whole body"
        if not agrees:
            raise ConsumerRefused(
                f"the consumer at {url[:200]!r} did not {wanted} must be answered with 200 and that header's "
                f"value{place}; it answered {answer.status}",
                "ownership",
            )

    def _done(self, owner: str, challenge: asyncio.Future[HttpAnswer]) -> None:
        self._under_way -= Counter((owner,))  # one with none left is removed
        if not challenge.cancelled():
            challenge.exception()  # or asyncio logs an exception that was never retrieved
