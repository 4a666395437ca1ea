from __future__ import annotations

import dataclasses

import pytest

from arborcast.ingest.access.gate import Gate
from arborcast.ingest.access.rates import Buckets, PeerConnections, Rates, client_key
from arborcast.ingest.access.settings import LimitSettings
from arborcast.ingest.settings import TopicSettings
from arborcast.topic_model.namespaces import ARBORCAST_POLICY
from arborcast.wire.errors import TooManyRequests
from tests.support import legacy_messages as legacy
from tests.support.gateway_parts import GatewayParts
from tests.support.make import Clock
from tests.support.soap_messages import envelope, message, notify, subscribe, topic_expression


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
    rates.request("b")  # somebody else pays for nothing of it
    clock.now += 0.5
    rates.request("a")
    with pytest.raises(TooManyRequests):
        rates.request("a")


def test_bytes_beyond_the_burst_are_paid_for_afterwards() -> None:
    clock = Clock()
    rates = limited(clock, bytes_per_s=1000, byte_burst=2000)
    rates.request("a")
    rates.received("a", 6000)
    with pytest.raises(TooManyRequests) as refused:
        rates.request("a")
    assert refused.value.retry_after_s == 5  # 4000 too many, and one to go on with
    clock.now += 4.002
    rates.request("a")


def test_only_so_many_clients_are_remembered() -> None:
    buckets = Buckets(1.0, 1.0, keys=3)
    for number in range(1000):
        buckets.take(str(number), 1, 0.0)
    assert len(buckets) == 3
    assert buckets.missing_s("999", 0.0) == 1
    assert buckets.missing_s("0", 0.0) == 0


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::ffff", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_what_counts_as_one_client(host: str, key: str) -> None:
    assert client_key(host) == key


def test_connections_are_counted_and_forgotten() -> None:
    peers = PeerConnections(2)
    assert [peers.opened("192.0.2.1") for _ in range(3)] == [False, False, True]
    assert peers.opened("192.0.2.2") is False
    for _ in range(3):
        peers.closed("192.0.2.1")
    peers.closed("192.0.2.2")
    assert len(peers) == 0


def test_over_the_rate_nothing_is_accepted_and_the_answer_says_when() -> None:
    parts = GatewayParts()
    parts.gateway.gate = Gate(limited(Clock(), requests_per_s=1.0, request_burst=1))
    assert parts.post(envelope(notify())).status == 202
    answer = parts.post(envelope(notify()))
    assert answer.status == 429
    assert answer.headers[b"retry-after"] == b"1"
    assert "1 requests per second" in answer.reason
    assert len(parts.notifications.accepted) == 1
    assert parts.get("/health/live").status == 200


def test_what_a_publisher_causes_is_limited() -> None:
    clock = Clock()
    parts = GatewayParts()
    parts.gateway.gate = Gate(limited(clock, deliveries_per_minute=6))
    for number in range(3):
        parts.post(envelope(subscribe(f"http://127.0.0.1:9/{number}", topic_expression("t:a//."))))
    few, many, nobody = notify(message("t:b")), notify(message("t:a"), message("t:a/b")), notify(message("t:c"))
    parts.post(envelope(subscribe("http://127.0.0.1:9/b", topic_expression("t:b"))))
    assert parts.post(envelope(few)).status == 202
    assert parts.post(envelope(many)).status == 202  # 7 of 6: paid for afterwards
    refused = parts.post(envelope(few))
    assert (refused.status, refused.headers[b"retry-after"]) == (429, b"20")
    assert "6 deliveries per minute" in refused.reason
    # Somebody over the limit is refused before anything is counted, whoever listens.
    assert parts.post(envelope(nobody)).status == 429
    old = legacy.wsn_process(legacy.notify("a:b", "x"))
    assert parts.post(old).status == 429
    accepted = len(parts.notifications.accepted)
    clock.now += 20
    assert parts.post(envelope(nobody)).status == 202
    assert parts.post(old).status == 200
    assert len(parts.notifications.accepted) == accepted + 2


def test_current_messages_that_a_subscriber_asks_for_are_limited_as_what_a_publisher_causes() -> None:
    parts = GatewayParts(topics=TopicSettings(retain_all=True))
    parts.gateway.gate = Gate(limited(Clock(), deliveries_per_minute=6))
    for number in range(4):
        assert parts.post(envelope(notify(message(f"t:a/b{number}")))).status == 202
    wanted = f'<wsnt:SubscriptionPolicy><p:CurrentMessage xmlns:p="{ARBORCAST_POLICY}"/></wsnt:SubscriptionPolicy>'
    asking = envelope(subscribe("http://127.0.0.1:9/", topic_expression("t:a//."), more=wanted))
    assert [parts.post(asking).status for _ in range(3)] == [200, 200, 429]
    assert len([each for each in parts.notifications.accepted if each.only]) == 8
    plain = envelope(subscribe("http://127.0.0.1:9/", topic_expression("t:a//.")))
    assert parts.post(plain).status == 200, "nothing is sent for it"


def test_what_is_given_back_is_forgotten_when_the_bucket_is_full_again() -> None:
    buckets = Buckets(rate=1.0, size=2.0, keys=10)
    buckets.take("a", 1, 0.0)
    buckets.take("a", 1, 0.0)
    buckets.take("a", -1, 0.0)
    assert (len(buckets), buckets.missing_s("a", 0.0)) == (1, 0.0)
    buckets.take("a", -1, 0.5)
    assert len(buckets) == 0
    buckets.take("a", 2, 0.5)
    assert buckets.missing_s("a", 0.5) == 1.0
