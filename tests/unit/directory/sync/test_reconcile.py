from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.directory.entries.changes import Change, Move, Put, Remove
from arborcast.directory.entries.dn import parse_dn
from arborcast.directory.entries.entries import EntrySet
from arborcast.directory.entries.mapping import Listing, ProblemKind, TopicEntry, canonical
from arborcast.directory.entries.reader import read_listing
from arborcast.directory.sync.reconcile import Plan, Records, lost, reconcile
from arborcast.topic_model.records.control import Tombstone, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath, ancestors, parse_path
from tests.support.directory import carry_out, records, topic
from tests.support.routing import tree_of

BASE = parse_dn("ou=topics,dc=x")


def by_path(*topics: TopicRecord) -> dict[TopicPath, TopicRecord]:
    return {each.path: each for each in topics}


def listed(topics: Records, **facts: object) -> Listing:
    """The listing of a directory with these topics."""
    entries = EntrySet()
    carry_out([Put(record) for record in topics.values()], entries, BASE)
    return dataclasses.replace(read_listing(entries, BASE), **{"initialised": True, **facts})  # type: ignore[arg-type]


A, B, C = topic("a", code="A"), topic("b", code="B"), topic("a/c")
X, Y, NEW = topic("a", code="x"), topic("a", code="y"), topic("a", code="new")
A_REMOVED: list[object] = [TopicRemoved(A.path), Tombstone("topic:a")]
# Codes from places: a directory stores them like other codes, without their origin.
BARE, PLACED, THEIRS = topic("a"), topic("a", code="1", placed=True), topic("a", code="1")
RANKED, CHOSEN = topic("a", code="1", priority=3), topic("chosen", code="1")
RANKED_PLACED = msgspec.structs.replace(RANKED, placed=True)
OTHER, OTHER_THEIRS = topic("a", code="2", placed=True), topic("a", code="2")

CASES: dict[str, tuple[list[TopicRecord], list[TopicRecord], list[TopicRecord], list[object], list[Change]]] = {
    # The agreed state, the directory, the tree; expected records for the log, and changes for the directory.
    "both empty": ([], [], [], [], []),
    "first contact of an empty tree: the directory is read": ([], [A], [], [A], []),
    "first contact with an empty directory: the tree is written": ([], [], [A], [], [Put(A)]),
    "first contact of two trees: each gets the other's topics": ([], [A], [B], [A], [Put(B)]),
    "all agree": ([A], [A], [A], [], []),
    "added manually": ([A], [A, B], [A], [B], []),
    "removed manually": ([A, B], [B], [A, B], A_REMOVED, []),
    "edited manually": ([A], [BARE], [A], [BARE], []),
    "added in the engine": ([A], [A], [A, B], [], [Put(B)]),
    "removed in the engine": ([A, B], [A, B], [A], [], [Remove(B.path)]),
    "edited in the engine": ([A], [A], [NEW], [], [Put(NEW)]),
    "conflict": ([A], [X], [Y], [X], []),
    "removed manually and edited in the engine: removed": ([A], [], [Y], A_REMOVED, []),
    "edited manually and removed in the engine: stays": ([A], [X], [], [X], []),
    "removed on both sides": ([A], [], [], [], []),
    "a code given to another topic, after an interrupted write": (
        *([BARE, B], [topic("a", code="B"), B], [topic("a", code="B"), topic("b")], []),
        [Put(topic("b"))],
    ),
    "a code used twice manually": ([BARE, B], [topic("a", code="B"), B], [BARE, B], [topic("a", code="B")], []),
    "a code from the place is written": ([BARE], [BARE], [PLACED], [], [Put(THEIRS)]),
    "and then agreed on": ([THEIRS], [THEIRS], [PLACED], [], []),
    "also after a crash of the gateway that wrote the topic": ([], [BARE], [PLACED], [], [Put(THEIRS)]),
    "a manually removed code of the engine": ([], [BARE], [A], [BARE], []),
    "an edit of another attribute keeps the code from the place": ([THEIRS], [RANKED], [PLACED], [RANKED_PLACED], []),
    "and is agreed on": ([RANKED], [RANKED], [RANKED_PLACED], [], []),
    "a manually written code is chosen": ([THEIRS], [A], [PLACED], [A], []),
    # An entry with the code of another one is not read.
    "a code chosen there for another topic": ([], [CHOSEN, THEIRS], [OTHER, CHOSEN], [], [Put(OTHER_THEIRS)]),
    "a code that was chosen twice": ([], [CHOSEN, THEIRS], [THEIRS, CHOSEN], [], []),
}


@pytest.mark.parametrize("case", CASES)
def test_plans(case: str) -> None:
    known, directory, tree, to_log, to_directory = CASES[case]
    plan = reconcile(by_path(*known), listed(by_path(*directory)), by_path(*tree))
    assert (list(plan.records), list(plan.changes), plan.problems) == (to_log, to_directory, ())


def test_a_manual_edit_is_agreed_in_the_directory_s_form() -> None:
    assert reconcile(by_path(THEIRS), listed(by_path(RANKED)), by_path(PLACED)).agreed == by_path(RANKED)


def test_a_chosen_code_replaces_one_from_the_place() -> None:
    plan = reconcile({}, listed(by_path(CHOSEN, THEIRS)), by_path(PLACED, CHOSEN))
    assert (plan.records, plan.changes) == ((BARE,), (Put(BARE),))


def test_a_manually_moved_topic_loses_the_code_of_its_place() -> None:
    moved, chosen, before = topic("b/a", code="1"), topic("c", code="C"), topic("d", code="C")
    plan = reconcile(by_path(THEIRS, before), listed(by_path(moved, chosen)), by_path(PLACED, before))
    assert set(plan.records) >= {topic("b/a"), chosen, TopicRemoved(TopicPath("a"))}


def test_a_topic_with_an_unreadable_entry_is_unchanged() -> None:
    listing = listed({}, held=frozenset({A.path}))
    assert reconcile(by_path(A), listing, by_path(A)) == Plan()


def test_a_subtree_moved_in_the_tree_is_moved_in_one_operation() -> None:
    old = by_path(topic("a/x"), topic("a/x/y", code="Y"), topic("b"))
    new = by_path(topic("b/z"), topic("b/z/y", code="Y"), topic("b"))
    assert reconcile(old, listed(old), new).changes == (Move(parse_path("a/x"), parse_path("b/z")),)
    without = reconcile(old, listed(old), new, moves=False)
    puts, removals = {Put(topic("b/z")), Put(topic("b/z/y", code="Y"))}, {"a/x", "a/x/y"}
    assert set(without.changes) == puts | {Remove(parse_path(each)) for each in removals}


def test_a_topic_above_the_new_place_of_another_is_not_moved_with_it() -> None:
    entries = EntrySet()
    old, new = by_path(A, B), by_path(topic("b/x", code="A"), topic("c", code="B"))
    carry_out([Put(record) for record in old.values()], entries, BASE)
    listing = read_listing(entries, BASE)
    plan = reconcile(listing.records(), listing, new)
    assert Move(A.path, parse_path("b/x")) in plan.changes
    carry_out(plan.changes, entries, BASE)
    assert read_listing(entries, BASE).records() == new


def test_topics_below_a_final_one_are_reported() -> None:
    final, before = by_path(topic("a", final=True)), by_path(topic("a"), C)
    for here, there, path in ((final, final | by_path(C), "a/c"), (before, by_path(topic("a", final=True), C), "a")):
        plan = reconcile(here, listed(there), here)
        assert (plan.records, plan.changes) == ((), ())
        assert [(p.kind, p.path) for p in plan.problems] == [(ProblemKind.BELOW_FINAL, path)]


def test_a_code_of_two_topics_stays_with_the_directory_s_topic() -> None:
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
    assert bool(lost(by_path(A), listing)) is answer


@pytest.mark.parametrize(("left", "fresh", "missing"), [(140, True, 160), (140, False, 0), (160, True, 0)])
def test_a_directory_that_lacks_half_of_many_topics_is_incomplete(left: int, fresh: bool, missing: int) -> None:
    known = by_path(*(topic(f"t{number}") for number in range(300)))
    there = {path: TopicEntry(record, ()) for path, record in list(known.items())[:left]}
    assert len(lost(known, Listing(there, fresh=fresh))) == missing
    assert lost(known, Listing(there, fresh=fresh, held=frozenset(list(known)[left:]))) == ()
    renamed = {parse_path(f"new/{path}"): entry for path, entry in there.items()}
    assert len(lost(known, Listing(renamed, fresh=fresh))) == (300 if missing else 0)


def _legal(topics: list[TopicRecord]) -> dict[TopicPath, TopicRecord]:
    """As many of these topics as one tree can have: unique codes, nothing below final topics."""
    held: dict[TopicPath, TopicRecord] = {}
    codes: set[str] = set()
    for each in sorted(topics, key=lambda record: record.path.count("/")):
        if each.code in codes or any(a in held and held[a].final for a in ancestors(each.path)):
            continue
        codes |= {each.code} - {""}
        held[each.path] = each
    return held


@st.composite
def states(draw: st.DrawFn) -> tuple[Records, Records, Records]:
    """(known, directory, tree): a tree, and two histories that continue from it."""
    known = draw(st.lists(records(), max_size=6, unique_by=lambda record: record.path))
    sides = []
    for _ in range(2):
        kept = [each for each in known if draw(st.integers(0, 3))]
        edited = [msgspec.structs.replace(r, code=draw(st.sampled_from([r.code, "new"]))) for r in kept]
        added = draw(st.lists(records(), max_size=4))
        sides.append(_legal([*edited, *added]))
    return _legal(known), sides[0], sides[1]


@given(states())
def test_both_sides_become_equal_and_edits_in_the_directory_win(state: tuple[Records, Records, Records]) -> None:
    known, directory, tree = state
    entries = EntrySet()
    carry_out([Put(record) for record in directory.values()], entries, BASE)
    plan = reconcile(known, read_listing(entries, BASE), tree)
    after = tree_of(*tree.values(), *plan.records)
    tree = {record.path: canonical(record) for record in after.records()}
    carry_out(plan.changes, entries, BASE)
    listing = read_listing(entries, BASE)
    # State that the tree's rules forbid stays on each side, and is reported.
    disputed = {problem.path for problem in plan.problems if problem.kind is ProblemKind.BELOW_FINAL}
    disputed |= {problem.path for problem in listing.problems}
    sides = [
        {path: record for path, record in side.items() if path not in disputed} for side in (listing.records(), tree)
    ]
    assert sides[0] == sides[1]
    refused = {problem.path for problem in plan.problems}
    for path, record in directory.items():
        assert tree.get(path) == record or known.get(path) == record or path in refused
    agreed = {path: record for path, record in {**known, **plan.agreed}.items() if record is not None}
    again = reconcile(agreed, listing, tree)
    assert (again.records, again.changes) == ((), ()), "a second run has nothing to do"
