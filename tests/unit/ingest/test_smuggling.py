"""Requests that a proxy in front of us and we might cut at different places: refused, and nothing behind them is read.

Whoever gets a second request past a proxy inside the first one speaks with the proxy's authority. So of a request whose
end can be read in two ways none is carried out, and the connection ends.
"""

from __future__ import annotations

import socket

import pytest

from arborcast.core.security.ip_addresses import EVERYWHERE
from arborcast.ingest.settings import GatewaySettings
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts
from tests.support.served_app import served

pytestmark = pytest.mark.slow

BODY = soap.envelope(soap.notify())
SIZE = len(BODY)
POST = b"POST /wsn/NotificationBroker HTTP/1.1\r\nHost: localhost\r\n"
LENGTH = b"Content-Length: %d\r\n" % SIZE
CHUNKED = b"%x\r\n" % SIZE + BODY + b"\r\n0\r\n\r\n"

# What the attacker wants to be read as a request of its own.
HIDDEN = POST + LENGTH + b"\r\n" + BODY


def answer(sent: bytes, answers: int = 0) -> tuple[bytes, GatewayParts]:
    """All that comes back until the other side ends it, or so many answers, and what has happened."""
    parts = GatewayParts(GatewaySettings(host=EVERYWHERE))  # on loopback, names of others are refused
    received = b""
    with served(parts) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(sent)
        while not answers or received.count(b"\r\n\r\n") < answers:
            data = one.recv(65_536)
            if not data:
                break
            received += data
    return received, parts


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(POST + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN, id="CL and TE"),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNKED + HIDDEN, id="TE and CL"),
        pytest.param(POST + b"Content-Length: 3\r\n" + LENGTH + b"\r\n" + BODY + HIDDEN, id="two lengths"),
        pytest.param(POST + LENGTH + b"Content-Length: 0\r\n\r\n" + HIDDEN, id="the second length is 0"),
        pytest.param(POST + LENGTH * 2 + b"\r\n" + BODY + HIDDEN, id="one length twice"),
        pytest.param(POST + b"Content-Length: %d, %d\r\n\r\n" % (SIZE, SIZE) + BODY + HIDDEN, id="a list of lengths"),
        pytest.param(POST + b"Content-Length: +%d\r\n\r\n" % SIZE + BODY + HIDDEN, id="a length with a sign"),
        pytest.param(POST + b"Content-Length: -1\r\n\r\n" + HIDDEN, id="a negative length"),
        pytest.param(POST + b"Content-Length: 0x%x\r\n\r\n" % SIZE + BODY + HIDDEN, id="a hexadecimal length"),
        pytest.param(POST + b"Content-Length: %d 1\r\n\r\n" % SIZE + BODY + HIDDEN, id="a length with a space"),
        pytest.param(POST + b"Content-Length: 18446744073709551616\r\n\r\n" + HIDDEN, id="a length beyond 64 bits"),
        pytest.param(POST + b"Content-Length : %d\r\n\r\n" % SIZE + BODY + HIDDEN, id="a space before the colon"),
        pytest.param(POST + b"Content-Length:\r\n %d\r\n\r\n" % SIZE + BODY + HIDDEN, id="a folded length"),
        pytest.param(POST + b"X: a\r\n Content-Length: 0\r\n" + LENGTH + b"\r\n" + BODY + HIDDEN, id="a folded header"),
        pytest.param(POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKED + HIDDEN, id="a folded coding"),
        pytest.param(POST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED + HIDDEN, id="an unknown coding"),
        pytest.param(POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKED + HIDDEN, id="chunked not last"),
        pytest.param(
            POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + CHUNKED + HIDDEN,
            id="two codings",
        ),
        pytest.param(POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKED + HIDDEN, id="a control before it"),
        pytest.param(
            POST + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKED + HIDDEN, id="a space before the coding's"
        ),
        pytest.param(POST + b"X: a\rTransfer-Encoding: chunked\r\n" + LENGTH + b"\r\n" + BODY + HIDDEN, id="a bare CR"),
        pytest.param(POST + b"X: a\x00b\r\n" + LENGTH + b"\r\n" + BODY + HIDDEN, id="a NUL"),
        pytest.param(POST + b": x\r\n" + LENGTH + b"\r\n" + BODY + HIDDEN, id="a header without a name"),
        pytest.param(
            POST + b"Transfer-Encoding: chunked\r\n\r\n%xg\r\n" % SIZE + BODY + b"\r\n0\r\n\r\n" + HIDDEN,
            id="a chunk size that is none",
        ),
        pytest.param(
            POST + b"Transfer-Encoding: chunked\r\n\r\n0x%x\r\n" % SIZE + BODY + b"\r\n0\r\n\r\n" + HIDDEN,
            id="a chunk size with 0x",
        ),
        pytest.param(
            POST + b"Transfer-Encoding: chunked\r\n\r\n-%x\r\n" % SIZE + BODY + b"\r\n0\r\n\r\n" + HIDDEN,
            id="a chunk size with a sign",
        ),
        pytest.param(
            POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % SIZE + BODY + b"xx0\r\n\r\n" + HIDDEN,
            id="a chunk longer than it says",
        ),
        pytest.param(
            POST + b"Transfer-Encoding: chunked\r\n\r\n1%016x\r\n" % SIZE + BODY + b"\r\n0\r\n\r\n" + HIDDEN,
            id="a chunk size beyond 64 bits",
        ),
    ],
)
def test_no_request_hides_behind_another(sent: bytes) -> None:
    received, parts = answer(sent)
    assert received.startswith(b"HTTP/1.1 400 "), received[:200]
    assert received.count(b"HTTP/1.1 ") == 1, "nothing behind it is answered"
    assert b"connection: close" in received
    assert parts.notifications.accepted == []


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(POST + LENGTH + b"\r\n" + BODY, id="a length"),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED, id="chunks"),
        pytest.param(POST + b"transfer-encoding: Chunked\r\n\r\n" + CHUNKED, id="chunks in other letters"),
    ],
)
def test_what_can_be_read_in_one_way_only_is_taken(sent: bytes) -> None:
    received, parts = answer(sent + HIDDEN, answers=2)
    assert [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]] == [b"202", b"202"]
    assert len(parts.notifications.accepted) == 2


def test_trailers_change_nothing() -> None:
    trailer = CHUNKED[:-2] + b"Authorization: Basic eA==\r\nContent-Length: 0\r\n\r\n"
    received, parts = answer(POST + b"Transfer-Encoding: chunked\r\n\r\n" + trailer + HIDDEN, answers=2)
    assert received.count(b"HTTP/1.1 202 ") == len(parts.notifications.accepted) <= 2
    if len(parts.notifications.accepted) < 2:
        assert b"HTTP/1.1 400 " in received


WITHOUT_HOST = POST.replace(b"Host: localhost\r\n", b"") + LENGTH
JAVA = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(WITHOUT_HOST, id="none"),
        pytest.param(WITHOUT_HOST + JAVA, id="none, with an offer to upgrade"),
        pytest.param(POST + b"host: h\r\n" + LENGTH, id="one twice"),
        pytest.param(POST + LENGTH + b"Host: inside\r\n", id="two"),
        pytest.param(POST + LENGTH + JAVA + b"Host: inside\r\n", id="two, with an offer to upgrade"),
        pytest.param(POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Host: inside\r\n" + LENGTH, id="two in HTTP/1.0"),
        pytest.param(WITHOUT_HOST + b"Host: a b\r\n", id="two words"),
        pytest.param(WITHOUT_HOST + b"Host: a/b\r\n", id="a path"),
        pytest.param(WITHOUT_HOST + b"Host: a@b\r\n", id="a user"),
        pytest.param(WITHOUT_HOST + b"Host: h:http\r\n", id="a port in words"),
        pytest.param(WITHOUT_HOST + b"Host: h\xc3\xa9\r\n", id="outside ASCII"),
    ],
)
def test_a_request_names_one_host(head: bytes) -> None:
    received, parts = answer(head + b"\r\n" + BODY + HIDDEN)
    assert received.startswith(b"HTTP/1.1 400 "), received[:200]
    assert received.count(b"HTTP/1.1 ") == 1, "nothing behind it is answered"
    assert b"one Host header" in received
    assert parts.notifications.accepted == []


@pytest.mark.parametrize(
    "head",
    [
        WITHOUT_HOST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Connection: keep-alive\r\n",
        WITHOUT_HOST + b"Host:\r\n",
        WITHOUT_HOST + b"HOST: [::1]:8080\r\n",
        WITHOUT_HOST + b"Host: my_host.example.:80\r\n",
        POST + LENGTH + JAVA,
    ],
)
def test_hosts_as_they_may_be(head: bytes) -> None:
    received, parts = answer(head + b"\r\n" + BODY, answers=1)
    assert b" 202 " in received.partition(b"\r\n")[0]
    assert len(parts.notifications.accepted) == 1
