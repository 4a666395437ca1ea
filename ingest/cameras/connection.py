"""HTTP to one camera, on the event loop: 500 cameras with long polls would be 500 threads of `core.http_client`.

The limits are the same: the outbound policy decides on the URL and on the address of each connection; bytes and time of
an answer are bounded; no redirect is followed. A proxy is not used. One connection is kept, since TLS handshakes take
small cameras a second.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import httptools

from arborcast.core.errors import NoAnswer, OutboundRefused
from arborcast.core.files import Stamp, stamp_of
from arborcast.core.http_client import HttpAnswer
from arborcast.core.reasons import reason_of
from arborcast.core.security.ip_addresses import read_address
from arborcast.core.security.outbound import AddressPolicy, Refusal, connect_share, families_in_turn, place_of
from arborcast.core.security.uris import to_uri
from arborcast.core.single_flight import SingleFlight
from arborcast.core.threads import pool
from arborcast.ingest.cameras.credentials import Credentials, DigestAccess

MAX_ANSWER = 1024 * 1024
_MAX_HEAD = 64 * 1024
_READ = 64 * 1024

_CONNECT_S = 5.0

# A lookup cannot be ended, and takes ten seconds and more where no name server answers. The event loop has two threads
# for lookups: two such names would stop those of all cameras. A camera uses one thread at a time.
_LOOKUPS = pool("camera-lookup", 256)


class CameraConnection:
    """Posts to one camera, one request at a time."""

    def __init__(
        self, policy: AddressPolicy, credentials: Credentials, *, ca_file: str = "", insecure: bool = False
    ) -> None:
        self._policy = policy
        self._digest = DigestAccess(credentials)
        self._tls = (ca_file, insecure)
        self._place: tuple[str, str, int] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lookups: SingleFlight[tuple[str, int], list[tuple[Any, ...]]] = SingleFlight()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, total_s: float) -> HttpAnswer:
        """The answer, of any status. Raises OutboundRefused, NoAnswer."""
        refusal = self._policy.check_url(url)
        if refusal is not None:
            raise _outbound_refused(url, refusal)
        url = to_uri(url)
        try:
            async with asyncio.timeout(total_s):
                answer = await self._post(url, headers, body)
                if answer.status == 401 and self._digest.challenged(answer.headers.get("www-authenticate", "")):
                    answer = await self._post(url, headers, body)
                return answer
        except (OSError, EOFError, ValueError, httptools.HttpParserError) as error:
            self.close()
            raise NoAnswer(f"no answer from {url}: {reason_of(error)}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        host, port = place_of(url)
        scheme, _, rest = url.partition("://")
        netloc, _, path = rest.partition("/")
        authorization = self._digest.authorization("POST", url)
        lines = {
            "Host": netloc,
            "Content-Length": str(len(body)),
            **headers,
            **({"Authorization": authorization} if authorization else {}),
        }
        head = f"POST /{path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
        place = (scheme, host, port)
        if self._place != place:
            self.close()
        kept = self._streams is not None
        try:
            return await self._exchange(url, place, head.encode() + body)
        except _Closed:
            if not kept:
                raise
            # The camera had closed the idle connection.
            self.close()
            return await self._exchange(url, place, head.encode() + body)

    async def _exchange(self, url: str, place: tuple[str, str, int], message: bytes) -> HttpAnswer:
        if self._streams is None:
            self._streams, self._place = await self._connect(url, *place), place
        reader, writer = self._streams
        reading = _Reading()
        try:
            writer.write(message)
            while not reading.complete:
                data = await reader.read(_READ)
                if not data:
                    reading.ended()
                    break
                reading.feed(data)
        except ConnectionError as error:
            if reading.begun:
                raise
            raise _Closed(str(error)) from error
        if not reading.keeps_alive:
            self.close()
        return HttpAnswer(reading.status, reading.headers, bytes(reading.body))

    async def _connect(
        self, url: str, scheme: str, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context: ssl.SSLContext | None = None
        if scheme == "https":
            ca_file, insecure = self._tls
            context = _tls_context(ca_file, insecure, stamp_of(Path(ca_file).stat()) if ca_file else None)
        loop = asyncio.get_running_loop()
        refusal: Refusal | None = None
        problem: OSError | None = None
        limit_s = _CONNECT_S if context is None else 2 * _CONNECT_S
        until = loop.time() + limit_s
        async with asyncio.timeout(limit_s):
            found = families_in_turn(await self._addresses(host, port))
        for number, (*_, address) in enumerate(found):
            refused = self._policy.check_address(str(address[0]), int(address[1]))
            if refused is not None:
                refusal = refused
                continue
            try:
                async with asyncio.timeout(connect_share(until - loop.time(), len(found) - number)):
                    return await asyncio.open_connection(
                        str(address[0]), int(address[1]), ssl=context, server_hostname=host if context else None
                    )
            except OSError as error:
                problem = error
        if problem is None and refusal is not None:
            raise _outbound_refused(url, refusal)
        raise problem or OSError(f"{host} has no address")

    async def _addresses(self, host: str, port: int) -> list[tuple[Any, ...]]:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        if read_address(host) is not None:
            return [*look_up()]
        loop = asyncio.get_running_loop()
        return await self._lookups.run((host, port), lambda: loop.run_in_executor(_LOOKUPS, look_up))


class _Closed(ConnectionError):
    """The connection ended before the first byte of an answer."""


class _Reading:
    """One answer, parsed as it arrives. Raises ValueError for one that is too large."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.begun = self.complete = self.keeps_alive = False
        self._in_body = False
        self._head = 0
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self.begun = True
        if not self._in_body:
            self._head += len(data)
        self._parser.feed_data(data)
        read = sum(len(name) + len(value) for name, value in self.headers.items())
        if max(read, 0 if self._in_body else self._head) > _MAX_HEAD:
            raise ValueError(f"the head of the answer is larger than {_MAX_HEAD} bytes")

    def ended(self) -> None:
        """The connection has ended. Raises ConnectionError, unless that is the end of the answer."""
        if not self.begun:
            raise _Closed("the connection was closed")
        sized = "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()
        if not self._in_body or sized:
            raise ConnectionResetError("the answer is incomplete")

    def on_header(self, name: bytes, value: bytes) -> None:
        lower, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if lower != "www-authenticate" or text[:6].lower() == "digest":  # others beside it are of no use
            self.headers[lower] = text

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._in_body = True

    def on_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > MAX_ANSWER:
            raise ValueError(f"the answer is larger than {MAX_ANSWER} bytes")

    def on_message_complete(self) -> None:
        if self.status < 200:  # an interim answer
            self.headers, self._in_body = {}, False
            return
        self.complete = True
        with suppress(httptools.HttpParserError):
            self.keeps_alive = self._parser.should_keep_alive()


@lru_cache(8)
def _tls_context(ca_file: str, insecure: bool, _version: Stamp | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file or None)
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _outbound_refused(url: str, refusal: Refusal) -> OutboundRefused:
    return OutboundRefused(f"{url} is not called: it {refusal}", refusal.rule)
