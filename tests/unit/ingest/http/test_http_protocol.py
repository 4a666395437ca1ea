"""Abuse of connections: CPU time and memory for received bytes are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from arborcast.ingest.http import http_protocol
from arborcast.ingest.settings import GatewaySettings
from tests.support.bare_connection import BareConnection, Noting, spin

LIMITS = GatewaySettings(max_header_bytes=1_024, max_headers=16)

GET = b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
OFFER = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


@pytest.fixture
def app() -> Noting:
    return Noting()


@pytest.fixture
def connection(app: Noting) -> Iterator[BareConnection]:
    made = BareConnection(app, LIMITS)
    yield made
    made.lose()


@pytest.mark.parametrize(
    "sent",
    [
        b"CONNECT x:1 HTTP/1.1\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        b"CONNECT x:1 HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        OFFER + b"CONNECT x:1 HTTP/1.1\r\n\r\n",
        b"CONNECT / HTTP/1.1\r\nHost: x\r\n\r\n" + GET % 1,
    ],
)
@pytest.mark.parametrize("packet", [1, 1_000])
def test_connect_is_refused(sent: bytes, packet: int, connection: BareConnection, app: Noting) -> None:
    for at in range(0, len(sent), packet):
        connection.send(sent[at : at + packet])
    last = b"HTTP/1.1 " + connection.answered.rpartition(b"HTTP/1.1 ")[2]
    if sent.startswith(OFFER) and packet > len(sent):
        assert last.startswith(b"HTTP/1.1 200 ")  # the request in flight has the last answer
    else:
        assert last.startswith(b"HTTP/1.1 405 ")
        assert b"allow: GET, HEAD, POST\r\n" in last
    assert b"connection: close" in last
    assert [method for method, *_ in app.requests] == ["GET"] * sent.count(OFFER)
    assert connection.wire.closed


@pytest.mark.parametrize(("version", "interim"), [(b"1.1", True), (b"1.0", False)])
def test_interim_answers(version: bytes, interim: bool, connection: BareConnection) -> None:
    connection.send(b"POST / HTTP/%b\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n" % version)
    connection.send(b"x")
    assert ((b"100 Continue" in connection.answered), b" 200 OK" in connection.answered) == (interim, True)


def test_an_upgrade_offer_is_parsed_at_most_twice(
    connection: BareConnection, app: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "_UPGRADE", frozenset())
    connection.send(OFFER)
    assert connection.answered.startswith(b"HTTP/1.1 400 ")
    assert (connection.wire.closed, app.requests) == (True, [])


@pytest.mark.parametrize(
    ("begin", "between"),
    [
        (b"1\r\nx\r\n0\r\nX: y", b"X: y\r\n"),
        (b"1\r\nx\r\n0\r\nX: y", b"X: "),
        (b"1\r\nx\r\n0\r\nX: y", b"y"),
        (b"1;x=", b"y" * 100),
    ],
)
def test_trailers_and_chunk_extensions_are_bounded(
    begin: bytes, between: bytes, connection: BareConnection, app: Noting
) -> None:
    connection.send(CHUNKED + begin)
    for _ in range(2 * LIMITS.max_header_bytes // len(between)):
        connection.send(between, turns=0)
    spin()
    assert connection.answered.startswith(b"HTTP/1.1 431 ")
    assert connection.wire.closed
    assert [whole for *_, whole in app.requests] == [False]


def test_long_bodies_in_small_pieces(connection: BareConnection, app: Noting) -> None:
    connection.send(CHUNKED)
    for _ in range(500):
        connection.send(b"1;a=b\r\nx", turns=1)
        connection.send(b"\r\n", turns=1)
    connection.send(b"0\r\nX: y\r\n\r\n")
    assert [(body, whole) for *_, body, whole in app.requests] == [(b"x" * 500, True)]


@pytest.fixture
def held(connection: BareConnection, app: Noting) -> Callable[[bytes], bytes]:
    """The answers to these bytes, all of which arrive before the first answer."""

    def answered(sent: bytes) -> bytes:
        app.hold = asyncio.Event()
        connection.send(sent)
        assert len(connection.protocol.pipeline) <= http_protocol._AHEAD
        app.hold.set()
        connection.settle()
        assert b"connection: close" in connection.answered.rpartition(b"HTTP/1.1 ")[2]
        return connection.answered

    return answered


def test_pipelined_requests_are_bounded(held: Callable[[bytes], bytes], app: Noting) -> None:
    answered = held(b"".join(GET % number for number in range(1_000)))
    count = 1 + http_protocol._AHEAD
    assert [path for _, path, *_ in app.requests] == [f"/{number}" for number in range(count)]
    assert answered.count(b"HTTP/1.1 200 ") == count


@pytest.mark.parametrize(
    ("bad", "before"),
    [
        (GET % 3 + b"no HTTP\r\n\r\n" + GET % 5, 3),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 20 + b"\r\n" + GET % 5, 2),
        (CHUNKED + b"zz", 2),
    ],
    ids=["request", "head", "body"],
)
def test_requests_before_a_bad_one_are_answered(
    held: Callable[[bytes], bytes], app: Noting, bad: bytes, before: int
) -> None:
    answers = held(GET % 1 + GET % 2 + bad).split(b"HTTP/1.1 ")[1:]
    assert [path for _, path, *_ in app.requests] == [f"/{number + 1}" for number in range(before)]
    assert [each[:3] for each in answers[:before]] == [b"200"] * before
    assert [b"connection: close" in each for each in answers][:-1] == [False] * (len(answers) - 1)


def test_reading_pauses_while_pipelined_requests_wait(connection: BareConnection, app: Noting) -> None:
    app.hold = asyncio.Event()
    connection.send(GET % 1 + GET % 2 + GET % 3)
    app.hold.set()
    spin(1)
    read = []
    while connection.protocol.pipeline:
        read.append(connection.wire.reading)
        spin(1)
    connection.settle()
    assert read
    assert not any(read)
    connection.send(GET % 4)
    assert len(app.requests) == 4


@pytest.mark.parametrize(("sent", "paused"), [(b"GET / HTTP/1.0\r\n\r\n", False), (GET % 1, False), (GET % 1, True)])
def test_a_client_that_does_not_read_the_rest_of_its_answer_is_cut_off(app: Noting, sent: bytes, paused: bool) -> None:
    """A closed transport waits for its unsent bytes as long as the client's system is there."""
    connection = BareConnection(app, LIMITS, send_timeout_s=0)
    connection.send(sent)
    assert connection.answered.startswith(b"HTTP/1.1 200 ")
    if paused:
        connection.protocol.pause_writing()
        connection.wire.close()
        connection.protocol.resume_writing()
    elif not connection.wire.closed:
        connection.protocol.timeout_keep_alive_handler()
    spin()
    assert connection.wire.aborted
    connection.lose()


@pytest.mark.parametrize(("version", "body"), [(b"1.1", b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"), (b"1.0", b"ab")])
def test_an_answer_without_a_length(connection: BareConnection, version: bytes, body: bytes) -> None:
    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})

    connection.protocol.app = stream
    connection.send(b"GET / HTTP/%b\r\nHost: h\r\n\r\n" % version)
    head, _, answered = connection.answered.partition(b"\r\n\r\n")
    assert (answered, b"chunked" in head, connection.wire.closed) == (body, version == b"1.1", version == b"1.0")


def test_one_answer_per_request(connection: BareConnection) -> None:
    async def hasty(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})  # type: ignore[operator]
        await send({"type": "http.response.body"})  # type: ignore[operator]

    connection.protocol.app = hasty
    connection.send(CHUNKED)
    connection.send(b"zz")
    assert connection.answered.count(b"HTTP/1.1 ") == 1
    assert connection.wire.closed
