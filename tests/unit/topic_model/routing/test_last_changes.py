"""Which topics a change of subscriptions may concern, and which it leaves alone."""

from __future__ import annotations

import pytest

from arborcast.topic_model.records.control import SubscriptionEnded, SubscriptionRecord
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_subscription


@pytest.mark.parametrize(
    ("expression", "concerned", "others"),
    [
        ("a/b", ["a/b"], ["a", "a/b/c", "a/bb", "d"]),
        ("a/b//.", ["a/b", "a/b/c", "a/b/c/d"], ["a", "a/bb", "d"]),
        ("a/b//*", ["a/b/c", "a/b/c/d"], ["a", "a/bb", "d"]),
        ("a/*", ["a/b", "a/bb"], ["d", "{urn:t}a/b"]),
        ("{urn:t}//.", ["{urn:t}a", "{urn:t}a/b"], ["a", "{urn:tt}a"]),
        ("{urn:t}*", ["{urn:t}a"], ["a", "{urn:tt}a"]),
        ("//.", ["a", "{urn:t}a/b"], []),
        ("*", ["a", "{urn:t}a"], []),
        ("a//c", ["a/b/c"], []),
    ],
)
def test_a_change_concerns_what_its_selector_may_select(
    expression: str, concerned: list[str], others: list[str]
) -> None:
    table = RoutingTable()
    table.apply(SubscriptionRecord(make_subscription("s", expression)), 7)
    assert {table.changed_before(TopicPath(each)) for each in concerned} == {8}
    assert {table.changed_before(TopicPath(each)) for each in others} <= {0}
    table.apply(SubscriptionEnded("s", "unsubscribed", 0), 9)
    assert {table.changed_before(TopicPath(each)) for each in concerned} == {10}
    assert {table.changed_before(TopicPath(each)) for each in others} <= {0}


def test_many_changes_are_remembered_as_one() -> None:
    table = RoutingTable()
    for number in range(5_000):
        table.apply(SubscriptionRecord(make_subscription(f"s{number}", f"a/t{number}")), number)
        assert table.changed_before(TopicPath(f"a/t{number}")) == number + 1
    last = table.changed_before(TopicPath("b"))
    assert 0 < last <= 5_000
    assert all(table.changed_before(TopicPath(f"a/t{number}")) >= number + 1 for number in range(0, 5_000, 100))


def test_what_a_log_no_longer_says_may_concern_any_topic() -> None:
    table = RoutingTable()
    table.apply(SubscriptionRecord(make_subscription("s", "a")), 41)
    table.forget_changes()
    assert table.changed_before(TopicPath("b")) == 42
