"""Properties of all histories of control records."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from arborcast.topic_model.patterns.alternatives import Reach
from arborcast.topic_model.patterns.patterns import parse_normal
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    TopicRemoved,
    TriggerEnded,
    TriggerRecord,
    key_of,
)
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.routing.selectors import is_one_topic, is_simple
from arborcast.topic_model.subscriptions import Subscription, TriggerTarget
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.routing import control_records, naively_matches, normals, paths, table_of

histories = st.lists(control_records, max_size=40)


def compacted(history: Sequence[ControlRecord]) -> list[ControlRecord]:
    """A possible result of log compaction: the last record of each key, at its position."""
    last = {key_of(record): at for at, record in enumerate(history)}
    return [record for at, record in enumerate(history) if last[key_of(record)] == at]


class NaiveTable:
    """Naive routing: all subscriptions, matched one after the other."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self.topics = TopicTree()

    def apply(self, record: ControlRecord) -> None:
        self.topics.apply(record)
        match record:
            case SubscriptionRecord(subscription=subscription) | TriggerRecord(subscription=subscription):
                self.subscriptions[subscription.id] = subscription
            case SubscriptionEnded(id=subscription_id) | TriggerEnded(id=subscription_id):
                self.subscriptions.pop(subscription_id, None)
            case Tombstone(key=key):
                self.subscriptions.pop(key.removeprefix("sub:").removeprefix("trigger:"), None)
                self.topics.remove(TopicPath(key.removeprefix("topic:")))

    def now(self) -> dict[str, Subscription]:
        """All subscriptions by id, with triggers by the facts of their topics."""
        return {each.id: self._with_target(each) for each in self.subscriptions.values()}

    def _with_target(self, subscription: Subscription) -> Subscription:
        trigger = subscription.trigger
        topic = self.topics.get(trigger.topic) if trigger is not None else None
        if trigger is None or topic is None:
            return subscription
        policy, distribution = topic.policy, self.topics.distribution(trigger.topic)
        target = TriggerTarget(policy.retain, policy.priority, policy.reliable, topic.message_types, distribution)
        return msgspec.structs.replace(subscription, trigger=msgspec.structs.replace(trigger, target=target))

    def routes_to(self, path: TopicPath) -> set[str]:
        """Ids of all matching subscriptions, paused or not."""
        return {each.id for each in self.subscriptions.values() if naively_matches(each, path, self.topics)}

    def match(self, path: TopicPath) -> set[str]:
        """Ids of the matching subscriptions that receive."""
        return {found for found in self.routes_to(path) if self.subscriptions[found].receives}


def everything(table: RoutingTable, asked: list[TopicPath]) -> list[object]:
    """All public results, including derived structures."""
    return [
        {path: table.match(path) for path in asked},
        {path: table.routes_to(path) for path in asked},
        {path: table.routes_to(path) for path in table.topics.paths()},
        {key: set(targets) for key, targets in table._links.frozen().items()},
        table.due(5, 1_000),
        {each.id: each for each in table.subscriptions()},
    ]


@given(histories, st.lists(paths, min_size=1, max_size=12), st.integers(1, 4))
def test_the_table_against_the_naive_model(history: list[ControlRecord], asked: list[TopicPath], capacity: int) -> None:
    table, tight, model = RoutingTable(), RoutingTable(remembered_answers=capacity), NaiveTable()
    answers = [{path: table.match(path) for path in asked}]  # by position
    for offset, record in enumerate(history):
        for each in (table, tight):
            each.apply(record, offset)
        model.apply(record)
        # After every record, so that remembered answers must be forgotten at their changes.
        now = model.now()
        answers.append({path: table.match(path) for path in asked})
        for path, answer in answers[-1].items():
            assert {each.id: each for each in answer} == {found: now[found] for found in model.match(path)}
            assert tight.match(path) == answer
            assert all(seen[path] == answer for seen in answers[table.changed_before(path) :])
        assert tight.remembered <= 2 * capacity
    now = model.now()
    for path in asked:
        assert table.fan_out(path) == len(model.match(path))
        assert {route.subscription.id for route in table.routes_to(path)} == model.routes_to(path)
        assert all(route.subscription == now[route.subscription.id] for route in table.routes_to(path))
    for path in model.topics.paths():
        assert {route.subscription.id for route in table.routes_to(path)} == model.routes_to(path)
    assert {each.id: each for each in table.subscriptions()} == now


@given(histories, st.randoms(use_true_random=False), st.lists(paths, max_size=8))
def test_compaction_order_repetition_end(history: list[ControlRecord], chance: Random, asked: list[TopicPath]) -> None:
    table, left = table_of(*history), compacted(history)
    expected, sizes = everything(table, asked), table.statistics()
    again = table_of(*left)
    assert again == table
    assert everything(again, asked) == expected
    shuffled = list(left)
    chance.shuffle(shuffled)
    assert everything(table_of(*shuffled), asked) == expected
    for record in left:
        table.apply(record)
    assert everything(table, asked) == expected, "the last record of each key, applied again"
    assert table.statistics() == sizes
    for subscription in list(table.subscriptions()):
        table.apply(SubscriptionEnded(subscription.id, "unsubscribed", 0))
    for path in list(table.topics.paths()):
        table.apply(TopicRemoved(path))
    assert table == RoutingTable()
    sizes = table.statistics()
    assert (sizes.subscriptions, sizes.selectors, sizes.links, sizes.steps) == (0, 0, 0, 0)


@given(normals)
def test_simple_selectors_are_recognized_by_their_text(normal: str) -> None:
    alternatives = parse_normal(normal).alternatives
    simple = len(alternatives) == 1 and not alternatives[0].rest
    assert is_simple(normal) == simple
    if simple:
        assert is_one_topic(normal) == (alternatives[0].reach is Reach.SELF)
