"""How requests travel: one method, which may be replaced, and what there is by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, InvalidURL
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from arborcast.client.values import BrokerUnreachable, ClientError
from arborcast.core.reasons import reason_of
from arborcast.core.security.outbound import AddressPolicy

if TYPE_CHECKING:
    import requests

# Connecting and answering. The answer waits for the broker's storage, which gives up by itself after ten seconds.
TIMEOUT_S = (5.0, 30.0)

# A thread beyond that waits for one.
CONNECTIONS = 16

_NO_BROKER = "is not the address of a broker; it looks like http://host:port"

# The broker, and wherever its subscriptions and pull points say that they are.
_HOSTS = 8


@dataclass(frozen=True)
class HttpAnswer:
    """What a POST was answered with, whatever its status."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def header(self, name: str) -> str:
        """A header by its name in any case, empty without one."""
        wanted = name.lower()
        return next((value for each, value in self.headers.items() if each.lower() == wanted), "")


class Transport(Protocol):
    """Takes requests to brokers: give one to a client that shall reach them by another library, through a gateway of
    one's own, or not at all, in tests."""

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """POST once, following no redirect, and read the whole answer; several threads may call this at a time.

        Raises BrokerUnreachable when no answer came (`sent=False` if it is certain that nothing arrived): the client
        repeats it where that does no harm. Raises another ClientError where no repetition will help.
        """


class PlainTransport:
    """Takes requests to brokers at http:// addresses, over a connection for each. It loads no library: for programs
    that make one request."""

    def __init__(self, timeout_s: tuple[float, float] = TIMEOUT_S) -> None:
        self._connect_s, self._answer_s = timeout_s

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """As `Transport` has it."""
        try:
            parts = urlsplit(url)
            connection = HTTPConnection(parts.hostname or "", parts.port, timeout=self._connect_s)
        except (ValueError, InvalidURL) as error:
            raise ClientError(f"{url} {_NO_BROKER}") from error
        sent, patience = False, f"no connection within {self._connect_s:g} s"
        try:
            connection.connect()
            connection.sock.settimeout(self._answer_s)
            sent, patience = True, f"it accepted the request and did not answer for {self._answer_s:g} s"
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", path, body, dict(headers))
            answer = connection.getresponse()
            return HttpAnswer(answer.status, dict(answer.getheaders()), answer.read())
        except (OSError, HTTPException) as error:
            reason = patience if isinstance(error, TimeoutError) else reason_of(error)
            raise BrokerUnreachable(f"no answer from {url}: {reason}", reason, sent=sent) from error
        except ValueError as error:
            raise ClientError(f"{url} cannot be asked: {reason_of(error)}") from error
        finally:
            connection.close()


class RequestsTransport:
    """The default: requests, over at most `connections` persistent connections.

    requests prepares every request from scratch: netrc, proxies from the environment, cookies, hooks. A broker needs
    none of it, so `post` hands a minimal PreparedRequest to the adapter, which doubles the throughput.
    """

    def __init__(
        self,
        timeout_s: tuple[float, float] = TIMEOUT_S,
        connections: int = CONNECTIONS,
        policy: AddressPolicy | None = None,
    ) -> None:
        """With a `policy` it connects to no address that this refuses, for where the URLs come from others."""
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
        """As `Transport` has it."""
        import requests
        from requests.structures import CaseInsensitiveDict

        from arborcast.core.security.checked_connections import refusal_in

        prepared = requests.PreparedRequest()
        prepared.method, prepared.url, prepared.body = "POST", url, body
        prepared.headers = CaseInsensitiveDict({"Content-Length": str(len(body)), **headers})
        try:
            answer = self._session.get_adapter(url).send(prepared, timeout=self._timeout_s)
            # Read to its end, or the connection cannot be used again.
            return HttpAnswer(answer.status_code, answer.headers, answer.content)
        except (requests.Timeout, requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            if (refusal := refusal_in(error)) is not None:
                raise ClientError(f"{url} is not called: it {refusal.reason}") from error
            reason = _patience(error, self._timeout_s) if isinstance(error, requests.Timeout) else reason_of(error)
            raise BrokerUnreachable(f"no answer from {url}: {reason}", reason, sent=not _never_sent(error)) from error
        except (requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL) as error:
            raise ClientError(f"{url} {_NO_BROKER}") from error
        except (requests.RequestException, ValueError) as error:
            # A certificate that cannot be read: no repetition will help.
            raise ClientError(f"{url} cannot be asked: {reason_of(error)}") from error

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


def _patience(error: requests.Timeout, limits_s: tuple[float, float]) -> str:
    import requests

    connect_s, answer_s = limits_s
    if isinstance(error, requests.exceptions.ConnectTimeout):
        return f"no connection within {connect_s:g} s"
    return f"it accepted the request and did not answer for {answer_s:g} s"


def _never_sent(error: Exception) -> bool:
    """Whether it is certain that nothing reached the broker: the connection could not be made."""
    import requests

    return isinstance(error, requests.exceptions.ConnectTimeout) or "NewConnectionError" in repr(error)
