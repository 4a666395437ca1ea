"""The fold over pull points."""

from __future__ import annotations

import itertools

from arborcast.topic_model.projections.pull_points import PullPoints
from arborcast.topic_model.records.control import (
    ControlRecord,
    PullPointEnded,
    PullPointRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    decode,
    encode,
)
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath


def folded(*records: ControlRecord) -> PullPoints:
    points = PullPoints()
    for record in records:
        points.apply(record)
    return points


def subscription(identifier: str, pull_point: str) -> SubscriptionRecord:
    return SubscriptionRecord(Subscription(identifier, EndpointReference("http://h/p"), pull_point=pull_point))


def test_a_pull_point_is_there_until_it_ends() -> None:
    point = PullPointRecord("p", "http://h/p")
    assert folded(point).get("p") == point
    assert folded(point).exists("p")
    for end in (PullPointEnded("p", "destroyed", 1), Tombstone("pull:p")):
        ended = folded(point, end)
        assert ended.get("p") is None
        assert not ended.exists("p")
        assert len(ended) == 0


def test_of_one_name_the_oldest_counts_in_whatever_order_they_come() -> None:
    older = PullPointRecord("b", "http://h/b", "orders", 1)
    newer = PullPointRecord("a", "http://h/a", "orders", 2)
    for order in itertools.permutations((older, newer)):
        points = folded(*order)
        assert points.named("orders") == older
        points.apply(Tombstone("pull:b"))
        assert points.named("orders") == newer
        points.apply(Tombstone("pull:a"))
        assert points.named("orders") is None


def test_a_record_replaces_the_one_before() -> None:
    points = folded(PullPointRecord("a", "http://h/a", "one"), PullPointRecord("a", "http://h/a", "two"))
    assert points.named("one") is None
    assert points.named("two") == points.get("a")
    assert len(points) == 1


def test_it_knows_who_fills_a_pull_point() -> None:
    points = folded(subscription("s", "p"), subscription("t", "p"), subscription("u", ""))
    assert points.subscriptions_of("p") == {"s", "t"}
    points.apply(SubscriptionEnded("s", "unsubscribed", 1))
    assert points.subscriptions_of("p") == {"t"}
    points.apply(subscription("t", "q"))
    assert points.subscriptions_of("p") == set()
    assert points.subscriptions_of("q") == {"t"}
    points.apply(Tombstone("sub:t"))
    assert points.subscriptions_of("q") == set()


def test_subscriptions_to_what_is_gone_are_orphans() -> None:
    points = folded(PullPointRecord("p", "http://h/p"), subscription("s", "p"), subscription("own", "own"))
    assert points.orphans() == []
    points.apply(Tombstone("pull:p"))
    assert points.orphans() == ["s"]
    points.apply(Tombstone("sub:s"))
    assert points.orphans() == []


def test_the_records_survive_the_log() -> None:
    for record in (PullPointRecord("p", "http://h/p", "orders", 5), PullPointEnded("p", "destroyed", 6)):
        key, value = encode(record)
        assert key == b"pull:p"
        assert decode(key, value) == record


def test_the_workers_see_which_subscriptions_are_pulled() -> None:
    record = subscription("s", "p")
    table = RoutingTable()
    table.apply(record)
    assert table.match(TopicPath("a")) == (record.subscription,)
    base = Snapshot.build(table.checkpoint())
    assert SnapshotView(base, None).match(TopicPath("a")) == (record.subscription,)
