"""The routing table: examples; properties of all histories are in test_properties."""

from __future__ import annotations

import cProfile
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from arborcast.topic_model.expressions.xpath import XPathPattern, parse_xpath
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    TopicPolicy,
    TopicRecord,
    TopicRemoved,
    TriggerRecord,
    ending_trigger,
)
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.subscriptions import DeliveryPolicy, TriggerTarget
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.routing import make_subscription, make_trigger, table_of


def subscribe(table: RoutingTable, subscription_id: str, *topics: str, **facts: Any) -> None:
    table.apply(SubscriptionRecord(make_subscription(subscription_id, *topics, **facts)))


def unsubscribe(table: RoutingTable, subscription_id: str) -> None:
    table.apply(SubscriptionEnded(subscription_id, "unsubscribed", 0))


def ids(table: RoutingTable, path: str) -> list[str]:
    return [subscription.id for subscription in table.match(TopicPath(path))]


def test_a_topic_of_thousands_of_levels() -> None:
    table = RoutingTable()
    subscribe(table, "s1", "{}//.")
    subscribe(table, "s2", "a/a//.")
    assert ids(table, "/".join("a" * 2_000)) == ["s2", "s1"]


def test_members_are_in_the_order_of_their_creation() -> None:
    table = RoutingTable()
    for name, created_ms in (("new", 3), ("old", 1), ("b-same", 2), ("a-same", 2)):
        subscribe(table, name, "a", created_ms=created_ms)
    assert ids(table, "a") == ["old", "a-same", "b-same", "new"]


def test_equal_answers_are_one_tuple() -> None:
    table = RoutingTable()
    subscribe(table, "s1", "a//.")
    subscribe(table, "s2", "//.")
    first = table.match(TopicPath("a/b"))
    # Siblings without separate subscriptions share one answer.
    assert table.match(TopicPath("a/b")) is table.match(TopicPath("a/other")) is first


def test_no_subscription_traverses_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred alternatives of many `//` over a large tree would be a hundred traversals, in every gateway."""
    table = RoutingTable()
    for number in range(1_000):
        table.apply(TopicRecord(TopicPath("/".join(f"n{number >> shift & 7}" for shift in range(0, 12, 2)))))
    for name in ("children", "descendants", "roots", "paths", "select"):
        monkeypatch.setattr(TopicTree, name, None)
    subscribe(table, "s1", "|".join(f"n{first}//n{second}//n3//x" for first in range(8) for second in range(8)))
    assert ids(table, "n1/n2/n5/n3/x") == ["s1"]
    table.apply(TopicRecord(TopicPath("n1/n2/n3/x")))
    table.apply(TopicRemoved(TopicPath("n1/n2/n3/x")))
    unsubscribe(table, "s1")


def test_xpaths_share_a_topic_set_that_changes_with_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    table, built, paths = RoutingTable(), list[TopicTree](), TopicTree.paths

    def counted(tree: TopicTree) -> Iterator[TopicPath]:
        built.append(tree)
        return iter(paths(tree))

    monkeypatch.setattr(TopicTree, "paths", counted)
    for number in range(3):
        subscribe(table, f"s{number}", parse_xpath(f"//*[not(.//n{number})]", {}).normal)
    for path in ("a/n1/x", "b", "a"):
        table.apply(TopicRecord(TopicPath(path)))
    assert ids(table, "a") == ["s0", "s2"]
    assert ids(table, "b") == ["s0", "s1", "s2"]
    table.apply(TopicRemoved(TopicPath("a/n1/x")))
    assert ids(table, "a") == ["s0", "s1", "s2"]
    table.apply(TopicRemoved(TopicPath("a")))
    table.apply(TopicRecord(TopicPath("a/n2")))
    assert ids(table, "a/n2") == ["s0", "s1", "s2"]
    assert built == [table.topics], "it is most of the time: a second for 150,000 topics"


def test_many_new_topics_are_evaluated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    table, tested, matches = RoutingTable(), list[TopicPath](), XPathPattern.matches

    def counted(pattern: XPathPattern, path: TopicPath) -> bool:
        tested.append(path)
        return matches(pattern, path)

    monkeypatch.setattr(XPathPattern, "matches", counted)
    subscribe(table, "s", parse_xpath("//x", {}).normal)
    for number in range(2_000):
        table.apply(TopicRecord(TopicPath(f"n{number}/x")))
    table.apply(TopicRemoved(TopicPath("n7/x")))
    assert len(tested) < 200
    assert [ids(table, path) for path in ("n1999/x", "n7/x", "n8/x")] == [["s"], [], ["s"]]
    table.apply(TopicRecord(TopicPath("n7/x")))
    assert tested[-1] == "n7/x"
    assert ids(table, "n7/x") == ["s"]


def test_steps_that_begin_otherwise_cost_nothing() -> None:
    def cost(others: int) -> int:
        """The number of function calls, also of the interpreter, for one match."""
        table = RoutingTable()
        subscribe(table, "s1", "a//c/d")
        for number in range(others):
            subscribe(table, f"o{number}", parse_normal("|".join(f"a//x{number}y{i}//c/d" for i in range(50))).normal)
        profile = cProfile.Profile()
        found = profile.runcall(table.match, TopicPath("a/b/c/d"))
        assert [each.id for each in found] == ["s1"]
        return sum(each.callcount for each in profile.getstats())

    assert cost(40) <= cost(1) + 10


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
def test_subscriptions_that_name_or_reach_an_unknown_topic(expressions: list[str], named: bool, reached: bool) -> None:
    table = RoutingTable()
    subscribe(table, "s", *expressions)
    path = TopicPath("a/b")
    assert (table.is_named(path), table.is_reached(path)) == (named, reached)
    unsubscribe(table, "s")
    assert (table.is_named(path), table.is_reached(path)) == (False, False)


@pytest.mark.parametrize("normal", ["a//", "xpath:{}", "{urn", "a|", ""])
def test_an_unreadable_filter_selects_nothing(normal: str, caplog: pytest.LogCaptureFixture) -> None:
    table = RoutingTable()
    with caplog.at_level(logging.ERROR):
        subscribe(table, "s1", normal)
    assert "s1" in caplog.text
    assert ids(table, "a") == []
    assert table.get("s1") is not None
    unsubscribe(table, "s1")
    assert table == RoutingTable()


@pytest.mark.parametrize("path", ["", "/", "a//b", "a/", "{urn:t", "a b", "{%%}a"])
def test_a_topic_without_a_canonical_path_is_left_out(path: str, caplog: pytest.LogCaptureFixture) -> None:
    assert len(table_of(TopicRecord(TopicPath(path)), TopicRemoved(TopicPath(path))).topics) == 0
    assert "not canonical" in caplog.text


def test_tombstones_of_others_are_ignored() -> None:
    table = RoutingTable()
    subscribe(table, "s1", "a")
    for key in ("pub:1", "pull:1", "sub:", "topic:", "", "sub:unknown", "topic:unknown"):
        table.apply(Tombstone(key))
        assert ids(table, "a") == ["s1"], key


@pytest.mark.parametrize("others", [0, 100], ids=["small", "large"])
def test_equal_subscriptions_are_found(others: int) -> None:
    def equal(*topics: str, **facts: Any) -> str | None:
        found = table.find_equal(make_subscription("other", *topics, created_ms=9, **facts))
        return None if found is None else found.id

    table = RoutingTable()
    assert equal("a") is None
    for number in range(others):
        subscribe(table, f"o{number}", "a", consumer=f"http://{number}/")
    subscribe(table, "second", "a", created_ms=2)
    subscribe(table, "first", "a", created_ms=1, terminates_ms=5, paused=True)
    assert equal("a") == "first"
    other = DeliveryPolicy(priority=1)
    assert [equal("a", consumer="http://else/"), equal("a", policy=other), equal("a", "a//.")] == [None, None, None]
    for expected in ("second", None):
        unsubscribe(table, "first" if expected else "second")
        assert equal("a") == expected
    subscribe(table, "again", "a")
    assert equal("a") == "again"


def test_remembered_answers_are_freed_in_parts() -> None:
    table = RoutingTable()
    for number in range(3_000):
        table.match(TopicPath(f"a/t{number}"))
    assert table.remembered == 3_000
    subscribe(table, "s1", "//.")
    assert table.remembered == 0
    for number in range(3_000):
        assert ids(table, f"a/t{number}") == ["s1"]
    assert table._to_free == []


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
def test_a_change_concerns_the_topics_of_its_selector(expression: str, concerned: list[str], others: list[str]) -> None:
    table = RoutingTable()
    changes: dict[int, ControlRecord] = {
        7: SubscriptionRecord(make_subscription("s", expression)),
        9: SubscriptionEnded("s", "unsubscribed", 0),
    }
    for offset, record in changes.items():
        table.apply(record, offset)
        assert {table.changed_before(TopicPath(each)) for each in concerned} == {offset + 1}
        assert {table.changed_before(TopicPath(each)) for each in others} <= {0}
    table.forget_changes()
    assert table.changed_before(TopicPath("elsewhere")) == 10


def test_many_changes_are_remembered_as_one() -> None:
    table = RoutingTable()
    for number in range(5_000):
        table.apply(SubscriptionRecord(make_subscription(f"s{number}", f"a/t{number}")), number)
        assert table.changed_before(TopicPath(f"a/t{number}")) == number + 1
    assert 0 < table.changed_before(TopicPath("b")) <= 5_000
    assert all(table.changed_before(TopicPath(f"a/t{number}")) >= number + 1 for number in range(0, 5_000, 100))


TO = TopicPath("to")
TRIGGER = TriggerRecord(make_trigger("one", "on//.", "to"))
FACTS = TopicRecord(
    TO, message_types=("x", "y"), policy=TopicPolicy(retain=True, priority=900, routing="far reliable near")
)
TARGET = TriggerTarget(True, 100, True, ("x", "y"))


@pytest.mark.parametrize(
    ("records", "target"),
    [
        ([TRIGGER], None),
        ([FACTS, TRIGGER], TARGET),
        ([TRIGGER, FACTS], TARGET),
        ([TRIGGER, FACTS, TopicRecord(TO)], TriggerTarget()),
        ([TRIGGER, FACTS, TopicRemoved(TO)], None),
        ([TRIGGER, TopicRecord(TopicPath("other"))], None),
    ],
)
def test_a_trigger_follows_the_facts_of_its_topic(records: list[ControlRecord], target: TriggerTarget | None) -> None:
    found = table_of(*records).get("one")
    assert found is not None
    assert found.trigger is not None
    assert found.trigger.target == target


def test_triggers_are_no_subscriptions_and_end_as_a_whole() -> None:
    table = table_of(TRIGGER, TriggerRecord(make_trigger("two", "on", "to")))
    assert (table.statistics().subscriptions, len(table.triggers)) == (0, 2)
    assert [each.id for each in table.triggers.publishing_to(TO)] == ["one", "two"]
    assert table.triggers.named("one") is not None
    for record in ending_trigger("one", "removed", 5):
        table.apply(record, 9)
    assert (table.get("one"), table.triggers.named("one")) == (None, None)
    table.apply(Tombstone.of("trigger", "two"), 12)
    assert (len(table.triggers), table.triggers.publishing_to(TO), ids(table, "on")) == (0, [], [])
    (ended,) = table.recipients().of(Notification("n", TopicPath("on/it"), b"", 1, control=9)).ended
    assert ended.id == "one"
