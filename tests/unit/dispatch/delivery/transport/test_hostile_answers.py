"""Answers that exhaust memory, with both transports: bombs and floods. `test_contract` has slow drips."""

from __future__ import annotations

import contextlib
import gzip
import socket
from collections.abc import Callable, Iterator

import pytest

from arborcast.dispatch.delivery.transport.contract import PushResult, Transport
from tests.support.scripted_server import ScriptedServer, request_on
from tests.support.transports import push

pytestmark = pytest.mark.slow

Script = Callable[[socket.socket], object]
Make = Callable[..., Transport]

OK = b"HTTP/1.1 200 OK\r\n"
LONG_HEADERS = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 60_000) for number in range(20))


class HostileServer(ScriptedServer):
    """Reads a request on each connection before its script."""

    def __init__(self, script: Script) -> None:
        super().__init__(self._act)
        self._answer = script
        self.requests: list[bytes] = []

    def _act(self, connection: socket.socket) -> None:
        self.requests.append(request_on(connection))
        self._answer(connection)


@pytest.fixture
def hostile() -> Iterator[Callable[[Script], HostileServer]]:
    with contextlib.ExitStack() as stack:
        yield lambda script: stack.enter_context(HostileServer(script))


HostileServers = Callable[[Script], HostileServer]


def answering(answer: bytes) -> Script:
    return lambda connection: connection.sendall(answer)


def pushed(make: Make, hostile: HostileServer, limit_s: float = 60.0) -> PushResult:
    """The result of a push with this time-out, by default long enough for a busy machine."""
    return push(make(total_timeout_s=limit_s, max_response_bytes=1_000, keep_response_bytes=100), hostile.url)


def flood(connection: socket.socket, start: bytes, piece: bytes, limit: int = 200_000_000) -> None:
    """Repeat the piece until the connection ends, up to the limit in bytes."""
    connection.sendall(start)
    sent = 0
    with contextlib.suppress(OSError):
        while sent < limit:
            connection.sendall(piece)
            sent += len(piece)


def test_a_truncated_body_is_a_failure(make: Make, hostile: HostileServers) -> None:
    result = pushed(make, hostile(answering(OK + b"Content-Length: 9\r\n\r\nhalf")))
    assert (result.status, result.failure) == (200, "disconnected")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
def test_compressed_answers_are_neither_accepted_nor_unpacked(make: Make, hostile: HostileServers, coding: str) -> None:
    bomb = gzip.compress(bytes(1_000_000), 9)[:900]  # these unpack to nearly a megabyte
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    server = hostile(answering(head + bomb))
    result = pushed(make, server)
    assert (result.status, result.failure) == (200, "")
    assert (result.response, result.response_bytes) == (bomb[:100], len(bomb)), "the compressed bytes"
    request = server.requests[0].lower()
    assert b"accept-encoding" not in request or b"accept-encoding: identity" in request


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (OK + b"X-Bomb: ", b"a" * 65536),
        (OK, b"X-Bomb: yes\r\n" * 5_000),
        # Each line is within the limit of a line, and there are fewer than a hundred; the sum is too large.
        (OK + LONG_HEADERS + b"Content-Length: 0\r\n\r\n", b""),
    ],
    ids=["one header", "many headers", "a few long headers"],
)
def test_headers_are_bounded(make: Make, hostile: HostileServers, start: bytes, piece: bytes) -> None:
    result = pushed(make, hostile(lambda c: flood(c, start, piece) if piece else c.sendall(start)))
    assert result.failure == "protocol", result


@pytest.mark.parametrize(
    ("start", "piece"),
    [(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500), (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0" * 65536)],
    ids=["interim answers", "a chunk size"],
)
def test_endless_answers_before_a_body(make: Make, hostile: HostileServers, start: bytes, piece: bytes) -> None:
    result = pushed(make, hostile(lambda c: flood(c, start, piece)), limit_s=1.0)
    assert result.failure in ("protocol", "disconnected", "timeout"), result


@pytest.mark.parametrize(
    ("head", "piece"), [(b"\r\n", b"x" * 65536), (b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 5_000)]
)
def test_an_endless_body(make: Make, hostile: HostileServers, head: bytes, piece: bytes) -> None:
    result = pushed(make, hostile(lambda c: flood(c, OK + head, piece)))
    assert (result.status, result.failure, len(result.response)) == (200, "", 100)
    assert result.response_bytes < 1_000_000


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(make: Make, hostile: HostileServers, status: int) -> None:
    for place in ("http://127.0.0.1:1/", "file:///etc/passwd", "//127.0.0.1/", "/elsewhere"):
        answer = f"HTTP/1.1 {status} Gone\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode()
        redirecting = hostile(answering(answer))
        result = pushed(make, redirecting)
        assert (result.status, result.failure, len(redirecting.requests)) == (status, "", 1), place
