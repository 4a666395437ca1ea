"""HTTP for the client: one request and its repetitions, over connections that are kept.

requests prepares every request anew: netrc, proxies from the surroundings, cookies, hooks. A broker is addressed on
purpose and needs none of it, so `request` hands a minimal PreparedRequest to the adapter, which doubles the
throughput. It is still a requests.Session, which is what requests-futures runs.
"""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import requests
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict

from ingest.client.calls import Call, ResultT
from ingest.client.replies import read_reply, retry_after_s
from ingest.client.values import BrokerUnreachable, ClientClosed, ClientError, FaultReceived, Retries
from topic_model.subscriptions import SoapVersion

# The broker, and wherever its subscriptions and pull points say that they are.
_HOSTS = 8


class BrokerSession(requests.Session):
    """Several threads may use it. `connections` is how many are kept; a thread beyond that waits for one."""

    def __init__(self, timeout_s: tuple[float, float], retries: Retries, connections: int) -> None:
        super().__init__()
        self.trust_env = False
        adapter = HTTPAdapter(pool_connections=_HOSTS, pool_maxsize=connections, pool_block=True)
        self.mount("http://", adapter)
        self.mount("https://", adapter)
        self._timeout_s = timeout_s
        self._retries = retries
        self._closing = threading.Event()

    def request(  # type: ignore[override]  # of requests' sixteen parameters it takes what it looks at
        self, method: str | bytes, url: str | bytes, **arguments: Any
    ) -> requests.Response:
        """POST `data` with `headers`, the very same again while that may help; redirects are not followed.

        With `repeatable` False it is not sent again once it may have arrived. The answer is whatever came last, a 503
        too. Raises ClientError when none came.
        """
        address = str(url)
        body: bytes = arguments["data"]
        prepared = requests.PreparedRequest()
        prepared.method, prepared.url, prepared.body = "POST", address, body
        prepared.headers = CaseInsensitiveDict({"Content-Length": str(len(body)), **arguments["headers"]})
        repeatable: bool = arguments.get("repeatable", True)
        attempt = 1
        while True:
            asked: float | None = None
            problem: BrokerUnreachable | None = None
            try:
                response = self._attempt(address, prepared)
            except BrokerUnreachable as error:
                if not repeatable and not _never_sent(error):
                    raise
                problem = error
            else:
                if response.status_code != 503:
                    return response
                asked = retry_after_s(response.headers.get("Retry-After", ""))
            pause = self._retries.pause_after(attempt, asked)
            if pause is None:
                if problem is not None:
                    raise problem
                return response
            if self._closing.wait(pause):
                raise ClientClosed(f"closed before {address} took the request", sent=True) from problem
            attempt += 1

    def perform(self, call: Call[ResultT], soap: SoapVersion) -> ResultT:
        """The call's result. Raises ClientError."""
        return result_of(call, self.request("POST", call.to.address, **arguments_of(call, soap)))

    def stop_repeating(self) -> None:
        """Requests that fail from now on are not repeated."""
        self._closing.set()

    def _attempt(self, address: str, prepared: requests.PreparedRequest) -> requests.Response:
        try:
            adapter = self.get_adapter(address)
            verify = True if self.verify is None else self.verify
            response = adapter.send(prepared, timeout=self._timeout_s, verify=verify, cert=self.cert)
            # Read to its end, or the connection cannot be used again.
            _ = response.content
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            raise BrokerUnreachable(f"no answer from {address}: {error}") from error
        except requests.Timeout as error:
            raise BrokerUnreachable(f"no answer from {address} in time: {error}") from error
        except (requests.RequestException, ValueError) as error:
            # An address that is no URL, a certificate that cannot be read: no repetition will help.
            raise ClientError(f"{address} cannot be asked: {error}") from error
        return response


def arguments_of(call: Call[Any], soap: SoapVersion) -> dict[str, Any]:
    """What `BrokerSession.request` needs for a call, with a message id of its own."""
    body, headers = call.encode(soap, f"urn:uuid:{uuid4()}")
    return {"data": body, "headers": headers, "repeatable": call.repeatable}


def result_of(call: Call[ResultT], response: requests.Response) -> ResultT:
    """What the answer means to the call. Raises ClientError."""
    headers = response.headers
    try:
        reply = read_reply(
            call.to.address,
            response.status_code,
            headers.get("Retry-After", ""),
            headers.get("Content-Type", ""),
            response.content,
        )
    except FaultReceived as error:
        if error.fault and error.fault == call.absent:
            return call.read(None)
        raise
    return call.read(reply)


def _never_sent(error: BrokerUnreachable) -> bool:
    """Whether it is certain that nothing reached the broker: the connection could not be made."""
    cause = error.__cause__
    return isinstance(cause, requests.exceptions.ConnectTimeout) or "NewConnectionError" in repr(cause)
