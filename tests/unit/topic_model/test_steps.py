"""Steps: a view that lives on answers what the table does at the same position, however its way is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from tests.support.routing import control_records, make_subscription, paths
from topic_model.expressions import xpath
from topic_model.records.control import (
    ControlRecord,
    SecretsResealed,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    TopicRecord,
    TopicRemoved,
    resealing_key,
)
from topic_model.records.notifications import UNSTAMPED, Notification
from topic_model.routing import Found, History, Recipients, RoutingTable, ViewStep
from topic_model.snapshot import Overlay, Snapshot, SnapshotView, SteppedView
from topic_model.subscriptions import Protection, SigningSecret, Subscription
from topic_model.topics import TopicPath

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ViewStep)


def sent(step: ViewStep) -> ViewStep:
    """The step after its travel."""
    return _decoder.decode(_encoder.encode(step))


def weight(step: ViewStep) -> int:
    """How many changes there are in a step."""
    selected = sum(map(len, step.overlay.selected.values()))
    reselected = sum(len(each.gained) + len(each.lost) for each in step.reselected.values())
    return step.overlay.size + selected + reselected + len(step.changes)


class World:
    """The driver, with its table, and workers that hear of it by steps alone."""

    def __init__(self, limit: int, asked: Sequence[TopicPath] = ()) -> None:
        self.limit = limit
        self.asked = asked
        self.offset = 0
        self.table = RoutingTable(history=History())
        self.begin()

    def apply(self, record: ControlRecord) -> None:
        self.table.apply(record, self.offset)
        self.offset += 1

    def rebase(self) -> None:
        """A new base; what becomes of the old one's steps does not matter any more."""
        self.cut()
        self.steps.close()
        self.checkpoint.close()
        self.begin()

    def begin(self) -> None:
        self.checkpoint = self.table.checkpoint()
        self.snapshot = Snapshot.build(self.checkpoint)
        self.steps = self.table.steps(self.checkpoint, self.limit)
        self.workers: list[SteppedView] = []
        self.join()

    def join(self) -> None:
        """One more worker, in the middle of it."""
        worker = SteppedView(self.snapshot)
        opening = self.steps.opening()
        assert [each.control for each in opening] == [None] * (len(opening) - 1) + [self.table.position]
        for step in opening:
            assert weight(step) <= self.limit
            worker.apply(sent(step))
        assert worker.position == self.table.position
        self.workers.append(worker)

    def cut(self) -> None:
        for step in self.steps.steps():
            assert weight(step) <= self.limit
            for worker in self.workers:
                worker.apply(sent(step))
        for worker in self.workers:
            worker.apply(sent(ViewStep(self.table.position, Overlay(self.checkpoint.base))))

        self.check()

    def forget_half(self) -> None:
        """Of what the history could have."""
        self.table.history.forget((self.table.history.horizon + self.offset) // 2)
        self.cut()

    def check(self) -> None:
        recipients = self.table.recipients()
        # What the batches are sent goes on to hold beside it.
        packed = Recipients.packed(SnapshotView(self.snapshot, self.checkpoint.overlay()), self.table.packed_past())
        for path in {*self.asked, *TOPICS, *self.table.topics.paths()}:
            expected = self.table.match(path)
            for worker in self.workers:
                assert worker.match(path) == expected
            for control in range(UNSTAMPED, self.table.position + 1):
                for accepted_ms in (0, 1, 2, 5):
                    notification = Notification("n", path, b"<x/>", accepted_ms, control=control)
                    found = by_id(recipients.of(notification))
                    assert by_id(packed.of(notification)) == found
                    for worker in self.workers:
                        assert by_id(worker.of(notification)) == found, (path, control, accepted_ms)


def by_id(found: Found) -> list[list[Subscription]]:
    return [sorted(part, key=lambda each: each.id) for part in found]


# Few of everything, so that what happens to one meets what happens to another.
TOPICS = [TopicPath(each) for each in ("a", "a/b", "a/b/c", "b")]
XPATHS = [xpath.parse_xpath(text, {}).normal for text in ("//b", "a/*[self::b]", "//*[b]")]
FILTERS = [("a",), ("a/b",), ("a//.",), ("a/*|b",), ("//c",), ("a//c", "a//."), (), *((each,) for each in XPATHS)]
ids = st.sampled_from([f"s{number}" for number in range(4)])


def subscribed(
    name: str, topics: tuple[str, ...], created_ms: int, how: str, terminates_ms: int | None
) -> SubscriptionRecord:
    made = make_subscription(name, *topics, created_ms=created_ms, terminates_ms=terminates_ms, paused="paused" in how)
    protection = Protection((SigningSecret("k:1"),), "k:2") if "protected" in how else None
    return SubscriptionRecord(
        msgspec.structs.replace(made, protection=protection, pull_point="p" if "pull" in how else "")
    )


records: st.SearchStrategy[ControlRecord] = st.one_of(
    st.builds(
        subscribed,
        ids,
        st.sampled_from([*FILTERS, *((each,) for each in XPATHS)]),
        st.integers(0, 2),
        st.sampled_from(["", "", "", "paused", "pull", "paused pull", "protected"]),
        st.sampled_from([None, 4]),
    ),
    st.builds(SubscriptionEnded, ids, st.just("unsubscribed"), st.just(0)),
    st.builds(TopicRecord, st.sampled_from(TOPICS)),
    st.builds(TopicRemoved, st.sampled_from(TOPICS)),
    st.builds(SecretsResealed, ids, st.just({"k:1": "k:3"})),
    st.builds(Tombstone, ids.map(resealing_key)),
)
turns = st.one_of(
    st.just(World.cut), st.just(World.cut), st.just(World.rebase), st.just(World.join), st.just(World.forget_half)
)
events = st.tuples(st.lists(records, max_size=5), turns)


@given(st.lists(records, max_size=8), st.lists(events, min_size=3, max_size=12), st.integers(1, 9))
def test_whatever_happens_the_views_answer_what_the_table_does(
    before: list[ControlRecord],
    history: list[tuple[list[ControlRecord], Callable[[World], None]]],
    limit: int,
) -> None:
    world = World(limit)
    for record in before:
        world.apply(record)
    world.rebase()
    for more, turn in history:
        for record in more:
            world.apply(record)
        turn(world)
    world.cut()


@given(st.lists(control_records, max_size=20), st.lists(st.lists(control_records, max_size=9), max_size=4), paths)
def test_so_do_they_with_filters_of_all_kinds(
    before: list[ControlRecord], history: list[list[ControlRecord]], path: TopicPath
) -> None:
    world = World(200, [path])
    for record in before:
        world.apply(record)
    world.rebase()
    for more in history:
        for record in more:
            world.apply(record)
        world.cut()
