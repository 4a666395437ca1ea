"""HTTP calls of an engine, except pushes: requests-futures with limits on addresses, time and bytes.

Addresses and answers are untrusted. A call never follows a redirect, takes no proxy, certificate or password from the
environment, and opens its own connection.
"""

from __future__ import annotations

import io
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import requests
import urllib3
from requests.structures import CaseInsensitiveDict
from requests_futures.sessions import FuturesSession

from arborcast.core.errors import NoAnswer, OutboundRefused
from arborcast.core.reasons import reason_of
from arborcast.core.security.checked_connections import (
    BoundedHead,
    CheckedAdapter,
    CheckedConnection,
    CheckedTlsConnection,
    body_of,
    refusal_in,
)
from arborcast.core.security.outbound import DIRECT, AddressPolicy, OutboundRoute
from arborcast.core.security.uris import to_uri
from arborcast.core.threads import pool

T = TypeVar("T")

_CONNECT_S = 5.0


class HttpAnswer(NamedTuple):
    """An answer of any status. Names of headers are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Makes calls in at most `threads` threads; more calls wait for a free one.

    `policy` None is for servers that the operator configured: any address is allowed, and the system's certificate
    authorities are accepted too. With a proxy only the text of a URL is checked; the proxy must check the address.
    """

    def __init__(
        self, policy: AddressPolicy | None, route: OutboundRoute = DIRECT, *, threads: int, name: str = "http-client"
    ) -> None:
        self._session = FuturesSession(executor=pool(name, threads), session=_Session(policy, route, threads))

    def call(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        read: Callable[[HttpAnswer], T],
        *,
        total_s: float,
        max_answer: int,
    ) -> Future[T]:
        """A future of the value that `read` returns for the answer; `read` runs in the thread of the call. The future
        raises OutboundRefused for an address that the policy refuses, NoAnswer without a complete answer of at most
        `max_answer` bytes within `total_s` seconds of the start of the call, and the exceptions of `read`."""
        future: Future[T] = self._session.request(
            method, url, headers=headers, body=body, read=read, total_s=total_s, max_answer=max_answer
        )
        return future

    def close(self) -> None:
        """Drop the calls that wait for a thread. Running calls end within their time limits."""
        self._session.executor.shutdown(wait=False, cancel_futures=True)


class _Session:
    """The part of a requests.Session that requests-futures calls, with the limits of HttpClient."""

    def __init__(self, policy: AddressPolicy | None, route: OutboundRoute, threads: int) -> None:
        self._policy = policy
        self._verify: str | bool = route.ca_file or True
        self._proxies = dict.fromkeys(("http", "https"), route.proxy) if route.proxy else {}
        self._adapter = CheckedAdapter(policy, threads, threads, plain=_TimedConnection, tls=_TimedTlsConnection)
        if policy is None:
            self._adapter.poolmanager.connection_pool_kw["ssl_context"] = ssl.create_default_context()

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes,
        read: Callable[[HttpAnswer], T],
        total_s: float,
        max_answer: int,
    ) -> T:
        """One call; see `HttpClient.call`."""
        refusal = None if self._policy is None else self._policy.check_url(url)
        if refusal is None:
            prepared = requests.PreparedRequest()
            prepared.method = method
            prepared.headers = CaseInsensitiveDict({"Content-Length": str(len(body)), "Connection": "close", **headers})
            prepared.body = body
            _current.until = time.monotonic() + total_s
            try:
                prepared.prepare_url(to_uri(url), None)
                answer = self._exchange(prepared, total_s, max_answer)
            except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                refusal = refusal_in(error)
                if refusal is None:
                    raise NoAnswer(f"no answer from {url}: {reason_of(error)}") from error
            else:
                return read(answer)
        raise OutboundRefused(f"{url} is not called: it {refusal}", refusal.rule)

    def _exchange(self, prepared: requests.PreparedRequest, total_s: float, max_answer: int) -> HttpAnswer:
        limits = (min(_CONNECT_S, total_s), total_s)
        answer = self._adapter.send(prepared, stream=True, timeout=limits, verify=self._verify, proxies=self._proxies)
        try:
            body = body_of(answer, max_answer + 1)
        finally:
            answer.close()
        if len(body) > max_answer:
            raise ValueError(f"the answer is larger than {max_answer} bytes")
        return HttpAnswer(answer.status_code, answer.headers, body)


class _Current(threading.local):
    """The deadline of this thread's current call, on the monotonic clock."""

    until = 0.0

    def left_s(self) -> float:
        """Raises TimeoutError when no time is left."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left


_current = _Current()


class _TimedReader(io.RawIOBase):
    """Reads from a socket until the call's deadline; requests limits only the time of each read."""

    def __init__(self, source: io.RawIOBase, sock: Any) -> None:
        self._source = source
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_current.left_s())
        return self._source.readinto(buffer)

    def close(self) -> None:
        self._source.close()
        super().close()


class _TimedAnswer(BoundedHead):
    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_TimedReader(self.fp.detach(), sock))

    def begin(self) -> None:
        super().begin()
        # A server may ignore "Connection: close".
        self.will_close = True


class _TimedConnection(CheckedConnection):
    response_class = _TimedAnswer


class _TimedTlsConnection(_TimedConnection, CheckedTlsConnection):
    pass
