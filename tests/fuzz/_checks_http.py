"""Checks of any bytes on a connection, with any division into packets.

Behind the gateway's protocol is an application that records requests and answers at once: the content of requests is
checked by the target `gateway`.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

from arborcast.ingest.settings import GatewaySettings
from tests.fuzz._generate import Target
from tests.support.bare_connection import BareConnection, Noting, Received

_LIMITS = GatewaySettings(max_header_bytes=1_024, max_headers=16)

_METHODS = (
    *("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT", "PRI", "QUERY", "SOURCE"),
    *("PROPFIND", "REPORT", "MERGE", "M-SEARCH", "NOTIFY", "SUBSCRIBE", "UNSUBSCRIBE", "PURGE", "BIND", "ANNOUNCE"),
)
_OFFERS = (
    b"",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEA\r\n",
    b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n",
    b"Proxy-Connection: upgrade\r\nUpgrade: x, y\r\n",
)
_BODIES = (
    b"\r\n",
    b"Content-Length: 3\r\n\r\nabc",
    b"Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nTrailer: x\r\n\r\n",
)
_PLAIN = b"GET /last HTTP/1.1\r\nHost: h\r\n\r\n"


def _request(method: str, offer: bytes, body: bytes) -> bytes:
    address = b"h:1" if method == "CONNECT" else b"*" if method == "PRI" else b"/a"
    return method.encode() + b" " + address + b" HTTP/1.1\r\nHost: h\r\n" + offer + body


SEVERAL_REQUESTS = (
    *(
        b"".join((_PLAIN, _request(method, offer, body), _PLAIN))
        for method in ("POST", "CONNECT")
        for offer in _OFFERS
        for body in _BODIES
    ),
    _request("POST", _OFFERS[1], _BODIES[1]) * 3 + _PLAIN * 3,
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + _PLAIN,
    b"GET /a\r\n\r\n" + _PLAIN,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc" + _PLAIN,
)
_HTTP_SEEDS = (
    *(_request(method, offer, body) for method in _METHODS for offer in _OFFERS for body in _BODIES),
    *SEVERAL_REQUESTS,
)

_HTTP_SNIPPETS = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ", b":", b";", b"0\r\n\r\n", b"1\r\nx\r\n", b";x=" + b"y" * 100, _PLAIN),
    *(b"Connection: upgrade\r\n", b"Upgrade: h2c\r\n", b"Connection: close\r\n", b"Upgrade:\r\n", b"upgrade", b","),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding:"),
    *(b"Expect: 100-continue\r\n", b"Host: h\r\n", b"X: y\r\n" * 20, b"X: " + b"y" * 2_000 + b"\r\n", b" HTTP/1.0\r\n"),
    *(method.encode() for method in _METHODS),
    *(b"CONNECT x:1 HTTP/1.1\r\n\r\n", b"*", b"http://h/", b" HTTP/2.0", b" RTSP/1.0", b"ICE/1.0", _PLAIN * 70),
)


def _sent(packets: Sequence[bytes]) -> tuple[list[Received], bytes]:
    """The application's requests, and all bytes of the answers."""
    app = Noting()
    connection = BareConnection(app, _LIMITS)
    for packet in packets:
        if not connection.wire.reading:
            connection.settle()
        connection.send(packet, turns=2)
    connection.settle()
    connection.lose()
    return [each for each in app.requests if each[3]], connection.answered


def _statuses(answers: bytes) -> list[int]:
    """The statuses of the answers, which must follow each other without a gap."""
    found: list[int] = []
    while answers:
        head, end, rest = answers.partition(b"\r\n\r\n")
        assert end, f"an answer without end: {answers[:100]!r}"
        assert head.startswith(b"HTTP/1.1 "), f"no answer: {answers[:100]!r}"
        status = int(head[9:12])
        if status != 100:
            lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            length = int(lines[b"content-length"])
            # The answer to a HEAD has no body.
            answers = rest[length:] if rest[:2] == b"ok" or status != 200 else rest
            found.append(status)
            assert not answers or lines.get(b"connection") != b"close", "something follows the last answer"
        else:
            answers = rest
    return found


def _cut(data: bytes) -> list[bytes]:
    """The same bytes in other packets; the same ones for equal input."""
    chance = random.Random(zlib.crc32(data))
    places = sorted(chance.sample(range(1, len(data)), min(len(data) - 1, chance.choice((1, 1, 2, 5)))))
    return [data[start:end] for start, end in zip((0, *places), (*places, len(data)), strict=True)]


def _carried_out(packets: Sequence[bytes]) -> list[Received]:
    """The complete requests of the application: each answered in order, then at most one refusal."""
    requests, answers = _sent(packets)
    statuses = _statuses(answers)
    assert statuses[: len(requests)] == [200] * len(requests), "a request without its answer"
    # None after an answer with `Connection: close`.
    assert statuses[len(requests) :] in ([], [400], [405], [429], [431]), statuses
    return requests


def check_http(data: bytes) -> None:
    """Each request is handled once and answered in order, independent of the packets."""
    requests = _carried_out([data])
    # A too large header is detected earlier or later, depending on the packets.
    if 1 < len(data) <= _LIMITS.max_header_bytes:
        assert _carried_out(_cut(data)) == requests


def check_every_cut(data: bytes) -> None:
    """As `check_http`, in two packets for every position after the first request, and byte by byte."""
    requests = _carried_out([data])
    cuts = [[data[:at], data[at:]] for at in range(len(_PLAIN) if data.startswith(_PLAIN) else 1, len(data))]
    for packets in (*cuts, [data[at : at + 1] for at in range(len(data))]):
        assert _carried_out(packets) == requests, packets


TARGETS = {"http": Target(check_http, _HTTP_SEEDS, _HTTP_SNIPPETS)}
