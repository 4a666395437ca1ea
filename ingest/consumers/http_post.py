"""The one way in which the gateway itself calls somebody: a POST with bounds on everything, to where the policy allows.

For threads; the addresses came from strangers, and so do the answers.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import Any

import certifi
import pycurl

from core.security.outbound import AddressPolicy, GuardedSockets
from ingest.errors import NoAnswer, NotCalled

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
        curl.setopt(pycurl.URL, url)
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
