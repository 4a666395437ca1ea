"""What engines ask the administrator, one blocking request at a time. For threads.

Addresses come from settings, or from what the administrator has signed: nobody else can have us call anything.
"""

from __future__ import annotations

import http.client
import ssl
from urllib.parse import quote, urlsplit

import msgspec

from arborcast.core.errors import DeliveryError, SignatureError
from arborcast.core.reasons import reason_of
from arborcast.ingest.federation.keys import SharedKeys
from arborcast.ingest.federation.topology import (
    AdministratorRefused,
    Beat,
    MemberRegistration,
    Registered,
    Topology,
    read_topology,
)
from arborcast.wire.errors import NoAnswer

MEMBERS = "/members"

TOPOLOGY = "/topology"

_TIMEOUT_S = 5.0

LONG_POLL_S = 20.0
"""So long does the administrator wait for something new."""

_MOST = 16 * 1024 * 1024


def heartbeat_path(name: str) -> str:
    """Where a member says that it is there."""
    return f"{MEMBERS}/{name}/heartbeat"


class Administrator:
    """Each call raises NoAnswer, AdministratorRefused, or another DeliveryError for an answer that does not count."""

    def __init__(self, url: str, keys: SharedKeys) -> None:
        self._url = url.rstrip("/")
        self._keys = keys

    def register(self, registration: MemberRegistration) -> Registered:
        """Become a member."""
        answer = self._call("POST", MEMBERS, msgspec.json.encode(registration))
        try:
            return msgspec.json.decode(answer, type=Registered)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NoAnswer(f"{self._url} answered with something that is no registration: {error}") from error

    def beat(self, name: str, number: int) -> None:
        """Say that we are there."""
        self._call("POST", heartbeat_path(quote(name, safe="")), msgspec.json.encode(Beat(number)))

    def topology(self, after: int = -1) -> Topology:
        """The topology, as soon as it is newer than that; after LONG_POLL_S as it is."""
        answer = read_topology(self._call("GET", f"{TOPOLOGY}?after={after}", b"", LONG_POLL_S + _TIMEOUT_S))
        if answer is None:
            raise NoAnswer(f"{self._url} answered with something that is no topology: is another program there?")
        return answer

    def _call(self, method: str, path: str, body: bytes, timeout_s: float = _TIMEOUT_S) -> bytes:
        return call(self._url, method, path, body, self._keys, timeout_s)


def call(
    url: str,
    method: str,
    path: str,
    body: bytes,
    keys: SharedKeys,
    timeout_s: float = _TIMEOUT_S,
    *,
    answers: bool = True,
) -> bytes:
    """The answer to a request, which has to be signed, too, where the other one `answers`. Raises as Administrator
    says."""
    place = urlsplit(url)
    headers = keys.signed(method, path, body)
    try:
        connection: http.client.HTTPConnection
        if place.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                place.hostname or "", place.port, timeout=timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=timeout_s)
        try:
            connection.request(
                method, place.path.rstrip("/") + path, body, {**headers, "Content-Type": "application/json"}
            )
            response = connection.getresponse()
            answer = response.read(_MOST)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(f"no answer from {url}: {reason_of(error)}") from error
    if response.status >= 300:
        said = answer[:300].decode(errors="replace").strip()
        raise AdministratorRefused(f"{url} answered {response.status}: {said}", response.status)
    if not answers:
        return answer
    try:
        keys.check_answer(headers, {name.lower(): value for name, value in response.getheaders()}, answer)
    except SignatureError as error:
        raise DeliveryError(f"the answer of {url} does not count: {error}") from error
    return answer
