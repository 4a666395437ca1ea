"""Signed requests between engines of a federation and to their administrator.

The administrator's address comes from settings, the addresses of engines from its signed answers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar
from urllib.parse import quote

import msgspec

from arborcast.core.errors import DeliveryError, NoAnswer, SignatureError
from arborcast.core.http_client import HttpAnswer, HttpClient
from arborcast.ingest.federation.keys import SharedKeys
from arborcast.ingest.federation.topology import AdministratorRefused, Beat, MemberRegistration, Registered, Topology

T = TypeVar("T")

MEMBERS = "/members"

TOPOLOGY = "/topology"

_TIMEOUT_S = 5.0

LONG_POLL_S = 20.0
"""Time that the administrator waits for changes."""

_MOST = 16 * 1024 * 1024


class Administrator:
    """Calls return futures, which raise NoAnswer, AdministratorRefused, or another DeliveryError for an answer that
    does not count. Two are in progress at a time."""

    def __init__(self, url: str, keys: SharedKeys) -> None:
        self._url = url.rstrip("/")
        self._keys = keys
        self._client = HttpClient(None, threads=2, name="administrator")

    def close(self) -> None:
        """Drop the calls that wait for a thread."""
        self._client.close()

    def register(self, registration: MemberRegistration) -> Future[Registered]:
        return self._call("POST", MEMBERS, msgspec.json.encode(registration), Registered)

    def beat(self, name: str, number: int) -> Future[object]:
        """Report the member of this name and number as alive."""
        path = f"{MEMBERS}/{quote(name, safe='')}/heartbeat"
        return self._call("POST", path, msgspec.json.encode(Beat(number)), object)

    def topology(self, after: int = -1) -> Future[Topology]:
        """The topology, as soon as its version is newer than `after`; the current one after LONG_POLL_S."""
        return self._call("GET", f"{TOPOLOGY}?after={after}", b"", Topology, LONG_POLL_S + _TIMEOUT_S)

    def _call(self, method: str, path: str, body: bytes, kind: type[T], total_s: float = _TIMEOUT_S) -> Future[T]:
        def read(answer: bytes) -> T:
            try:
                return msgspec.json.decode(answer or b"null", type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                what = f"{self._url} answered without a {kind.__name__}: {error}"
                raise NoAnswer(f"{what}; is another program there?") from error

        return call(self._client, self._url, method, path, body, self._keys, read, total_s)


def call(
    client: HttpClient,
    url: str,
    method: str,
    path: str,
    body: bytes,
    keys: SharedKeys,
    read: Callable[[bytes], T],
    total_s: float = _TIMEOUT_S,
    *,
    answers: bool = True,
) -> Future[T]:
    """A future with the result of `read` for the answer to a signed request. With `answers` the answer must be signed,
    too. Raises as `Administrator`."""
    headers = keys.signed(method, path, body)

    def checked(answer: HttpAnswer) -> T:
        if answer.status >= 300:
            text = answer.body[:300].decode(errors="replace").strip()
            raise AdministratorRefused(f"{url} answered {answer.status}: {text}", answer.status)
        if answers:
            try:
                keys.check_answer(headers, {name.lower(): each for name, each in answer.headers.items()}, answer.body)
            except SignatureError as error:
                raise DeliveryError(f"the answer of {url} does not count: {error}") from error
        return read(answer.body)

    sent = {**headers, "Content-Type": "application/json"}
    return client.call(method, url.rstrip("/") + path, sent, body, checked, total_s=total_s, max_answer=_MOST)
