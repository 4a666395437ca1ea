"""Connections to allowed addresses only, with bounded heads of answers. urllib3 resolves a name and connects in one
step; here the connection goes to exactly the checked address."""

from __future__ import annotations

import http.client
import socket
import time
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NameResolutionError, NewConnectionError

from arborcast.core.security.outbound import AddressPolicy, GuardedSockets, Refusal, connect_share, families_in_turn

# As in libcurl: all header lines together, including interim answers.
_MAX_HEAD = 300 * 1024


class AddressRefused(NewConnectionError):
    """Every address of the host is forbidden."""

    def __init__(self, connection: HTTPConnection, refusal: Refusal) -> None:
        super().__init__(connection, str(refusal))
        self.refusal = refusal


class BoundedHead(http.client.HTTPResponse):
    """An answer with a bounded head; http.client allows 100 lines of 64 KiB."""

    def begin(self) -> None:
        stream = self.fp
        self.fp = _Lines(stream)  # type: ignore[assignment]  # has the methods that reading a head uses
        try:
            super().begin()
        finally:
            if self.fp is not None:  # None: `begin` has closed the connection
                self.fp = stream


class _Lines:
    """Reads lines up to a number of bytes."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._left = _MAX_HEAD

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._source.readline(limit)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.HTTPException(f"the head of the answer is larger than {_MAX_HEAD} bytes")
        if not line.endswith(b"\n") and len(line) != limit:
            # http.client takes the lines so far for the whole head.
            raise http.client.RemoteDisconnected("the connection was closed before the end of the head")
        return line

    def close(self) -> None:
        self._source.close()


class CheckedConnection(HTTPConnection):
    """A connection that checks each address with `policy`; None (for a proxy) checks none."""

    policy: AddressPolicy | None = None
    response_class = BoundedHead

    def _new_conn(self) -> socket.socket:
        if self.policy is None:
            return super()._new_conn()
        host = self._dns_host.strip("[]")
        try:
            found = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            failure = error if isinstance(error, socket.gaierror) else socket.gaierror(str(error))
            raise NameResolutionError(self.host, self, failure) from error
        sockets = GuardedSockets(self.policy)
        problem: OSError | None = None
        # One timeout for all addresses: a name may have hundreds that do not answer.
        timeout = self.timeout if isinstance(self.timeout, (int, float)) else None
        until = None if timeout is None else time.monotonic() + timeout
        for number, (family, kind, protocol, _, address) in enumerate(families_in_turn(found)):
            opened = None
            try:
                # Fails, too: a kernel without IPv6 has no sockets for the IPv6 addresses of a name.
                opened = sockets.open(family, kind, protocol, address)
                if opened is not None:
                    self._connect(opened, address, until, len(found) - number)
                    return opened
            except OSError as error:
                problem = error
                if opened is not None:
                    opened.close()
        if sockets.refusal is not None:
            raise AddressRefused(self, sockets.refusal)
        if isinstance(problem, TimeoutError):
            raise ConnectTimeoutError(self, f"no connection to {self.host} in time") from problem
        raise NewConnectionError(self, f"no connection to {self.host}: {problem or 'it has no address'}") from problem

    def _connect(self, opened: socket.socket, address: Any, until: float | None, addresses_left: int) -> None:
        for option in self.socket_options or ():
            opened.setsockopt(*option)
        if until is not None:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            opened.settimeout(connect_share(left, addresses_left))
        opened.connect(address)
        # The pool sets a timeout for each read.
        opened.settimeout(self.timeout if isinstance(self.timeout, (int, float)) else None)


class CheckedTlsConnection(CheckedConnection, HTTPSConnection):
    """A CheckedConnection with TLS."""


class CheckedAdapter(HTTPAdapter):
    """An adapter of requests with checked connections of the classes `plain` and `tls`. Connections to a proxy are not
    checked; the proxy must check addresses."""

    def __init__(
        self,
        policy: AddressPolicy | None,
        connections: int,
        size: int,
        *,
        block: bool = False,
        plain: type[CheckedConnection] = CheckedConnection,
        tls: type[CheckedTlsConnection] = CheckedTlsConnection,
    ) -> None:
        self._policy = policy
        self._plain, self._tls = plain, tls
        super().__init__(pool_connections=connections, pool_maxsize=size, pool_block=block)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = self._pools(self._policy)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        # The operator chose the proxy.
        manager.pool_classes_by_scheme = self._pools(None)
        return manager

    def _pools(self, policy: AddressPolicy | None) -> dict[str, type[HTTPConnectionPool]]:
        # urllib3 accepts classes only.
        plain = type("_Plain", (self._plain,), {"policy": policy})
        tls = type("_Tls", (self._tls,), {"policy": policy})
        return {
            "http": type("_Pool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
            "https": type("_TlsPool", (HTTPSConnectionPool,), {"ConnectionCls": tls}),
        }


def body_of(answer: requests.Response, limit: int) -> bytes:
    """The body, up to `limit` bytes. Raises urllib3's HTTPError for an incomplete body, which a single read would not
    detect."""
    body = b""
    while len(body) < limit and (more := answer.raw.read(limit - len(body), decode_content=False)):
        body += more
    return body


def refusal_in(error: Exception) -> Refusal | None:
    """The refusal of every address by the policy; None for other errors."""
    cause = error.args[0] if error.args else None
    reason = cause.reason if isinstance(cause, MaxRetryError) else cause
    return reason.refusal if isinstance(reason, AddressRefused) else None
