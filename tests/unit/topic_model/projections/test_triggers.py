"""Triggers in the routing table: what holds for the topic that they publish to is what its facts say now."""

from __future__ import annotations

from arborcast.topic_model.records.control import (
    ControlRecord,
    Tombstone,
    TopicPolicy,
    TopicRecord,
    TopicRemoved,
    TriggerEnded,
    TriggerRecord,
    decode,
    encode,
    ending_trigger,
    subscription_of,
    trigger_key,
)
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import History, RoutingTable
from arborcast.topic_model.subscriptions import TriggerTarget
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_trigger

TO = TopicPath("to")
MADE = TriggerRecord(make_trigger("one", "on//.", "to"))
FACTS = TopicRecord(
    TO, message_types=("x", "y"), policy=TopicPolicy(retain=True, priority=900, routing="far reliable near")
)


def folded(*records: ControlRecord) -> RoutingTable:
    table = RoutingTable(history=History())
    for offset, record in enumerate(records):
        table.apply(decode(*encode(record)), offset)
    return table


def target(table: RoutingTable) -> TriggerTarget | None:
    found = table.get("one")
    assert found is not None
    assert found.trigger is not None
    return found.trigger.target


def test_what_holds_for_its_topic_follows_the_facts_in_whatever_order_the_records_come() -> None:
    wanted = TriggerTarget(True, 100, True, ("x", "y"))
    assert target(folded(MADE)) is None
    assert target(folded(FACTS, MADE)) == target(folded(MADE, FACTS)) == wanted
    assert target(folded(MADE, FACTS, TopicRecord(TO))) == TriggerTarget()
    assert target(folded(MADE, FACTS, TopicRemoved(TO))) is None
    assert target(folded(MADE, TopicRecord(TopicPath("other")))) is None


def test_it_goes_with_all_that_is_its_own_and_is_no_subscription_to_those_who_count() -> None:
    table = folded(MADE, TriggerRecord(make_trigger("two", "on", "to")))
    assert (table.statistics().subscriptions, len(table.triggers)) == (0, 2)
    assert [each.id for each in table.triggers.into(TO)] == ["one", "two"]
    named = table.triggers.named("one")
    assert named is not None
    for record in ending_trigger("one", "removed", 5):
        table.apply(record, 9)
    assert (table.get("one"), table.triggers.named("one")) == (None, None)
    table.apply(Tombstone(trigger_key("two")), 12)
    assert (len(table.triggers), table.triggers.into(TO), table.match(TopicPath("on"))) == (0, [], ())
    (ended,) = table.recipients().of(Notification("n", TopicPath("on/it"), b"", 1, control=9)).ended
    assert ended.id == "one"


def test_its_records_are_about_it() -> None:
    for record in (MADE, TriggerEnded("one", "removed", 1)):
        key, value = encode(record)
        assert key == b"trigger:one"
        assert value is not None
        assert subscription_of(record) == "one"
    assert subscription_of(Tombstone("trigger:one")) == "one"
    assert b"target" not in (encode(MADE)[1] or b"")
    assert Tombstone("susp:one") in ending_trigger("one", "removed", 1), "a suspension of it goes with it"
