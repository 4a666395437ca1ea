from __future__ import annotations

import contextlib
import dataclasses
import socket
import time

import pytest

from arborcast.ingest.access.gate import Gate
from arborcast.ingest.access.rates import Buckets, Rates, client_key
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.settings import TopicSettings
from arborcast.wire.errors import TooManyRequests
from tests.support import legacy_messages as legacy
from tests.support.gateway_parts import GatewayParts
from tests.support.make import Clock
from tests.support.served_app import connected, everything, exchange, served
from tests.support.soap_messages import envelope, message, notify, subscribe, topic_expression
from tests.support.waiting import wait_until


def limited(clock: Clock, **limits: float) -> Rates:
    return Rates(dataclasses.replace(LimitSettings(), **limits), clock)  # type: ignore[arg-type]


def test_a_burst_then_the_rate() -> None:
    clock = Clock()
    rates = limited(clock, requests_per_s=2.0, request_burst=3)
    for _ in range(3):
        rates.request("a")
    with pytest.raises(TooManyRequests, match="2 requests per second") as refused:
        rates.request("a")
    assert refused.value.headers() == [(b"retry-after", b"1")]
    rates.request("b")
    clock.now += 0.5
    rates.request("a")
    with pytest.raises(TooManyRequests):
        rates.request("a")


def test_bytes_beyond_the_burst_delay_the_next_request() -> None:
    clock = Clock()
    rates = limited(clock, bytes_per_s=1000, byte_burst=2000)
    rates.request("a")
    rates.received("a", 6000)
    with pytest.raises(TooManyRequests) as refused:
        rates.request("a")
    assert refused.value.retry_after_s == 5  # 4000 bytes too many, plus one
    clock.now += 4.002
    rates.request("a")


def test_the_number_of_buckets_is_bounded() -> None:
    buckets = Buckets(1.0, 1.0, keys=3)
    for number in range(1000):
        buckets.take(str(number), 1, 0.0)
    assert (len(buckets._filled), buckets.missing_s("999", 0.0), buckets.missing_s("0", 0.0)) == (3, 1, 0)
    buckets = Buckets(rate=1.0, size=2.0, keys=10)
    for amount in (1, 1, -1):
        buckets.take("a", amount, 0.0)
    assert (len(buckets._filled), buckets.missing_s("a", 0.0)) == (1, 0.0)
    buckets.take("a", -1, 0.5)
    assert len(buckets._filled) == 0
    buckets.take("a", 2, 0.5)
    assert buckets.missing_s("a", 0.5) == 1.0


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_the_key_of_a_client(host: str, key: str) -> None:
    assert client_key(host) == key


def test_the_deliveries_that_a_publisher_causes_are_limited() -> None:
    clock = Clock()
    parts = GatewayParts()
    parts.gateway.gate = Gate(limited(clock, deliveries_per_minute=6))
    for number, topic in enumerate(("t:a//.", "t:a//.", "t:a//.", "t:b")):
        parts.post(envelope(subscribe(f"http://127.0.0.1:9/{number}", topic_expression(topic))))
    few, many, none = (envelope(notify(*map(message, names))) for names in (["t:b"], ["t:a", "t:a/b"], ["t:c"]))
    assert [parts.post(few).status, parts.post(many).status] == [202, 202]  # 7 of 6: the excess delays later requests
    refused = parts.post(few)
    assert (refused.status, refused.headers[b"retry-after"]) == (429, b"20")
    assert "6 deliveries per minute" in refused.reason
    # Above the limit a request is refused before its deliveries are counted, even if it has none.
    old = legacy.wsn_process(legacy.notify("a:b", "x"))
    assert [parts.post(none).status, parts.post(old).status] == [429, 429]
    accepted = len(parts.notifications.accepted)
    clock.now += 20
    assert [parts.post(none).status, parts.post(old).status] == [202, 200]
    assert len(parts.notifications.accepted) == accepted + 2


def test_current_messages_count_as_deliveries() -> None:
    parts = GatewayParts(topics=TopicSettings(retain_all=True))
    parts.gateway.gate = Gate(limited(Clock(), deliveries_per_minute=6))
    for number in range(4):
        assert parts.post(envelope(notify(message(f"t:a/b{number}")))).status == 202
    with_current, plain = (
        envelope(subscribe("http://127.0.0.1:9/", topic_expression("t:a//."), policy=policy))
        for policy in ("<p:CurrentMessage/>", "")
    )
    assert [parts.post(with_current).status for _ in range(3)] == [200, 200, 429]
    assert len([each for each in parts.notifications.accepted if each.only]) == 8
    assert parts.post(plain).status == 200, "no deliveries"


# Through real sockets.

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_connections_of_one_address() -> None:
    with served(GatewayParts(), access=LimitSettings(connections_per_client=2)) as port:
        with contextlib.ExitStack() as open_ones:
            for _ in range(2):
                one = open_ones.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                one.sendall(LIVE)
                assert one.recv(4096).startswith(b"HTTP/1.1 200")
            refused = exchange(port, LIVE)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in refused
        wait_until(lambda: exchange(port, LIVE).startswith(b"HTTP/1.1 200"))


def test_refused_connections_take_no_place_of_others(parts: GatewayParts) -> None:
    access = LimitSettings(connections_per_client=1)
    with served(parts, access=access, max_connections=3) as port, contextlib.ExitStack() as open_ones:
        many = [open_ones.enter_context(connected(port, "127.0.0.2")) for _ in range(5)]
        many[0].sendall(LIVE)
        assert many[0].recv(4096).startswith(b"HTTP/1.1 200")
        for refused in many[1:]:
            assert everything(refused).startswith(b"HTTP/1.1 503")
        with connected(port) as other:
            other.sendall(LIVE)
            assert other.recv(4096).startswith(b"HTTP/1.1 200")


class _Large:
    def wsdl(self, *_: object) -> bytes:
        return b"<a>" + b"x" * 32_000_000 + b"</a>"  # more than the socket buffers of both sides


def test_a_client_that_does_not_read_is_disconnected(parts: GatewayParts) -> None:
    parts.gateway.descriptions = _Large()  # type: ignore[assignment]  # the only method used
    with served(parts, access=LimitSettings(send_timeout_s=0.2)) as port, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET /wsn/NotificationBroker?wsdl HTTP/1.1\r\nHost: localhost\r\n\r\n")
        deadline = time.monotonic() + 120
        # The client reads nothing: the end of the connection is an error of send.
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                client.sendall(b"x")
                time.sleep(0.02)
        assert time.monotonic() < deadline, "still connected"
