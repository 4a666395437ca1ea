"""Request smuggling: requests that a proxy and the gateway may delimit differently are refused, with the rest unread.

A second request hidden in the first would have the proxy's authority. A request whose end is ambiguous is not carried
out, and the connection ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from arborcast.core.security.ip_addresses import EVERYWHERE
from arborcast.ingest.settings import GatewaySettings
from tests.support.gateway_parts import GatewayParts
from tests.support.served_app import BODY, LENGTH, NOTIFY, START, exchange, served

pytestmark = pytest.mark.slow

SIZE = len(BODY)
CODING = b"Transfer-Encoding: chunked\r\n"
CHUNKED = b"\r\n%x\r\n" % SIZE + BODY + b"\r\n0\r\n\r\n"
SIZED = b"\r\n" + BODY


def sized(value: bytes) -> bytes:
    return START + b"Content-Length:" + value + b"\r\n" + SIZED


def coded(value: bytes) -> bytes:
    return START + b"Transfer-Encoding:" + value + b"\r\n" + CHUNKED


def chunk(size: bytes, end: bytes = b"\r\n0\r\n\r\n") -> bytes:
    return START + CODING + b"\r\n" + size + b"\r\n" + BODY + end


TWO_ENDS = {
    "CL and TE": START + LENGTH + CODING + b"\r\n0\r\n\r\n",
    "TE and CL": START + CODING + LENGTH + CHUNKED,
    "two lengths": START + b"Content-Length: 3\r\n" + LENGTH + SIZED,
    "the second length is 0": START + LENGTH + b"Content-Length: 0\r\n\r\n",
    "one length twice": START + LENGTH * 2 + SIZED,
    "a list of lengths": sized(b" %d, %d" % (SIZE, SIZE)),
    "a length with a sign": sized(b" +%d" % SIZE),
    "a negative length": sized(b" -1"),
    "a hexadecimal length": sized(b" 0x%x" % SIZE),
    "a length with a space": sized(b" %d 1" % SIZE),
    "a length beyond 64 bits": sized(b" 18446744073709551616"),
    "a space before the colon": START + b"Content-Length : %d\r\n" % SIZE + SIZED,
    "a folded length": sized(b"\r\n %d" % SIZE),
    "a folded header": START + b"X: a\r\n Content-Length: 0\r\n" + LENGTH + SIZED,
    "a folded coding": coded(b"\r\n chunked"),
    "an unknown coding": coded(b" xchunked"),
    "chunked not last": coded(b" chunked, identity"),
    "two codings": coded(b" chunked\r\nTransfer-Encoding: identity"),
    "a control before the coding": coded(b" \x0bchunked"),
    "a space before the coding's colon": START + b"Transfer-Encoding : chunked\r\n" + CHUNKED,
    "a bare CR": START + b"X: a\rTransfer-Encoding: chunked\r\n" + LENGTH + SIZED,
    "a NUL": START + b"X: a\x00b\r\n" + LENGTH + SIZED,
    "a header without a name": START + b": x\r\n" + LENGTH + SIZED,
    "a chunk size that is none": chunk(b"%xg" % SIZE),
    "a chunk size with 0x": chunk(b"0x%x" % SIZE),
    "a chunk size with a sign": chunk(b"-%x" % SIZE),
    "a chunk longer than its size": chunk(b"%x" % SIZE, b"xx0\r\n\r\n"),
    "a chunk size beyond 64 bits": chunk(b"1%016x" % SIZE),
}

HOSTLESS = START.replace(b"Host: localhost\r\n", b"") + LENGTH
JAVA = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"

NOT_ONE_HOST = {
    "none": HOSTLESS,
    "none, with an offer to upgrade": HOSTLESS + JAVA,
    "one twice": START + b"host: h\r\n" + LENGTH,
    "two": START + LENGTH + b"Host: inside\r\n",
    "two, with an offer to upgrade": START + LENGTH + JAVA + b"Host: inside\r\n",
    "two in HTTP/1.0": START.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Host: inside\r\n" + LENGTH,
    "two words": HOSTLESS + b"Host: a b\r\n",
    "a path": HOSTLESS + b"Host: a/b\r\n",
    "a user": HOSTLESS + b"Host: a@b\r\n",
    "a port in words": HOSTLESS + b"Host: h:http\r\n",
    "outside ASCII": HOSTLESS + b"Host: h\xc3\xa9\r\n",
}

REFUSED = TWO_ENDS | {f"host: {name}": head + SIZED for name, head in NOT_ONE_HOST.items()}

TAKEN = {
    "a length": NOTIFY,
    "chunks": START + CODING + CHUNKED,
    "chunks in other letters": START + b"transfer-encoding: Chunked\r\n" + CHUNKED,
    "HTTP/1.0": HOSTLESS.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Connection: keep-alive\r\n" + SIZED,
    "an empty host": HOSTLESS + b"Host:\r\n" + SIZED,
    "an IPv6 host": HOSTLESS + b"HOST: [::1]:8080\r\n" + SIZED,
    "a host with an underscore": HOSTLESS + b"Host: my_host.example.:80\r\n" + SIZED,
    "an offer to upgrade": START + LENGTH + JAVA + SIZED,
    "an offer to upgrade, and chunks": START + JAVA + CODING + CHUNKED,
    "an offer of WebSocket": START + b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n" + LENGTH + SIZED,
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[tuple[GatewayParts, int]]:
    parts = GatewayParts(GatewaySettings(host=EVERYWHERE))  # on loopback other host names are refused
    with served(parts) as port:
        yield parts, port


def answers(port: int, sent: bytes, most: int) -> list[bytes]:
    """Up to `most` answers."""
    return exchange(port, sent, times=most).split(b"HTTP/1.1 ")[1:]


@pytest.mark.parametrize("name", REFUSED)
def test_no_hidden_request_is_read(gateway: tuple[GatewayParts, int], name: str) -> None:
    parts, port = gateway
    before = len(parts.notifications.accepted)
    (answer,) = answers(port, REFUSED[name] + NOTIFY, 99)
    assert answer.startswith(b"400 ")
    assert b"connection: close" in answer
    assert (b"one Host header" in answer) == name.startswith("host")
    assert len(parts.notifications.accepted) == before


@pytest.mark.parametrize("name", TAKEN)
def test_unambiguous_requests_are_accepted(gateway: tuple[GatewayParts, int], name: str) -> None:
    parts, port = gateway
    before = len(parts.notifications.accepted)
    found = [each[:3] for each in answers(port, TAKEN[name] + NOTIFY, 2)]
    assert found == [b"202"] * (1 if name == "HTTP/1.0" else 2)
    assert len(parts.notifications.accepted) == before + len(found)


def test_trailers_are_ignored(gateway: tuple[GatewayParts, int]) -> None:
    parts, port = gateway
    before = len(parts.notifications.accepted)
    trailer = CHUNKED[:-2] + b"Authorization: Basic eA==\r\nContent-Length: 0\r\n\r\n"
    found = [each[:3] for each in answers(port, START + CODING + trailer + NOTIFY, 2)]
    accepted = len(parts.notifications.accepted) - before
    assert found.count(b"202") == accepted
    assert accepted == 2 or b"400" in found
