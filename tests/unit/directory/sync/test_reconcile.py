from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.directory.entries.changes import Change, Move, Put, Remove, Workspace, in_writing_order
from arborcast.directory.entries.dn import parse_dn
from arborcast.directory.entries.entries import EntrySet
from arborcast.directory.entries.mapping import Listing, ProblemKind, TopicEntry, canonical
from arborcast.directory.entries.reader import read_listing
from arborcast.directory.sync.reconcile import Plan, Records, first_contact, reconcile
from arborcast.topic_model.records.control import Tombstone, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath, ancestors, parse_path
from arborcast.topic_model.tree.tree import TopicTree
from tests.support.directory import records, topic

BASE = parse_dn("ou=topics,dc=x")


def by_path(*topics: TopicRecord) -> dict[TopicPath, TopicRecord]:
    return {each.path: each for each in topics}


def listed(topics: Records, **facts: object) -> Listing:
    """What a directory with these topics lists."""
    entries = EntrySet()
    written(entries, [Put(record) for record in topics.values()])
    return dataclasses.replace(read_listing(entries, BASE), **{"initialised": True, **facts})  # type: ignore[arg-type]


def written(entries: EntrySet, changes: list[Change]) -> None:
    workspace = Workspace(entries, read_listing(entries, BASE), BASE)
    for change in in_writing_order(changes):
        for edit in workspace.plan(change):
            workspace.completed(edit)


def folded(tree: Records, plan: Plan) -> dict[TopicPath, TopicRecord]:
    """The tree after the plan's records."""
    fold = TopicTree()
    for record in (*tree.values(), *plan.records):
        fold.apply(record)
    return {record.path: canonical(record) for record in fold.records()}


A, B, C = topic("a", code="A"), topic("b", code="B"), topic("a/c")


@pytest.mark.parametrize(
    ("known", "directory", "tree", "to_log", "to_directory"),
    [
        pytest.param([], [], [], [], [], id="nothing anywhere"),
        pytest.param([], [A], [], [A], [], id="first contact of an empty tree: the directory is read"),
        pytest.param([], [], [A], [], [Put(A)], id="first contact with an empty directory: ours is written"),
        pytest.param([], [A], [B], [A], [Put(B)], id="first contact of two trees: each gets what it lacks"),
        pytest.param([A], [A], [A], [], [], id="all agree"),
        pytest.param([A], [A, B], [A], [B], [], id="added by hand"),
        pytest.param([A, B], [A], [A, B], [TopicRemoved(B.path), Tombstone("topic:b")], [], id="removed by hand"),
        pytest.param([A], [topic("a")], [A], [topic("a")], [], id="edited by hand"),
        pytest.param([A], [A], [A, B], [], [Put(B)], id="added through us"),
        pytest.param([A, B], [A, B], [A], [], [Remove(B.path)], id="removed through us"),
        pytest.param([A], [A], [topic("a", code="new")], [], [Put(topic("a", code="new"))], id="edited through us"),
        pytest.param([A], [topic("a", code="x")], [topic("a", code="y")], [topic("a", code="x")], [], id="conflict"),
        pytest.param([A], [], [topic("a", code="y")], [TopicRemoved(A.path), Tombstone("topic:a")], [],
                     id="removed by hand and edited through us: removed"),
        pytest.param([A], [topic("a", code="x")], [], [topic("a", code="x")], [],
                     id="edited by hand and removed through us: stays"),
        pytest.param([A], [], [], [], [], id="removed on both sides"),
    ],
)  # fmt: skip
def test_who_changed_what(
    known: list[TopicRecord],
    directory: list[TopicRecord],
    tree: list[TopicRecord],
    to_log: list[object],
    to_directory: list[object],
) -> None:
    plan = reconcile(by_path(*known), listed(by_path(*directory)), by_path(*tree))
    assert list(plan.records) == to_log
    assert list(plan.changes) == to_directory
    assert plan.problems == ()


def test_a_topic_whose_entry_cannot_be_read_stays_as_it_was() -> None:
    listing = listed({}, held=frozenset({A.path}))
    assert reconcile(by_path(A), listing, by_path(A)).idle


def test_a_subtree_that_moved_through_us_is_moved_in_one_piece() -> None:
    old = by_path(topic("a/x"), topic("a/x/y", code="Y"), topic("b"))
    new = by_path(topic("b/z"), topic("b/z/y", code="Y"), topic("b"))
    plan = reconcile(old, listed(old), new)
    assert plan.changes == (Move(parse_path("a/x"), parse_path("b/z")),)
    without = reconcile(old, listed(old), new, moves=False)
    assert set(without.changes) == {
        Put(topic("b/z")), Put(topic("b/z/y", code="Y")), Remove(parse_path("a/x")), Remove(parse_path("a/x/y")),
    }  # fmt: skip


def test_a_topic_by_hand_below_a_final_one_is_reported_and_so_is_one_that_becomes_final() -> None:
    final, before = by_path(topic("a", final=True)), by_path(topic("a"), C)
    for here, there, path in ((final, final | by_path(C), "a/c"), (before, by_path(topic("a", final=True), C), "a")):
        plan = reconcile(here, listed(there), here)
        assert plan.idle
        assert [(p.kind, p.path) for p in plan.problems] == [(ProblemKind.BELOW_FINAL, path)]


def test_a_code_given_to_two_topics_at_once_stays_with_the_directorys() -> None:
    plan = reconcile({}, listed(by_path(topic("theirs", code="K"))), by_path(topic("ours", code="K")))
    assert plan.records == (topic("ours"), topic("theirs", code="K"))
    assert plan.changes == (Put(topic("ours")),)
    assert [p.kind for p in plan.problems] == [ProblemKind.DUPLICATE_CODE]


@pytest.mark.parametrize(
    ("listing", "answer"),
    [
        (Listing(initialised=False), True),
        (Listing(fresh=True), True),
        (Listing(fresh=False), False),
        (Listing({A.path: TopicEntry(A, ())}, fresh=True), False),
        (Listing(fresh=True, held=frozenset({A.path})), False),
    ],
)
def test_an_empty_directory_empties_the_tree_only_while_we_watch(listing: Listing, answer: bool) -> None:
    assert first_contact(by_path(A), listing, by_path(A)) is answer


def _legal(topics: list[TopicRecord]) -> dict[TopicPath, TopicRecord]:
    """Of these topics as many as one tree can hold: a code once, nothing below final topics."""
    held: dict[TopicPath, TopicRecord] = {}
    codes: set[str] = set()
    for each in sorted(topics, key=lambda record: record.path.count("/")):
        if each.code in codes or any(a in held and held[a].final for a in ancestors(each.path)):
            continue
        if each.final and any(each.path in ancestors(path) for path in held):
            continue
        codes |= {each.code} - {""}
        held[each.path] = each
    return held


@st.composite
def states(draw: st.DrawFn) -> tuple[Records, Records, Records]:
    """(known, directory, tree): a tree, and two histories that went on from there."""
    known = draw(st.lists(records(), max_size=6, unique_by=lambda record: record.path))
    sides = []
    for _ in range(2):
        kept = [each for each in known if draw(st.integers(0, 3))]
        edited = [msgspec.structs.replace(r, code=draw(st.sampled_from([r.code, "new"]))) for r in kept]
        added = draw(st.lists(records(), max_size=4))
        sides.append(_legal([*edited, *added]))
    return _legal(known), sides[0], sides[1]


@given(states())
def test_afterwards_both_sides_are_equal_and_a_second_run_has_nothing_to_do(
    state: tuple[Records, Records, Records],
) -> None:
    known, directory, tree = state
    entries = EntrySet()
    written(entries, [Put(record) for record in directory.values()])
    plan = reconcile(known, read_listing(entries, BASE), tree)
    tree = folded(tree, plan)
    written(entries, list(plan.changes))
    listing = read_listing(entries, BASE)
    # What the tree's rules forbid stays as each side has it, and is reported.
    disputed = {problem.path for problem in plan.problems if problem.kind is ProblemKind.BELOW_FINAL}
    disputed |= {problem.path for problem in listing.problems}
    theirs = listing.records()
    assert {p: r for p, r in theirs.items() if p not in disputed} == {
        p: r for p, r in tree.items() if p not in disputed
    }
    agreed = dict(known)
    for path, record in plan.agreed.items():
        if record is None:
            agreed.pop(path, None)
        else:
            agreed[path] = record
    again = reconcile(agreed, listing, tree)
    assert again.idle


@given(states())
def test_who_edits_in_the_directory_wins(state: tuple[Records, Records, Records]) -> None:
    known, directory, tree = state
    plan = reconcile(known, listed(directory), tree)
    after = folded(tree, plan)
    refused = {problem.path for problem in plan.problems}
    for path, record in directory.items():
        if known.get(path) != record and path not in refused:
            assert after[path] == record


class TestCodesFromPlaces:
    """A directory holds them like other codes, and does not know where they come from."""

    OURS = topic("a", code="1", placed=True)
    THEIRS = topic("a", code="1")

    def test_they_are_written_and_then_agreed_on(self) -> None:
        bare = topic("a")
        plan = reconcile(by_path(bare), listed(by_path(bare)), by_path(self.OURS))
        assert (plan.records, plan.changes) == ((), (Put(self.THEIRS),))
        assert reconcile(by_path(self.THEIRS), listed(by_path(self.THEIRS)), by_path(self.OURS)).idle

    def test_who_takes_over_writes_the_code_that_a_gateway_which_died_has_not_written_yet(self) -> None:
        """It had written the topic, and nobody has saved that this was agreed on."""
        bare = topic("a")
        plan = reconcile({}, listed(by_path(bare)), by_path(self.OURS))
        assert (plan.records, plan.changes) == ((), (Put(self.THEIRS),))
        # A person who takes the code of another topic away is heard.
        chosen = topic("a", code="C")
        assert reconcile({}, listed(by_path(bare)), by_path(chosen)).records == (bare,)

    def test_an_edit_beside_the_code_leaves_it_one_from_the_place(self) -> None:
        edited = topic("a", code="1", priority=3)
        plan = reconcile(by_path(self.THEIRS), listed(by_path(edited)), by_path(self.OURS))
        assert plan.records == (msgspec.structs.replace(edited, placed=True),)
        assert plan.agreed == by_path(edited)
        after = by_path(msgspec.structs.replace(edited, placed=True))
        assert reconcile(by_path(edited), listed(by_path(edited)), after).idle

    def test_one_that_a_person_writes_is_chosen(self) -> None:
        edited = topic("a", code="A")
        plan = reconcile(by_path(self.THEIRS), listed(by_path(edited)), by_path(self.OURS))
        assert plan.records == (edited,)

    def test_a_topic_that_is_moved_there_leaves_its_place(self) -> None:
        moved, chosen = topic("b/a", code="1"), topic("c", code="C")
        known = by_path(self.THEIRS, topic("d", code="C"))
        plan = reconcile(known, listed(by_path(moved, chosen)), by_path(self.OURS, topic("d", code="C")))
        assert set(plan.records) >= {topic("b/a"), chosen, TopicRemoved(TopicPath("a"))}

    def test_one_that_was_chosen_there_for_another_topic_gives_way(self) -> None:
        """Both were written at the same time; an entry with a code that another has is not read."""
        directory = listed(by_path(topic("chosen", code="1"), self.THEIRS))
        assert directory.held == {"a"}
        chosen = topic("chosen", code="1")
        # Before it has another: without a code.
        plan = reconcile({}, directory, by_path(self.OURS, chosen))
        assert (plan.records, plan.changes) == ((topic("a"),), (Put(topic("a")),))
        again = topic("a", code="2", placed=True)
        assert reconcile({}, directory, by_path(again, chosen)).changes == (Put(topic("a", code="2")),)
        # What somebody chose twice is for somebody to decide.
        assert reconcile({}, directory, by_path(self.THEIRS, chosen)).idle
