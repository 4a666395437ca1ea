"""How the gateway itself calls somebody, and what it asks of consumers before they are pushed to.

`post` is the one way out: a POST with bounds on everything, to where the policy allows. It is for threads; the
addresses came from strangers, and so do the answers.
"""

from __future__ import annotations

import asyncio
import hmac
import io
import os
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import certifi
import pycurl

from arborcast.core.errors import InfrastructureError
from arborcast.core.recent import Recent
from arborcast.core.security.ip_addresses import read_address
from arborcast.core.security.outbound import AddressPolicy, GuardedSockets, Refusal, place_of
from arborcast.core.security.uris import to_uri
from arborcast.ingest.elements.endpoints import refused
from arborcast.wire.endpoints import CHALLENGE_HEADER
from arborcast.wire.errors import ConsumerRefused, NoAnswer, NotCalled

_CONNECT_S = 5


@dataclass(frozen=True)
class OutboundRoute:
    """How requests leave, the same as pushes: through which proxy (empty for none), and who certifies servers (a PEM
    file; empty for the public authorities).

    Through a proxy the address is not known here: then only the text of a URL is checked, and the proxy has to check
    the rest.
    """

    proxy: str = ""
    ca_file: str = ""


DIRECT = OutboundRoute()


def post(
    url: str,
    headers: list[str],
    body: bytes,
    policy: AddressPolicy,
    route: OutboundRoute = DIRECT,
    *,
    total_s: int,
    max_answer: int,
) -> tuple[int, bytes]:
    """Status and body of the answer. Raises NotCalled for an address that may not be reached, else NoAnswer."""
    refusal = policy.check_url(url)
    if refusal is not None:
        raise NotCalled(f"{url} is not called: it {refusal}", refusal.rule)
    received = io.BytesIO()
    sockets = GuardedSockets(policy)

    def open_socket(purpose: int, address: Any) -> Any:
        opened = sockets.open(address.family, address.socktype, address.protocol, address.addr)
        return pycurl.SOCKET_BAD if opened is None else opened

    def take(data: bytes) -> int | None:
        # Fewer bytes than given stop the transfer.
        return received.write(data) if received.tell() + len(data) <= max_answer else 0

    curl = pycurl.Curl()
    try:
        curl.setopt(pycurl.URL, to_uri(url))
        curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        curl.setopt(pycurl.POSTFIELDS, body)
        # Without a wait for "100 Continue", which few answer.
        curl.setopt(pycurl.HTTPHEADER, [*headers, "Expect:"])
        curl.setopt(pycurl.WRITEFUNCTION, take)
        curl.setopt(pycurl.CONNECTTIMEOUT, _CONNECT_S)
        curl.setopt(pycurl.TIMEOUT, total_s)
        curl.setopt(pycurl.NOSIGNAL, 1)
        curl.setopt(pycurl.SSLVERSION, pycurl.SSLVERSION_TLSv1_2)  # or newer
        # As bytes: pycurl takes text in ASCII only, and the package may be installed anywhere.
        curl.setopt(pycurl.CAINFO, os.fsencode(route.ca_file or certifi.where()))
        # Neither proxies nor credentials from the surroundings.
        curl.setopt(pycurl.PROXY, route.proxy)
        curl.setopt(pycurl.NOPROXY, "")
        curl.setopt(pycurl.NETRC, pycurl.NETRC_IGNORED)
        curl.setopt(pycurl.SOCKOPTFUNCTION, _keep_from_children)
        if not route.proxy:
            curl.setopt(pycurl.OPENSOCKETFUNCTION, open_socket)
        curl.perform()
        return curl.getinfo(pycurl.RESPONSE_CODE), received.getvalue()
    except (pycurl.error, UnicodeError) as error:
        if sockets.refusal is not None:
            raise NotCalled(f"{url} is not called: it {sockets.refusal}", sockets.refusal.rule) from error
        raise NoAnswer(f"no answer from {url}: {error}") from error
    finally:
        curl.close()


def _keep_from_children(descriptor: int, purpose: int) -> int:
    # pycurl works on a duplicate of the socket that it is given, and the duplicate would be inherited.
    os.set_inheritable(descriptor, False)
    return int(pycurl.SOCKOPT_OK)


# The subscriber's name server may be arbitrarily slow.
_LONGEST_S = 2.0

# Each request of a queue names where its answer goes. What was found of a place is kept so long, in so many bytes,
# twice.
_NAME_S, _AGREED_S = 60.0, 3_600.0
_REMEMBERED = 1024 * 1024

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
        self._good: Recent[str, bool] = Recent(_REMEMBERED, age_s=_NAME_S)
        self._under_way = 0

    async def refusal(self, url: str) -> Refusal | None:
        """Why none of the host's addresses may be reached; None when one may, or without an answer in time."""
        host, port = place_of(url)
        place = f"{host}:{port}"
        if read_address(host) is not None or self._under_way >= _AT_ONCE or self._good.get(place):
            return None
        self._under_way += 1
        lookup = asyncio.get_running_loop().run_in_executor(self._threads, partial(self._resolve, host, port))
        lookup.add_done_callback(self._done)
        try:
            addresses = await asyncio.wait_for(asyncio.shield(lookup), self._longest_s)
        except (OSError, UnicodeError):  # TimeoutError is one
            return None
        refusals = [self._policy.check_address(address, port) for address in addresses]
        if refusals and all(refusals):
            return refusals[0]
        self._good.put(place, True, len(place))
        return None

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


_TOTAL_S = 10

_AT_ONCE = 16

# One who names consumers that do not answer must not keep all others from subscribing.
_OF_ONE_OWNER = 4


class OwnershipProof:
    """Asks consumers whether they agree, before they are pushed to: else a stranger could aim us at others.

    The consumer's address gets a POST without a body, whose header Arborcast-Challenge holds a word that cannot be
    guessed; it agrees by a 200 whose body is that word and nothing else. A service that merely repeats what it is sent
    does not. The requests run in threads.
    """

    def __init__(self, policy: AddressPolicy, route: OutboundRoute = DIRECT) -> None:
        self._policy = policy
        self._route = route
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="challenge")
        self._under_way = 0
        self._of: Counter[str] = Counter()
        self._agreed: Recent[str, bool] = Recent(_REMEMBERED, age_s=_AGREED_S)
        self._asking: dict[str, asyncio.Future[None]] = {}

    async def ask_once(self, url: str, owner: str = "") -> None:
        """As `ask`; a consumer that agreed within the last hour is not asked again, nor at the same time twice."""
        key = f"{owner}\n{url}"
        if self._agreed.get(key):
            return
        if key not in self._asking:
            asked = self._asking[key] = asyncio.ensure_future(self.ask(url, owner))
            asked.add_done_callback(partial(self._answered, key))
        await asyncio.shield(self._asking[key])

    def _answered(self, key: str, asked: asyncio.Future[None]) -> None:
        del self._asking[key]
        if not asked.cancelled() and asked.exception() is None:
            self._agreed.put(key, True, len(key))

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
                f"the consumer at {url[:200]!r} did not agree to be one: a POST with the header {CHALLENGE_HEADER} "
                f"must be answered with 200 and that header's value as the whole body; it answered {status}",
                "ownership",
            )

    def _post(self, url: str, word: str) -> tuple[int, bytes]:
        headers = [f"{CHALLENGE_HEADER}: {word}", "Content-Type: text/plain"]
        try:
            return post(url, headers, b"", self._policy, self._route, total_s=_TOTAL_S, max_answer=1_024)
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
