"""The transport of requests: an interface with one method, and the default implementations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, InvalidURL
from typing import Protocol
from urllib.parse import urlsplit

from arborcast.client.values import BrokerUnreachable, ClientError
from arborcast.core.reasons import reason_of
from arborcast.core.security.outbound import AddressPolicy

# For connecting, and for the answer, which waits for the broker's storage; that has a timeout of ten seconds.
TIMEOUT_S = (5.0, 30.0)

# Maximum number of connections; further threads wait.
CONNECTIONS = 16

_NO_BROKER = "is not the address of a broker, such as http://host:port"

# Connection pools: for the broker, and for other hosts of its subscriptions and pull points.
_HOSTS = 8


@dataclass(frozen=True)
class HttpAnswer:
    """The answer to a POST, of any status."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def header(self, name: str) -> str:
        """A header by its case-insensitive name; empty without one."""
        lower = name.lower()
        return next((value for each, value in self.headers.items() if each.lower() == lower), "")


def retry_after_s(header: str) -> float | None:
    """Seconds in a Retry-After header; None without one (or with a date, which brokers do not send here)."""
    return float(header) if header.isascii() and header.isdigit() else None


class Transport(Protocol):
    """Sends requests to brokers. A client can have another one, for instance with another library, through a gateway,
    or without a network in tests."""

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """POST once, without redirects, and read the complete answer. Several threads may call this concurrently.

        Raises BrokerUnreachable without an answer (`sent=False` if certainly nothing arrived); the client repeats it if
        that is safe. Raises another ClientError if a repetition cannot succeed.
        """


class PlainTransport:
    """Sends requests to http:// addresses, with one connection for each. It loads no library: for programs that send
    one request."""

    def __init__(self, timeout_s: tuple[float, float] = TIMEOUT_S) -> None:
        self._connect_s, self._answer_s = timeout_s

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """See `Transport`."""
        try:
            parts = urlsplit(url)
            connection = HTTPConnection(parts.hostname or "", parts.port, timeout=self._connect_s)
        except (ValueError, InvalidURL) as error:
            raise ClientError(f"{url} {_NO_BROKER}") from error
        sent, timeout = False, f"no connection within {self._connect_s:g} s"
        try:
            connection.connect()
            connection.sock.settimeout(self._answer_s)
            sent, timeout = True, f"it accepted the request and did not answer for {self._answer_s:g} s"
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", path, body, dict(headers))
            answer = connection.getresponse()
            return HttpAnswer(answer.status, dict(answer.getheaders()), answer.read())
        except (OSError, HTTPException) as error:
            reason = timeout if isinstance(error, TimeoutError) else reason_of(error)
            raise BrokerUnreachable(f"no answer from {url}: {reason}", reason, sent=sent) from error
        except ValueError as error:
            raise ClientError(f"the request to {url} cannot be sent: {reason_of(error)}") from error
        finally:
            connection.close()


class RequestsTransport:
    """The default: requests, over at most `connections` persistent connections.

    requests prepares every request from scratch: netrc, proxies from the environment, cookies, hooks. A broker needs
    none of these, so `post` passes a minimal PreparedRequest to the adapter, which doubles the throughput.
    """

    def __init__(
        self,
        timeout_s: tuple[float, float] = TIMEOUT_S,
        connections: int = CONNECTIONS,
        policy: AddressPolicy | None = None,
    ) -> None:
        """`policy` restricts the addresses of connections, for untrusted URLs."""
        import requests
        from requests.adapters import HTTPAdapter

        from arborcast.core.security.checked_connections import CheckedAdapter

        self._timeout_s = timeout_s
        self._session = requests.Session()
        adapter = HTTPAdapter(pool_connections=_HOSTS, pool_maxsize=connections, pool_block=True)
        if policy is not None:
            adapter = CheckedAdapter(policy, _HOSTS, connections, block=True)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """See `Transport`."""
        import requests
        from requests.structures import CaseInsensitiveDict

        from arborcast.core.security.checked_connections import refusal_in

        prepared = requests.PreparedRequest()
        prepared.method, prepared.url, prepared.body = "POST", url, body
        prepared.headers = CaseInsensitiveDict({"Content-Length": str(len(body)), **headers})
        try:
            with self._session.get_adapter(url).send(prepared, timeout=self._timeout_s) as answer:
                # The content is read completely, so that the connection can be reused.
                return HttpAnswer(answer.status_code, answer.headers, answer.content)
        except (requests.Timeout, requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            if (refusal := refusal_in(error)) is not None:
                raise ClientError(f"{url} is not called: it {refusal.reason}") from error
            connect_s, answer_s = self._timeout_s
            if late := isinstance(error, requests.exceptions.ConnectTimeout):
                reason = f"no connection within {connect_s:g} s"
            elif isinstance(error, requests.Timeout):
                reason = f"it accepted the request and did not answer for {answer_s:g} s"
            else:
                reason = reason_of(error)
            # Without a connection certainly nothing has reached the broker.
            sent = not (late or "NewConnectionError" in repr(error))
            raise BrokerUnreachable(f"no answer from {url}: {reason}", reason, sent=sent) from error
        except (requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL) as error:
            raise ClientError(f"{url} {_NO_BROKER}") from error
        except (requests.RequestException, ValueError) as error:
            # For instance an unreadable certificate, for which a repetition cannot succeed.
            raise ClientError(f"the request to {url} cannot be sent: {reason_of(error)}") from error

    def close(self) -> None:
        """Close the connections."""
        self._session.close()
