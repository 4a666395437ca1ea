"""The routing table, one promise at a time; what must hold for all histories is in test_properties."""

from __future__ import annotations

import logging
import sys

import pytest

from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records.control import (
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    TopicRecord,
    TopicRemoved,
)
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.subscriptions import Subscription
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.routing import make_subscription

A, AB, ABC = TopicPath("a"), TopicPath("a/b"), TopicPath("a/b/c")


def subscribe(table: RoutingTable, subscription_id: str, *topics: str, **facts: object) -> Subscription:
    subscription = make_subscription(subscription_id, *topics, **facts)  # type: ignore[arg-type]
    table.apply(SubscriptionRecord(subscription))
    return subscription


def unsubscribe(table: RoutingTable, subscription_id: str) -> None:
    table.apply(SubscriptionEnded(subscription_id, "unsubscribed", 0))


def ids(table: RoutingTable, path: str) -> list[str]:
    return [subscription.id for subscription in table.match(TopicPath(path))]


def test_a_topic_far_too_deep_is_answered_all_the_same() -> None:
    table = RoutingTable()
    subscribe(table, "s1", "{}//.")
    subscribe(table, "s2", "a/a//.")
    assert ids(table, "/".join("a" * 2_000)) == ["s2", "s1"]


def test_members_are_in_the_order_of_their_creation() -> None:
    table = RoutingTable()
    subscribe(table, "new", "a", created_ms=3)
    subscribe(table, "old", "a", created_ms=1)
    subscribe(table, "b-same", "a", created_ms=2)
    subscribe(table, "a-same", "a", created_ms=2)
    assert ids(table, "a") == ["old", "a-same", "b-same", "new"]


def test_the_answer_is_the_same_tuple_until_something_changes() -> None:
    table = RoutingTable()
    subscribe(table, "s1", "a//.")
    subscribe(table, "s2", "//.")
    first = table.match(AB)
    assert table.match(AB) is first
    # Siblings without a subscription of their own share one answer, however many there are.
    assert table.match(TopicPath("a/other")) is first
    unsubscribe(table, "s1")
    assert ids(table, "a/b") == ["s2"]


def test_no_subscription_walks_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred alternatives of many `//` over a large tree would be a hundred walks, in every gateway."""
    table = RoutingTable()
    for number in range(1_000):
        table.apply(TopicRecord(TopicPath("/".join(f"n{number >> shift & 7}" for shift in range(0, 12, 2)))))
    for name in ("children", "descendants", "roots", "paths", "select"):
        monkeypatch.setattr(TopicTree, name, None)
    normal = parse_normal("|".join(f"n{first}//n{second}//n3//x" for first in range(8) for second in range(8))).normal
    subscribe(table, "s1", normal)
    assert ids(table, "n1/n2/n5/n3/x") == ["s1"]
    table.apply(TopicRecord(TopicPath("n1/n2/n3/x")))
    table.apply(TopicRemoved(TopicPath("n1/n2/n3/x")))
    unsubscribe(table, "s1")


def test_steps_that_begin_otherwise_cost_nothing() -> None:
    path = TopicPath("a/b/c/d")

    def cost(others: int) -> int:
        """Calls of all functions, ours and the interpreter's, to find out who wants a topic."""
        table = RoutingTable()
        subscribe(table, "s1", "a//c/d")
        for number in range(others):
            subscribe(table, f"o{number}", parse_normal("|".join(f"a//x{number}y{i}//c/d" for i in range(50))).normal)
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            found = table.match(path)
        finally:
            sys.setprofile(before)
        assert [each.id for each in found] == ["s1"]
        return calls

    assert cost(200) <= cost(1) + 10


@pytest.mark.parametrize(
    ("expressions", "named", "reached"),
    [
        (["a/b"], True, True),
        (["a/b|c"], True, True),
        (["a/b", "a//."], True, True),
        (["a/b", "c|a"], False, False),
        (["a/*"], False, True),
        (["a//."], False, True),
        (["//b"], False, True),
        ([], False, True),
        (["a"], False, False),
    ],
)
def test_a_topic_that_is_not_there_is_named_or_just_reached(expressions: list[str], named: bool, reached: bool) -> None:
    table = RoutingTable()
    subscribe(table, "s", *expressions)
    path = TopicPath("a/b")
    assert (table.is_named(path), table.is_reached(path)) == (named, reached)
    table.apply(SubscriptionEnded("s", "unsubscribed", 0))
    assert (table.is_named(path), table.is_reached(path)) == (False, False)


@pytest.mark.parametrize("normal", ["a//", "xpath:{}", "{urn", "a|", ""])
def test_a_filter_that_cannot_be_read_selects_nothing_and_stops_nothing(
    normal: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = RoutingTable()
    with caplog.at_level(logging.ERROR):
        table.apply(SubscriptionRecord(make_subscription("s1", normal)))
    assert "s1" in caplog.text
    assert ids(table, "a") == []
    assert table.get("s1") is not None
    unsubscribe(table, "s1")
    assert table == RoutingTable()


@pytest.mark.parametrize("path", ["", "/", "a//b", "a/", "{urn:t", "a b"])
def test_a_topic_without_a_canonical_path_is_left_out(path: str, caplog: pytest.LogCaptureFixture) -> None:
    table = RoutingTable()
    table.apply(TopicRecord(TopicPath(path)))
    table.apply(TopicRemoved(TopicPath(path)))
    assert len(table.topics) == 0
    assert "not canonical" in caplog.text


@pytest.mark.parametrize("key", ["pub:1", "pull:1", "sub:", "topic:", "", "sub:unknown", "topic:unknown"])
def test_tombstones_of_others_are_passed_over(key: str) -> None:
    table = RoutingTable()
    subscribe(table, "s1", "a")
    table.apply(Tombstone(key))
    assert ids(table, "a") == ["s1"]


def test_equal_subscriptions_are_found() -> None:
    table = RoutingTable()
    assert table.find_equal(make_subscription("other", "a")) is None
    subscribe(table, "second", "a", created_ms=2)
    subscribe(table, "first", "a", created_ms=1, terminates_ms=5, paused=True)
    found = table.find_equal(make_subscription("other", "a", created_ms=9))
    assert found is not None
    assert found.id == "first"
    assert table.find_equal(make_subscription("other", "a", consumer="http://else/")) is None
    assert table.find_equal(make_subscription("other", "a", priority=1)) is None
    assert table.find_equal(make_subscription("other", "a", "a//.")) is None


def test_equal_subscriptions_are_found_in_large_groups_too() -> None:
    table = RoutingTable()
    for number in range(100):
        subscribe(table, f"s{number:02}", "a", consumer=f"http://{number % 50}/")
    wanted = make_subscription("other", "a", consumer="http://7/")
    for expected in ("s07", "s57", None):
        found = table.find_equal(wanted)
        assert (found and found.id) == expected
        if found:
            unsubscribe(table, found.id)
    subscribe(table, "again", "a", consumer="http://7/")
    found = table.find_equal(wanted)
    assert found is not None
    assert found.id == "again"


def test_what_is_remembered_of_answers_is_freed_bit_by_bit() -> None:
    table = RoutingTable()
    for number in range(3_000):
        table.match(TopicPath(f"a/t{number}"))
    assert table.remembered == 3_000
    subscribe(table, "s1", "//.")
    assert table.remembered == 0
    for number in range(3_000):
        assert ids(table, f"a/t{number}") == ["s1"]
    assert table._graveyard == []
