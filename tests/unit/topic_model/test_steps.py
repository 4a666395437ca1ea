"""Steps: a view that lives on answers what the table does at the same position, however its way is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from arborcast.topic_model.expressions import xpath
from arborcast.topic_model.records.control import (
    ControlRecord,
    SecretsResealed,
    SubscriptionEnded,
    SubscriptionRecord,
    Tombstone,
    TopicRecord,
    TopicRemoved,
    TriggerRecord,
    resealing_key,
)
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.routing import Found, History, Recipients, RoutingTable, ViewStep
from arborcast.topic_model.routing.rest import RestIndex
from arborcast.topic_model.snapshot import Overlay, Snapshot, SnapshotView, SteppedView, view
from arborcast.topic_model.subscriptions import Protection, SigningSecret, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import control_records, make_subscription, make_trigger, paths

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

    def send(self) -> None:
        for step in self.steps.steps():
            assert weight(step) <= self.limit
            for worker in self.workers:
                worker.apply(sent(step))
        for worker in self.workers:
            worker.apply(sent(ViewStep(self.table.position, Overlay(self.checkpoint.base))))

    def cut(self) -> None:
        """All come to the same position, and are asked."""
        self.send()
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
XPATHS = [(xpath.parse_xpath(text, {}).normal,) for text in ("//b", "a/*[self::b]", "//*[b]")]
LINKED = [("a/*|b",), ("//c",), ("a//c", "a//."), ("a//b|a/b/*",)]
FILTERS = [("a",), ("a/b",), ("a//.",), (), *LINKED, *XPATHS]
ids = st.sampled_from([f"s{number}" for number in range(4)])


def subscribed(
    name: str, topics: tuple[str, ...], created_ms: int, how: str, terminates_ms: int | None
) -> SubscriptionRecord:
    made = make_subscription(name, *topics, created_ms=created_ms, terminates_ms=terminates_ms, paused="paused" in how)
    protection = Protection((SigningSecret("k:1"),), "k:2") if "protected" in how else None
    return SubscriptionRecord(
        msgspec.structs.replace(made, protection=protection, pull_point="p" if "pull" in how else "")
    )


def records(filters: list[tuple[str, ...]]) -> st.SearchStrategy[ControlRecord]:
    return st.one_of(
        st.builds(
            subscribed,
            ids,
            st.sampled_from(filters),
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


Happenings = tuple[list[ControlRecord], list[tuple[list[ControlRecord], Callable[[World], None]]]]
turns = st.sampled_from([World.cut, World.cut, World.cut, World.rebase, World.join, World.forget_half])
kinds: st.SearchStrategy[list[tuple[str, ...]]] = st.sampled_from([FILTERS, LINKED, XPATHS, XPATHS[:1], XPATHS[2:]])
histories: st.SearchStrategy[Happenings] = kinds.flatmap(
    lambda filters: st.tuples(
        st.lists(records(filters), max_size=6),
        st.lists(st.tuples(st.lists(records(filters), max_size=4), turns), min_size=3, max_size=12),
    )
)


@given(histories, st.integers(1, 9))
def test_whatever_happens_the_views_answer_what_the_table_does(history: Happenings, limit: int) -> None:
    before, then = history
    world = World(limit)
    for record in (*map(TopicRecord, TOPICS), *before):
        world.apply(record)
    world.rebase()
    for more, turn in then:
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


@pytest.mark.parametrize(("topics", "path"), [(XPATHS[0], "a/b"), (XPATHS[2], "a")])
def test_what_an_xpath_of_the_base_loses_and_regains(topics: tuple[str, ...], path: str) -> None:
    world = World(200)
    world.apply(TopicRecord(TopicPath("a")))
    world.apply(TopicRecord(TopicPath("a/b")))
    world.apply(subscribed("s1", topics, 0, "", None))
    world.rebase()
    (worker,) = world.workers
    there, gone = TopicRecord(TopicPath("a/b")), TopicRemoved(TopicPath("a/b"))
    then: list[tuple[ControlRecord, int]] = [
        (gone, 0),
        (there, 1),
        (gone, 0),
        (subscribed("s2", topics, 1, "", None), 0),
        (there, 2),
        (gone, 0),
        (SubscriptionEnded("s1", "unsubscribed", 0), 0),
        (SubscriptionEnded("s2", "unsubscribed", 0), 0),
        (there, 0),
        (subscribed("s3", topics, 1, "", None), 1),
        (gone, 0),
        (SubscriptionEnded("s3", "unsubscribed", 0), 0),
    ]
    for record, expected in then:
        world.apply(record)
        world.cut()
        assert len(worker.match(TopicPath(path))) == expected
    world.rebase()


@pytest.mark.parametrize("known", [False, True], ids=["unasked", "asked"])
def test_what_came_and_went_leaves_no_trace_in_a_view(known: bool) -> None:
    world = World(200)
    for path in TOPICS:
        world.apply(TopicRecord(path))
    world.apply(SubscriptionRecord(make_subscription("base", "a/b/c")))
    world.table.history.forget(world.offset)
    world.rebase()
    (worker,) = world.workers
    before = kept(worker)
    for number, topics in enumerate(FILTERS):
        for made in (subscribed(f"s{number}", topics, 0, "", None), subscribed(f"t{number}", topics, 0, "", None)):
            world.apply(made)
            world.send()
            if known:
                world.check()
        ends: list[ControlRecord] = [
            SubscriptionEnded(f"s{number}", "unsubscribed", 0),
            TopicRemoved(TopicPath("a/b")),
            SubscriptionEnded(f"t{number}", "unsubscribed", 0),
            TopicRecord(TopicPath("a/b")),
        ]
        for record in ends:
            world.apply(record)
            world.send()
    world.table.history.forget(world.offset)
    world.send()
    assert kept(worker) == before


def kept(worker: SteppedView) -> dict[str, int]:
    """How much there is of everything that is no remembered answer."""
    parts = {**vars(worker), **vars(worker._view)}
    of_resolver = ("_answers", "_older", "_inherited", "_joined", "_graveyard")
    return {
        name: len(part)
        for name, part in parts.items()
        if isinstance(part, dict | set | list | History | RestIndex) and name not in of_resolver
    }


def test_many_changes_to_what_nobody_asks_for_are_not_kept() -> None:
    world = World(200)
    world.apply(SubscriptionRecord(make_subscription("base", "a")))
    world.rebase()
    (worker,) = world.workers
    for number in range(3_000):
        world.apply(SubscriptionRecord(make_subscription(f"s{number}", "a")))
        world.send()
        world.apply(SubscriptionEnded(f"s{number}", "unsubscribed", 0))
        world.table.history.forget(world.offset)
        world.send()
    assert sum(map(len, worker._view._pending.values())) < 1_500
    assert [each.id for each in worker.match(TopicPath("a"))] == ["base"]


def test_what_changes_at_one_position_is_all_remembered() -> None:
    """A topic that comes changes all triggers that publish to it."""
    world = World(200)
    triggers = ("t1", "t2", "t3")
    for name in triggers:
        world.apply(TriggerRecord(make_trigger(name, "{}*", "a")))
    world.rebase()
    world.apply(TopicRecord(TopicPath("a")))
    world.cut()
    (worker,) = world.workers
    assert [(each.position, each.id) for each in worker._history.since(0)][-3:] == [(3, name) for name in triggers]
    found = worker.of(Notification("n", TopicPath("b"), b"<x/>", 1, control=0)).existing
    assert all(each.trigger and each.trigger.target for each in found), "none is the one that it was before"


def test_a_view_forgets_a_long_past_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_FORGOTTEN_AT_ONCE", 10)
    world = World(200)
    (worker,) = world.workers
    for number in range(50):
        world.apply(SubscriptionRecord(make_subscription(f"s{number}", "a")))
    world.send()
    world.table.history.forget(world.offset)
    before = [len(worker._history)]
    for number in range(10):
        world.apply(SubscriptionRecord(make_subscription(f"t{number}", "a")))
        world.send()
        before.append(len(worker._history))
        for control in range(world.table.history.horizon, world.offset + 1):
            notification = Notification("n", TopicPath("a"), b"<x/>", 0, control=control)
            assert by_id(worker.of(notification)) == by_id(world.table.recipients().of(notification))
    assert all(earlier - later <= 10 for earlier, later in pairwise(before)), before
    assert (len(worker._history), set(worker._last)) == (10, {f"t{number}" for number in range(10)})


def test_nothing_is_said_when_nothing_has_changed_but_the_position() -> None:
    world = World(200)
    world.send()
    world.apply(TopicRecord(TopicPath("a")))
    world.apply(SubscriptionEnded("unknown", "unsubscribed", 0))
    assert world.steps.steps() == []
    world.apply(SubscriptionRecord(make_subscription("s", "a")))
    assert [(each.control, weight(each)) for each in world.steps.steps()] == [(3, 2)]
    assert world.steps.steps() == []


def test_a_view_stands_still_until_the_last_piece_is_there() -> None:
    world = World(2)
    (worker,) = world.workers
    for number in range(5):
        world.apply(SubscriptionRecord(make_subscription(f"s{number}", "a")))
    *pieces, last = world.steps.steps()
    assert len(pieces) == 4
    for piece in pieces:
        worker.apply(piece)
        assert (worker.match(TopicPath("a")), worker.position) == ((), UNSTAMPED)
    worker.apply(last)
    assert (len(worker.match(TopicPath("a"))), worker.position) == (5, 5)


def test_steps_go_with_their_own_base_only() -> None:
    world = World(200)
    (worker,) = world.workers
    world.rebase()
    with pytest.raises(ValueError, match="this view began with"):
        worker.apply(world.steps.opening()[0])


def test_steps_need_a_table_that_remembers() -> None:
    table = RoutingTable()
    with pytest.raises(ValueError, match="without a history"):
        table.steps(table.checkpoint())


def test_a_closed_one_records_nothing() -> None:
    world = World(200)
    world.steps.close()
    world.steps.close()
    world.apply(SubscriptionRecord(make_subscription("s", "a")))
    assert all(not step.overlay.size for step in world.steps.steps())
