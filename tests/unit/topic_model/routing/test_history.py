"""The recipients of a notification do not depend on the time of the match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from arborcast.topic_model.expressions import xpath
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    TopicRecord,
)
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import History, RoutingTable
from arborcast.topic_model.routing.history import Change, standing
from arborcast.topic_model.subscriptions import DeliveryPolicy, Subscription
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.routing import make_subscription, naively_matches, table_of

TOPICS = [TopicPath(each) for each in ("a", "a/b", "a/b/c", "d")]
FILTERS = [
    ("a",),
    ("a/b",),
    ("a//.",),
    ("//.",),
    ("a/*|d",),
    ("//c",),
    ("a//c", "a//."),
    (),
    (xpath.parse_xpath("a/*[self::b]", {}).normal,),
]


@dataclass
class Setup:
    """A gateway and a job on one log: the gateway accepts, the job matches later."""

    job: RoutingTable = field(default_factory=lambda: RoutingTable(history=History()))
    now_ms: int = 1_000
    records: list[ControlRecord] = field(default_factory=list)
    there: dict[str, Subscription] = field(default_factory=dict)
    topics: TopicTree = field(default_factory=TopicTree)
    waiting: list[tuple[Notification, set[str]]] = field(default_factory=list)
    made: int = 0

    def write(self, *records: ControlRecord) -> None:
        for record in records:
            self.job.apply(record, len(self.records))
            self.records.append(record)
            self.topics.apply(record)

    def end_ms(self, lasts_ms: int | None) -> int | None:
        return None if lasts_ms is None else self.now_ms + lasts_ms

    def subscribe(self, number: int, lasts_ms: int | None) -> None:
        consumer = f"http://{number}/"
        equal = next((each for each in self.there.values() if each.consumer.address == consumer), None)
        if equal is None:
            self.made += 1
            topics = FILTERS[number % len(FILTERS)]
            facts: dict[str, Any] = {"created_ms": self.now_ms, "pull_point": "p" if number % 2 else ""}
            equal = make_subscription(f"s{self.made}", *topics, consumer=consumer, **facts)
        self.put(equal, terminates_ms=self.end_ms(lasts_ms), paused=False)

    def put(self, subscription: Subscription, **changes: object) -> None:
        self.there[subscription.id] = msgspec.structs.replace(subscription, **changes)
        self.write(SubscriptionRecord(self.there[subscription.id]))

    def change(self, number: int, how: str, lasts_ms: int | None) -> None:
        if not self.there:
            return
        chosen = list(self.there.values())[number % len(self.there)]
        match how:
            case "renew":
                self.put(chosen, terminates_ms=self.end_ms(lasts_ms))
            case "pause" | "resume":
                self.put(chosen, paused=how == "pause")
            case "end":
                del self.there[chosen.id]
                self.write(SubscriptionEnded(chosen.id, "unsubscribed", self.now_ms), Tombstone(f"sub:{chosen.id}"))

    def publish(self, topic: TopicPath) -> None:
        if topic not in self.topics:
            self.write(TopicRecord(topic))
        notification = Notification("n", topic, b"<x/>", self.now_ms, control=len(self.records))
        # The rule: all subscriptions that exist at the acceptance, receive, and match.
        wanted = {
            each.id
            for each in self.there.values()
            if each.receives and not each.expired(self.now_ms) and naively_matches(each, topic, self.topics)
        }
        self.waiting.append((notification, wanted))

    def forget(self) -> None:
        """The job forgets changes before the oldest waiting notification."""
        self.job.history.forget(min((each.control for each, _ in self.waiting), default=len(self.records)))

    def restart(self, since: int) -> None:
        """The job was killed; it has the log and the position of the oldest unmatched notification."""
        horizon = min((each.control for each, _ in self.waiting), default=0)
        self.job = table_of(*self.records, since=max(0, horizon - since))

    def batch(self, most: int | None = None) -> None:
        """Match some waiting notifications. Workers have the recipients of the table: see test_steps."""
        recipients = self.job.recipients()
        most = len(self.waiting) if most is None else most
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        for notification, wanted in taken:
            there, ended = recipients.of(notification)
            assert sorted(each.id for each in (*there, *ended)) == sorted(wanted)
            assert all(each == self.there[each.id] for each in there)
            assert not self.there.keys() & {each.id for each in ended}


lasting = st.one_of(st.none(), st.integers(1, 60))
published = st.builds(lambda topic: lambda setup: setup.publish(topic), st.sampled_from(TOPICS))
steps: st.SearchStrategy[Callable[[Setup], None]] = st.one_of(
    st.builds(lambda number, ms: lambda setup: setup.subscribe(number, ms), st.integers(0, 17), lasting),
    st.builds(
        lambda number, how, ms: lambda setup: setup.change(number, how, ms),
        st.integers(0, 9),
        st.sampled_from(["renew", "pause", "resume", "end"]),
        lasting,
    ),
    published,
    published,
    st.builds(lambda ms: lambda setup: setattr(setup, "now_ms", setup.now_ms + ms), st.integers(1, 40)),
    st.builds(lambda most: lambda setup: setup.batch(most), st.integers(1, 9)),
    st.just(Setup.forget),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(steps, max_size=60), st.none() | st.integers(0, 40))
def test_recipients_are_those_of_the_acceptance(history: list[Callable[[Setup], None]], restart: int | None) -> None:
    setup = Setup()
    for step in history:
        step(setup)
    if restart is not None:
        setup.restart(restart)
    setup.batch()


def who(table: RoutingTable, control: int, **more: Any) -> list[str]:
    """Ids of the recipients of a notification; ended subscriptions in brackets."""
    there, ended = table.recipients().of(Notification("n", TopicPath("a"), b"<x/>", 500, control=control, **more))
    return [*(each.id for each in there), *(f"({each.id})" for each in ended)]


def test_a_notification_for_one_subscription() -> None:
    made = [SubscriptionRecord(make_subscription(name, "a", created_ms=1)) for name in ("s", "other")]
    table = table_of(*made)
    assert who(table, control=2, only="s") == ["s"]
    table.apply(SubscriptionEnded("s", "unsubscribed", 1), 2)
    assert who(table, control=2, only="s") == ["(s)"]
    assert who(table, control=3, only="s") == []


def test_a_request_is_for_its_queue_and_for_ordinary_subscribers() -> None:
    table = table_of(
        SubscriptionRecord(make_subscription("s", "a", created_ms=1)),
        SubscriptionRecord(make_subscription("server", "a", created_ms=1, queue=1)),
        SubscriptionEnded("server", "unsubscribed", 600),
    )
    assert who(table, control=2, queue=True) == ["s", "queue:a"]
    assert who(table, control=2, only="server") == ["(server)"], "for the subscription, not for the queue"


def test_changes_are_forgotten_up_to_the_oldest_waiting_message() -> None:
    history = History()
    for position in range(0, 100, 2):
        history.add(Change(position, "s"))
    history.forget(51)
    assert len(history) == 24
    history.add(Change(40, "s"))
    assert len(history) == 24, "a log that is read again adds no forgotten change"
    history.forget(1_000)
    assert (len(history), history.packed({}).newest) == (0, -1)


def test_changes_may_be_forgotten_in_parts() -> None:
    history = History()
    for position in (1, 2, 2, 2, 3, 4, 5):
        history.add(Change(position, "s"))
    for forgotten, horizon, left in (([1, 2, 2, 2], 3, 3), ([3, 4], 5, 1)):
        assert [each.position for each in history.forget(5, limit=2)] == forgotten
        assert (history.horizon, len(history)) == (horizon, left)


@pytest.mark.parametrize(
    ("changes", "made_later", "accepted_ms", "expected"),
    [
        ({}, False, 100, "belongs"),
        ({}, True, 100, "made later"),
        ({}, True, 101, "belongs"),
        ({}, False, 199, "belongs"),
        ({}, False, 200, "over"),
        ({"paused": True}, False, 150, "belongs"),  # kept until it is resumed
        ({"paused": True, "pull_point": "p"}, False, 150, "paused"),
        ({"paused": True, "policy": DeliveryPolicy(reliability="timely")}, False, 150, "paused"),
    ],
)
def test_the_rule_of_recipients(changes: dict[str, Any], made_later: bool, accepted_ms: int, expected: str) -> None:
    made = make_subscription("s", "a", created_ms=100, terminates_ms=200, **changes)
    assert standing(made, made_later=made_later, accepted_ms=accepted_ms) == expected
