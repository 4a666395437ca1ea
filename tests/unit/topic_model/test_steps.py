"""Steps: a long-lived view has the answers of the table at the same position, for any division into steps."""

from __future__ import annotations

import pickle
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
)
from arborcast.topic_model.records.notifications import UNSTAMPED, Notification
from arborcast.topic_model.routing import Found, History, Recipients, RoutingTable, ViewStep
from arborcast.topic_model.routing.rest import RestIndex
from arborcast.topic_model.snapshot import Overlay, Snapshot, SnapshotView, SteppedView, view
from arborcast.topic_model.subscriptions import Protection, SigningSecret, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import control_records, make_subscription, paths


def sent(step: ViewStep) -> ViewStep:
    """The step after a pickle round trip."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=ViewStep)


def weight(step: ViewStep) -> int:
    """The number of changes in a step."""
    selected = sum(map(len, step.overlay.selected.values()))
    reselected = sum(len(each.gained) + len(each.lost) for each in step.reselected.values())
    return step.overlay.size + selected + reselected + len(step.changes)


class Setup:
    """The driver with its table, and workers that get only its steps."""

    def __init__(self, limit: int = 200, asked: Sequence[TopicPath] = ()) -> None:
        self.limit = limit
        self.asked = asked
        self.offset = 0
        self.table = RoutingTable(history=History())
        self.begin()

    def apply(self, *records: ControlRecord) -> None:
        for record in records:
            self.table.apply(record, self.offset)
            self.offset += 1

    def forget_all(self) -> None:
        self.table.history.forget(self.offset)

    def rebase(self) -> None:
        """A new base; the steps of the old one are dropped."""
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
        """One more worker, which begins now."""
        worker = SteppedView(self.snapshot)
        opening = self.steps.opening()
        assert [each.control for each in opening] == [None] * (len(opening) - 1) + [self.table.position]
        for step in opening:
            assert weight(step) <= self.limit
            worker.apply(sent(step))
        assert worker.position == self.table.position
        self.workers.append(worker)

    def send(self) -> None:
        steps = self.steps.steps()
        assert all(weight(step) <= self.limit for step in steps)
        for step in (*steps, ViewStep(self.table.position, Overlay(self.checkpoint.base))):
            for worker in self.workers:
                worker.apply(sent(step))

    def cut(self) -> None:
        """Bring all to the same position, and compare their answers."""
        self.send()
        self.check()

    def forget_half(self) -> None:
        """Forget half of the history."""
        self.table.history.forget((self.table.history.horizon + self.offset) // 2)
        self.cut()

    def check(self) -> None:
        recipients = self.table.recipients()
        # The state sent to batches stays valid beside it.
        overlay = pickle.loads(pickle.dumps(self.checkpoint.overlay()))  # noqa: S301  # pickled by the same line
        whole = SnapshotView(self.snapshot, overlay)
        past = pickle.loads(pickle.dumps(self.table.packed_history()))  # noqa: S301  # pickled by the same line
        packed = Recipients.packed(whole, past)
        for path in {*self.asked, *TOPICS, *self.table.topics.paths()}:
            assert [each.match(path) for each in self.workers] == [whole.match(path)] * len(self.workers)
            assert whole.match(path) == self.table.match(path)
            for control in range(UNSTAMPED, self.table.position + 1):
                for accepted_ms in (0, 1, 2, 5):
                    notification = Notification("n", path, b"<x/>", accepted_ms, control=control)
                    found = by_id(recipients.of(notification))
                    assert by_id(packed.of(notification)) == found
                    for worker in self.workers:
                        assert by_id(worker.of(notification)) == found, (path, control, accepted_ms)


def by_id(found: Found) -> list[list[Subscription]]:
    return [sorted(part, key=lambda each: each.id) for part in found]


# Few values of everything, so that changes affect the same subscriptions.
TOPICS = [TopicPath(each) for each in ("a", "a/b", "a/b/c", "b")]
XPATHS = [(xpath.parse_xpath(text, {}).normal,) for text in ("//b", "a/*[self::b]", "//*[b]")]
LINKED = [("a/*|b",), ("//c",), ("a//c", "a//."), ("a//b|a/b/*",)]
FILTERS = [("a",), ("a/b",), ("a//.",), (), *LINKED, *XPATHS]
ids = st.sampled_from([f"s{number}" for number in range(4)])


def subscribed(
    name: str, topics: tuple[str, ...] = ("a",), created_ms: int = 0, how: str = "", terminates_ms: int | None = None
) -> SubscriptionRecord:
    made = make_subscription(name, *topics, created_ms=created_ms, terminates_ms=terminates_ms, paused="paused" in how)
    protection = Protection((SigningSecret("k:1"),), "k:2") if "protected" in how else None
    return SubscriptionRecord(
        msgspec.structs.replace(made, protection=protection, pull_point="p" if "pull" in how else "")
    )


def ended(name: str) -> SubscriptionEnded:
    return SubscriptionEnded(name, "unsubscribed", 0)


def records(filters: list[tuple[str, ...]]) -> st.SearchStrategy[ControlRecord]:
    ends = st.sampled_from([None, 4])
    kinds = st.sampled_from(["", "", "", "paused", "pull", "paused pull", "protected"])
    return st.one_of(
        st.builds(subscribed, ids, st.sampled_from(filters), st.integers(0, 2), kinds, ends),
        st.builds(ended, ids),
        st.builds(TopicRecord, st.sampled_from(TOPICS)),
        st.builds(TopicRemoved, st.sampled_from(TOPICS)),
        st.builds(SecretsResealed, ids, st.just({"k:1": "k:3"})),
        st.builds(Tombstone.of, st.just("seal"), ids),
    )


Happenings = tuple[list[ControlRecord], list[tuple[list[ControlRecord], Callable[[Setup], None]]]]
turns = st.sampled_from([Setup.cut, Setup.cut, Setup.cut, Setup.rebase, Setup.join, Setup.forget_half])
kinds: st.SearchStrategy[list[tuple[str, ...]]] = st.sampled_from([FILTERS, LINKED, XPATHS, XPATHS[:1], XPATHS[2:]])
histories: st.SearchStrategy[Happenings] = kinds.flatmap(
    lambda filters: st.tuples(
        st.lists(records(filters), max_size=6),
        st.lists(st.tuples(st.lists(records(filters), max_size=4), turns), min_size=3, max_size=12),
    )
)


@given(histories, st.integers(1, 9))
def test_stepped_views_have_the_answers_of_the_table(history: Happenings, limit: int) -> None:
    before, then = history
    setup = Setup(limit)
    setup.apply(*map(TopicRecord, TOPICS), *before)
    setup.rebase()
    for more, turn in then:
        setup.apply(*more)
        turn(setup)
    setup.cut()


@given(st.lists(control_records, max_size=20), st.lists(st.lists(control_records, max_size=9), max_size=4), paths)
def test_stepped_views_with_filters_of_all_kinds(
    before: list[ControlRecord], history: list[list[ControlRecord]], path: TopicPath
) -> None:
    setup = Setup(asked=[path])
    setup.apply(*before)
    setup.rebase()
    for more in history:
        setup.apply(*more)
        setup.cut()


@pytest.mark.parametrize("known", [False, True], ids=["unused", "used"])
def test_ended_subscriptions_leave_nothing_in_a_view(known: bool) -> None:
    setup = Setup()
    setup.apply(*map(TopicRecord, TOPICS), subscribed("base", ("a/b/c",)))
    setup.forget_all()
    setup.rebase()
    (worker,) = setup.workers
    before = kept(worker)
    for number, topics in enumerate(FILTERS):
        for name in ("s", "t"):
            setup.apply(subscribed(f"{name}{number}", topics))
            setup.send()
            if known:
                setup.check()
        path = TopicPath("a/b")
        for record in (ended(f"s{number}"), TopicRemoved(path), ended(f"t{number}"), TopicRecord(path)):
            setup.apply(record)
            setup.send()
    setup.forget_all()
    setup.send()
    assert kept(worker) == before


def kept(worker: SteppedView) -> dict[str, int]:
    """The size of everything except remembered answers."""
    parts = {**vars(worker), **vars(worker._view), **vars(worker._view._links)}
    of_resolver = ("_answers", "_older", "_inherited", "_joined", "_to_free")
    return {
        name: len(part)
        for name, part in parts.items()
        if isinstance(part, dict | set | list | History | RestIndex) and name not in of_resolver
    }


def test_changes_of_unused_topics_are_not_all_kept() -> None:
    setup = Setup()
    setup.apply(subscribed("base"))
    setup.rebase()
    (worker,) = setup.workers
    for number in range(2_000):
        setup.apply(subscribed(f"s{number}"))
        setup.send()
        setup.apply(ended(f"s{number}"))
        setup.forget_all()
        setup.send()
    assert sum(map(len, worker._view._pending.values())) < 1_500
    assert [each.id for each in worker.match(TopicPath("a"))] == ["base"]


def test_a_view_forgets_a_long_history_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_FORGOTTEN_AT_ONCE", 10)
    setup = Setup()
    (worker,) = setup.workers
    setup.apply(*(subscribed(f"s{number}") for number in range(50)))
    setup.send()
    setup.forget_all()
    before = [len(worker._history)]
    for number in range(10):
        setup.apply(subscribed(f"t{number}"))
        setup.send()
        before.append(len(worker._history))
        for control in range(setup.table.history.horizon, setup.offset + 1):
            notification = Notification("n", TopicPath("a"), b"<x/>", 0, control=control)
            assert by_id(worker.of(notification)) == by_id(setup.table.recipients().of(notification))
    assert all(earlier - later <= 10 for earlier, later in pairwise(before)), before
    assert (len(worker._history), set(worker._last)) == (10, {f"t{number}" for number in range(10)})


def test_steps_hold_changes_until_they_are_closed() -> None:
    setup = Setup()
    setup.send()
    setup.apply(TopicRecord(TopicPath("a")), ended("unknown"))
    assert setup.steps.steps() == [], "only the position has changed"
    setup.apply(subscribed("s"))
    assert [(each.control, weight(each)) for each in setup.steps.steps()] == [(3, 2)]
    assert setup.steps.steps() == []
    setup.steps.close()
    setup.steps.close()
    setup.apply(subscribed("t"))
    assert all(not step.overlay.size for step in setup.steps.steps())


def test_a_view_changes_with_the_last_piece_of_a_step() -> None:
    setup = Setup(2)
    (worker,) = setup.workers
    setup.apply(*(subscribed(f"s{number}") for number in range(5)))
    *pieces, last = setup.steps.steps()
    assert len(pieces) == 4
    for piece in pieces:
        worker.apply(piece)
        assert (worker.match(TopicPath("a")), worker.position) == ((), UNSTAMPED)
    worker.apply(last)
    assert (len(worker.match(TopicPath("a"))), worker.position) == (5, 5)


def test_steps_need_their_own_base_and_a_history() -> None:
    setup = Setup()
    (worker,) = setup.workers
    setup.rebase()
    with pytest.raises(ValueError, match="this view began with"):
        worker.apply(setup.steps.opening()[0])
    table = RoutingTable()
    with pytest.raises(ValueError, match="without a history"):
        table.steps(table.checkpoint())
