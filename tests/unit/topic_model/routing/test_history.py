"""Whom a notification belongs to does not depend on when it is matched."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import hypothesis.strategies as st
import msgspec
from hypothesis import given, settings

from arborcast.topic_model.expressions import xpath
from arborcast.topic_model.patterns.patterns import XPATH_SCHEME, parse_normal
from arborcast.topic_model.records.control import (
    ControlRecord,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    TopicRecord,
)
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.routing import History, Recipients, RoutingTable
from arborcast.topic_model.routing.history import Change, standing
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
from arborcast.topic_model.subscriptions import DeliveryPolicy, Subscription
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.routing import make_subscription

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
class World:
    """A gateway and a job on one log: the gateway accepts, the job matches whenever it comes to it."""

    job: RoutingTable = field(default_factory=lambda: RoutingTable(history=History()))
    now_ms: int = 1_000
    records: list[ControlRecord] = field(default_factory=list)
    there: dict[str, Subscription] = field(default_factory=dict)
    topics: TopicTree = field(default_factory=TopicTree)
    waiting: list[tuple[Notification, set[str]]] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.base()

    def write(self, *records: ControlRecord) -> None:
        for record in records:
            self.job.apply(record, len(self.records))
            self.records.append(record)
            self.topics.apply(record)

    def subscribe(self, number: int, lasts_ms: int | None) -> None:
        kind = number % len(FILTERS)
        terminates_ms = None if lasts_ms is None else self.now_ms + lasts_ms
        equal = next((each for each in self.there.values() if each.consumer.address == f"http://{number}/"), None)
        if equal is not None:
            self.put(equal, terminates_ms=terminates_ms, paused=False)
            return
        self.made += 1
        made = make_subscription(
            f"s{self.made}",
            *FILTERS[kind],
            consumer=f"http://{number}/",
            created_ms=self.now_ms,
            terminates_ms=terminates_ms,
        )
        self.put(msgspec.structs.replace(made, pull_point="p" if number % 2 else ""))

    def put(self, subscription: Subscription, **changes: object) -> None:
        self.there[subscription.id] = msgspec.structs.replace(subscription, **changes)
        self.write(SubscriptionRecord(self.there[subscription.id]))

    def end(self, subscription: Subscription) -> None:
        del self.there[subscription.id]
        self.write(SubscriptionEnded(subscription.id, "unsubscribed", self.now_ms), Tombstone(f"sub:{subscription.id}"))

    def change(self, number: int, how: str, lasts_ms: int | None) -> None:
        if not self.there:
            return
        chosen = list(self.there.values())[number % len(self.there)]
        match how:
            case "renew":
                self.put(chosen, terminates_ms=None if lasts_ms is None else self.now_ms + lasts_ms)
            case "pause":
                self.put(chosen, paused=True)
            case "resume":
                self.put(chosen, paused=False)
            case "end":
                self.end(chosen)

    def publish(self, topic: TopicPath) -> None:
        if topic not in self.topics:
            self.write(TopicRecord(topic))
        notification = Notification("n", topic, b"<x/>", self.now_ms, control=len(self.records))
        # As one would explain it: those who are there now, each asked whether it wants this.
        wanted = {
            each.id
            for each in self.there.values()
            if each.receives and not each.expired(self.now_ms) and self.matches(each, topic)
        }
        self.waiting.append((notification, wanted))

    def matches(self, subscription: Subscription, topic: TopicPath) -> bool:
        return all(
            topic in xpath.parse_normal(each.normal).select(self.topics)
            if each.normal.startswith(XPATH_SCHEME)
            else parse_normal(each.normal).matches(topic)
            for each in subscription.topics
        )

    def base(self) -> None:
        """The job makes a new base, and forgets what is older than all that waits."""
        self.job.history.forget(min((each.control for each, _ in self.waiting), default=len(self.records)))
        self.checkpoint = self.job.checkpoint()
        self.snapshot = Snapshot.build(self.checkpoint)

    def batch(self, most: int) -> None:
        """Match some of what waits: on the job's own table, and as a worker does with what it is sent."""
        overlay = pickle.loads(pickle.dumps(self.checkpoint.overlay()))  # noqa: S301
        past = pickle.loads(pickle.dumps(self.job.packed_past()))  # noqa: S301
        worker = Recipients.packed(SnapshotView(self.snapshot, overlay), past)
        own = self.job.recipients()
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        for notification, wanted in taken:
            for recipients in (own, worker):
                there, ended = recipients.of(notification)
                assert sorted(each.id for each in (*there, *ended)) == sorted(wanted)
                assert all(each == self.there[each.id] for each in there)
                assert not self.there.keys() & {each.id for each in ended}


lasting = st.one_of(st.none(), st.integers(1, 60))
steps: st.SearchStrategy[Callable[[World], None]] = st.one_of(
    st.builds(lambda number, ms: lambda world: world.subscribe(number, ms), st.integers(0, 17), lasting),
    st.builds(
        lambda number, how, ms: lambda world: world.change(number, how, ms),
        st.integers(0, 9),
        st.sampled_from(["renew", "pause", "resume", "end"]),
        lasting,
    ),
    st.builds(lambda topic: lambda world: world.publish(topic), st.sampled_from(TOPICS)),
    st.builds(lambda topic: lambda world: world.publish(topic), st.sampled_from(TOPICS)),
    st.builds(lambda ms: lambda world: setattr(world, "now_ms", world.now_ms + ms), st.integers(1, 40)),
    st.builds(lambda most: lambda world: world.batch(most), st.integers(1, 9)),
    st.just(World.base),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(steps, max_size=60))
def test_whenever_it_is_matched_the_recipients_are_those_of_its_acceptance(
    history: list[Callable[[World], None]],
) -> None:
    world = World()
    for step in history:
        step(world)
    world.batch(len(world.waiting))


@settings(deadline=None, max_examples=100)
@given(st.lists(steps, max_size=60), st.integers(0, 40))
def test_a_job_that_reads_the_log_anew_comes_to_the_same(history: list[Callable[[World], None]], since: int) -> None:
    """It was killed, and knows nothing but the log and where the oldest unmatched notification lies."""
    world = World()
    for step in history:
        step(world)
    horizon = min((each.control for each, _ in world.waiting), default=0)
    again = RoutingTable(history=History(max(0, horizon - since)))
    for offset, record in enumerate(world.records):
        again.apply(record, offset)
    world.job = again
    world.checkpoint = again.checkpoint()
    world.snapshot = Snapshot.build(world.checkpoint)
    world.batch(len(world.waiting))


def table_of(*records: ControlRecord, first: int = 0) -> RoutingTable:
    table = RoutingTable(history=History())
    for offset, record in enumerate(records, first):
        table.apply(record, offset)
    return table


def who(table: RoutingTable, control: int, accepted_ms: int = 500, topic: str = "a", only: str = "") -> Iterator[str]:
    notification = Notification("n", TopicPath(topic), b"<x/>", accepted_ms, only=only, control=control)
    there, ended = table.recipients().of(notification)
    yield from (each.id for each in there)
    yield from (f"{each.id} (ended)" for each in ended)


def test_what_is_for_one_is_for_that_one() -> None:
    table = table_of(
        SubscriptionRecord(make_subscription("s", "a", created_ms=1)),
        SubscriptionRecord(make_subscription("other", "a", created_ms=1)),
    )
    assert list(who(table, control=2, only="s")) == ["s"]
    table.apply(SubscriptionEnded("s", "unsubscribed", 1), 2)
    assert list(who(table, control=2, only="s")) == ["s (ended)"]
    assert list(who(table, control=3, only="s")) == []


def test_nothing_is_kept_of_what_lies_before_the_oldest_that_waits() -> None:
    history = History()
    for position in range(0, 100, 2):
        history.add(Change(position, "s"))
    history.forget(51)
    assert len(history) == 24
    history.add(Change(40, "s"))
    assert len(history) == 24, "a log that is read anew brings back nothing"
    history.forget(1_000)
    assert (len(history), history.packed({}).newest) == (0, -1)


def test_a_part_of_the_past_may_be_forgotten_at_a_time() -> None:
    history = History()
    for position in (1, 2, 2, 2, 3, 4, 5):
        history.add(Change(position, "s"))
    assert [each.position for each in history.forget(5, limit=2)] == [1, 2, 2, 2]
    assert history.horizon == 3
    assert [each.position for each in history.forget(5, limit=2)] == [3, 4]
    assert (history.horizon, len(history)) == (5, 1)


def test_the_rule() -> None:
    made = make_subscription("s", "a", created_ms=100, terminates_ms=200)
    assert standing(made, made_later=False, accepted_ms=100) == "belongs"
    assert standing(made, made_later=True, accepted_ms=100) == "made later"
    assert standing(made, made_later=True, accepted_ms=101) == "belongs"
    assert standing(made, made_later=False, accepted_ms=199) == "belongs"
    assert standing(made, made_later=False, accepted_ms=200) == "over"
    paused = msgspec.structs.replace(made, paused=True)
    assert standing(paused, made_later=False, accepted_ms=150) == "belongs", "it is kept for it"
    assert standing(msgspec.structs.replace(paused, pull_point="p"), made_later=False, accepted_ms=150) == "paused"
    timely = msgspec.structs.replace(paused, policy=DeliveryPolicy(reliability="timely"))
    assert standing(timely, made_later=False, accepted_ms=150) == "paused"


def test_a_request_is_for_its_queue_and_for_those_who_are_subscribed_as_ever() -> None:
    table = table_of(
        SubscriptionRecord(make_subscription("s", "a", created_ms=1)),
        SubscriptionRecord(msgspec.structs.replace(make_subscription("server", "a", created_ms=1), queue=1)),
        SubscriptionEnded("server", "unsubscribed", 600),
    )
    asked = Notification("n", TopicPath("a"), b"<x/>", 500, control=2, queue=True)
    there, ended = table.recipients().of(asked)
    assert ([each.id for each in there], list(ended)) == (["s", "queue:a"], [])
    # What is not for the queue is for its servers as for anybody: somebody has them get it again.
    assert list(who(table, control=2, only="server")) == ["server (ended)"]
