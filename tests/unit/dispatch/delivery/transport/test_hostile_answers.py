"""Answers that are meant to cost us memory or time, against both transports: bombs, floods and drips."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from arborcast.dispatch.delivery.transport import make_transport
from arborcast.dispatch.delivery.transport.contract import Transport
from arborcast.dispatch.settings import PushSettings
from tests.support.outbound import THIS_MACHINE
from tests.unit.dispatch.delivery.transport.test_contract import push

pytestmark = pytest.mark.slow

Script = Callable[[socket.socket], object]


class Villain:
    """Reads a request, then does what its script says; counts what it got rid of."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._act, args=(connection,), daemon=True).start()

    def _act(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(60)
            data = b""
            while b"<x/>" not in data and (more := connection.recv(65536)):
                data += more
            self._script(connection)


@pytest.fixture(params=["curl", "futures"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[float], Transport]]:
    """By how long a push may take."""
    opened: list[Transport] = []

    def build(total_timeout_s: float) -> Transport:
        settings = PushSettings(
            transport=request.param,
            connect_timeout_s=min(total_timeout_s, 20.0),
            total_timeout_s=total_timeout_s,
            max_response_bytes=1_000,
            keep_response_bytes=100,
        )
        opened.append(make_transport(settings, THIS_MACHINE))
        return opened[-1]

    yield build
    for transport in opened:
        transport.close()


@pytest.fixture
def transport(make: Callable[[float], Transport]) -> Transport:
    """Gives a busy machine the time that it needs."""
    return make(60.0)


@pytest.fixture
def hurried(make: Callable[[float], Transport]) -> Transport:
    """For what ends when the time is over."""
    return make(1.0)


@pytest.fixture
def villain() -> Iterator[Callable[[Script], Villain]]:
    made: list[Villain] = []

    def make(script: Script) -> Villain:
        made.append(Villain(script))
        return made[-1]

    yield make
    for each in made:
        each.close()


Make = Callable[[Script], Villain]


def flood(connection: socket.socket, start: bytes, piece: bytes, limit: int = 200_000_000) -> None:
    """Send the piece again and again as long as it is taken, to the limit in bytes."""
    connection.sendall(start)
    sent = 0
    with contextlib.suppress(OSError):
        while sent < limit:
            connection.sendall(piece)
            sent += len(piece)


def test_a_body_that_ends_too_early_is_no_answer(transport: Transport, villain: Make) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"

    result = push(transport, villain(lambda connection: connection.sendall(half)).url)

    assert (result.status, result.failure) == (200, "disconnected")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
def test_a_compressed_answer_is_not_unpacked(transport: Transport, villain: Make, coding: str) -> None:
    bomb = gzip.compress(bytes(50_000_000), 9)[:900]  # its first 900 bytes unpack to nearly a megabyte
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()

    result = push(transport, villain(lambda connection: connection.sendall(head + bomb)).url)

    assert (result.status, result.failure) == (200, "")
    assert (result.response, result.response_bytes) == (bomb[:100], len(bomb)), "the bytes as they came"


def test_compression_is_not_asked_for(transport: Transport, villain: Make) -> None:
    asked: list[bytes] = []

    class Peek(Villain):
        def _act(self, connection: socket.socket) -> None:
            with connection:
                asked.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")

    peek = Peek(lambda connection: None)
    try:
        assert push(transport, peek.url).status == 202
    finally:
        peek.close()
    assert b"accept-encoding" not in asked[0].lower() or b"accept-encoding: identity" in asked[0].lower()


OK = b"HTTP/1.1 200 OK\r\n"
LONG_HEADERS = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 60_000) for number in range(20))


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (OK + b"X-Bomb: ", b"a" * 65536),
        (OK, b"X-Bomb: yes\r\n" * 5_000),
        # Each within what one line may have, and fewer than a hundred; together too much.
        (OK + LONG_HEADERS + b"Content-Length: 0\r\n\r\n", b""),
    ],
    ids=["one header", "many headers", "a few long headers"],
)
def test_headers_are_bounded(transport: Transport, villain: Make, start: bytes, piece: bytes) -> None:
    result = push(transport, villain(lambda c: flood(c, start, piece) if piece else c.sendall(start)).url)
    assert result.failure == "protocol", result


def test_interim_answers_without_end(hurried: Transport, villain: Make) -> None:
    result = push(hurried, villain(lambda c: flood(c, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500)).url)

    assert result.failure in ("protocol", "timeout"), result


@pytest.mark.parametrize(
    ("head", "piece"), [(b"\r\n", b"x" * 65536), (b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 5_000)]
)
def test_a_body_without_end(transport: Transport, villain: Make, head: bytes, piece: bytes) -> None:
    result = push(transport, villain(lambda c: flood(c, OK + head, piece)).url)

    assert (result.status, result.failure, len(result.response)) == (200, "", 100)
    assert result.response_bytes < 1_000_000


def test_an_endless_chunk_size(hurried: Transport, villain: Make) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    result = push(hurried, villain(lambda c: flood(c, head, b"0" * 65536)).url)

    assert result.failure in ("protocol", "disconnected", "timeout"), result


def test_a_promised_gigabyte_is_not_waited_for(make: Callable[[float], Transport], villain: Make) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nxx")
        connection.recv(1)  # until we go

    # Where the head of the answer did not come in time, because the machine stalled, there is more time.
    results = (push(make(limit_s), villain(script).url) for limit_s in (1.0, 4.0, 30.0))
    result = next((each for each in results if each.status), None)

    assert result is not None
    assert (result.status, result.failure) == (200, "timeout")


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"])
def test_a_byte_now_and_then_ends_at_the_deadline(hurried: Transport, villain: Make, start: bytes) -> None:
    """Dripped into the status line, a header, the body: each byte comes in time for any time-out per read."""

    def drip(connection: socket.socket) -> None:
        connection.sendall(start)
        for byte in itertools.chain(b"" if start else b"HTTP/1.1 200 O", itertools.repeat(ord("K"))):
            connection.sendall(bytes([byte]))
            time.sleep(0.05)

    result = push(hurried, villain(drip).url)

    assert result.failure == "timeout", result


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("place", ["http://127.0.0.1:1/", "file:///etc/passwd", "//127.0.0.1/", "/elsewhere"])
def test_no_redirect_is_followed(transport: Transport, villain: Make, status: int, place: str) -> None:
    came: list[int] = []

    def script(connection: socket.socket) -> None:
        came.append(1)
        connection.sendall(f"HTTP/1.1 {status} Gone\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode())

    result = push(transport, villain(script).url)

    assert (result.status, result.failure, came) == (status, "", [1])
