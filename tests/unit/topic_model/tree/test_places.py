"""Codes from places: unique, and stable."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.topic_model.records.control import (
    ControlRecord,
    Tombstone,
    TopicPlaces,
    TopicPolicy,
    TopicRecord,
    TopicRemoved,
    decode,
    encode,
    key_of,
)
from arborcast.topic_model.topics import TopicPath
from arborcast.topic_model.tree.places import Places, ordinal
from arborcast.topic_model.tree.plans import plan_move, plan_remove, plan_update
from arborcast.topic_model.tree.tree import TopicTree

A, URGENT = TopicPath("a"), TopicPolicy(priority=3)


class Log:
    """The control log, and the process that assigns codes."""

    def __init__(self, records: Sequence[ControlRecord] = ()) -> None:
        self.tree = TopicTree()
        self.places = Places()
        self.records: list[ControlRecord] = []
        self.append(*records)

    def append(self, *records: ControlRecord) -> Log:
        for record in records:
            self.records.append(decode(*encode(record)))
            self.tree.apply(record)
            if isinstance(record, Tombstone) and record.key.startswith("topic:"):
                self.tree.remove(TopicPath(record.key.removeprefix("topic:")))
            self.places.apply(record)
        return self

    def add(self, *paths: str, code: str = "") -> Log:
        return self.append(*(TopicRecord(TopicPath(path), code) for path in paths))

    def remove(self, path: str) -> Log:
        return self.append(*plan_remove(self.tree, TopicPath(path), recursive=True))

    def settle(self, most: int = 3) -> Log:
        for _ in range(1_000):
            planned = self.places.plan(self.tree, most)
            if self.places.idle and not planned:
                return self
            self.append(*planned)
        raise AssertionError(f"without end: {planned}")

    def codes(self) -> dict[str, str]:
        return {record.path: record.code for record in self.tree.records()}

    def compacted(self, before: int | None = None) -> list[ControlRecord]:
        """The records up to this offset after compaction, and all later ones."""
        old, new = self.records[:before], self.records[len(self.records[:before]) :]
        last = {key_of(record): record for record in old}
        return [each for each in old if last[key_of(each)] is each and not isinstance(each, Tombstone)] + new


def test_codes_are_places_in_base_36() -> None:
    assert [ordinal(number) for number in (1, 9, 10, 35, 36, 37, 36 * 36)] == ["1", "9", "A", "Z", "10", "11", "100"]
    log = Log().add("all", *(f"all/n{number:02}" for number in range(1, 12)), "all/n04/x", "{urn:t}other/deep/er")
    assert log.settle(100).codes() == {
        "all": "1",
        **{f"all/n{number:02}": f"1.{ordinal(number)}" for number in range(1, 12)},
        "all/n04/x": "1.4.1",
        "{urn:t}other/deep/er": "2.1.1",
    }


def test_removed_siblings_leave_gaps() -> None:
    log = Log().add("a", "b", "c").settle().remove("c").remove("a").settle()
    assert log.add("d", "c", "e/f").settle().codes() == {"b": "2", "d": "5", "c": "4", "e/f": "6.1"}
    # The branch ends with its node: the same path later is another topic, and so are those below it.
    log.remove("e/f").settle()
    assert not [each for each in log.compacted() if isinstance(each, TopicPlaces) and each.path == "e"]
    assert log.add("e/f").settle().codes()["e/f"] == "7.1"


def test_a_process_that_does_not_plan_keeps_no_removed_topics() -> None:
    waiting = Places()
    for number in range(100):
        log = Log().add(f"a/b{number}/c").settle().remove("a")
        for record in log.settle().records:
            waiting.apply(record)
    assert waiting.idle


def test_a_large_tree_is_planned_in_pieces() -> None:
    log = Log().add(*(f"a/n{number}" for number in range(12_000)))
    codes = log.settle(500).codes()
    assert len(set(codes.values())) == 12_000
    again = Log(log.compacted())
    assert not again.places.plan(again.tree, 500)
    assert not again.places.idle
    assert again.settle().codes() == codes


def test_chosen_codes_are_kept_and_skipped() -> None:
    log = Log().add("x", code="2").add("a", "b", "c/d")
    assert log.settle().codes() == {"x": "2", "a": "1", "b": "3", "c/d": "4.1"}
    log.add("y", code="4").add("c", "c/e")
    assert log.settle().codes() == {"x": "2", "a": "1", "b": "3", "c/d": "4.1", "y": "4", "c": "5", "c/e": "5.2"}
    # A user or a directory chooses a code that another topic has from its place.
    assert log.add("z", code="1").settle().codes() == {**log.codes(), "z": "1", "a": "6", "b": "3"}
    # A chosen code is removed.
    assert log.add("z").settle().codes()["z"] == "7"


def test_changes_keep_the_code_and_moves_do_not() -> None:
    log = Log().add("a", "a/b", "c").settle()
    changed = TopicRecord(TopicPath("a/b"), policy=URGENT)
    log.append(*plan_update(log.tree, changed))
    assert log.codes()["a/b"] == "1.1"
    assert not plan_update(log.tree, changed), "no change"
    assert not plan_update(log.tree, msgspec.structs.replace(changed, code="1.1"))
    assert not log.places.plan(log.tree, 10)
    log.append(*plan_move(log.tree, TopicPath("a"), TopicPath("c/a")))
    assert log.settle().codes() == {"c": "2", "c/a": "2.1", "c/a/b": "2.1.1"}


@pytest.mark.parametrize(
    ("meanwhile", "after"),
    [
        ([TopicRecord(A, policy=URGENT)], TopicRecord(A, "1", policy=URGENT, placed=True)),
        ([TopicRecord(A, "chosen")], TopicRecord(A, "chosen")),
        ([TopicRemoved(A), Tombstone.of("topic", A)], None),
    ],
    ids=["changed", "given a code", "removed"],
)
def test_changes_before_the_code_are_kept(meanwhile: list[ControlRecord], after: TopicRecord | None) -> None:
    log = Log().add("a")
    planned = log.places.plan(log.tree, 10)
    log.append(*meanwhile, *planned).settle()
    assert log.tree.get(A) == after


def test_codes_that_are_too_long_are_not_given() -> None:
    log = Log([TopicPlaces(A, "1" * 255, 0)]).add("a/b", "b")
    assert log.settle().codes() == {"a/b": "", "b": "1"}


paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
operations = st.tuples(st.sampled_from(["add", "again", "remove", "choose", "clash"]), paths) | st.tuples(
    st.sampled_from(["give", "lose", "restart"]), st.just("")
)


class History:
    """Changes of a tree, with planned records that are not in the log, and the promised codes."""

    def __init__(self) -> None:
        self.log = Log()
        self.planned: list[ControlRecord] = []
        self.promised: dict[str, str] = {}
        self.given: dict[str, object] = {}  # each code from a place, to the life of the topic that has it
        self.lives: dict[str, object] = {}
        self.chosen = 0
        self.settled = 0

    def happen(self, what: str, path: str) -> None:
        tree, topic = self.log.tree, TopicPath(path)
        match what:
            case "add" if topic not in tree:
                self.lives[path] = object()
                self.log.add(path)
            case "again" if topic in tree:
                known = tree.get(topic)
                if known is not None and (known.placed or not known.code):
                    self.log.add(path)
            case "remove" if tree.is_node(topic):
                for removed in (topic, *tree.descendants(topic)):
                    self.promised.pop(removed, None)
                    self.lives.pop(removed, None)
                self.log.remove(path)
            case "choose" if topic in tree:
                self.chosen += 1
                self.promised.pop(path, None)
                self.log.add(path, code=f"chosen{self.chosen}")
            case "clash" if topic in tree and self.promised:
                owner, code = min(self.promised.items())
                if owner != path:
                    self.promised.pop(owner)
                    self.promised.pop(path, None)
                    self.given.pop(code, None)
                    self.log.add(path, code=code)
            case "give":
                self.log.append(*self.planned)
                self.planned = self.log.places.plan(tree, 2)
            case "lose":
                self.log.places.return_plan(self.planned)
                self.planned = []
            case "restart":
                self.log.append(*self.planned)
                # Records invalidated by these are written again; a crash before that is the one in between.
                self.log.append(*self.log.places.plan(self.log.tree, 2))
                self.planned = []
                # Compaction keeps the last day, in which a record may have been repeated.
                self.log = Log(self.log.compacted(self.settled))
                self.settled = 0

    def check(self) -> None:
        """All planned records are in the log."""
        self.log.append(*self.planned)
        self.planned = []
        self.log.settle()
        self.settled = len(self.log.records)
        codes = self.log.codes()
        assert all(codes.values()), "a topic without a code"
        assert len(set(codes.values())) == len(codes), "a code of two topics"
        assert {path: codes[path] for path in self.promised} == self.promised, "a changed code"
        assert codes.keys() == self.lives.keys(), "other topics"
        for record in self.log.tree.records():
            if record.placed:
                self.promised[record.path] = record.code
                life = self.lives[record.path]
                assert self.given.setdefault(record.code, life) is life, "a reused code"


@given(st.lists(st.lists(operations, max_size=12), max_size=5))
def test_codes_are_unique_and_stable(histories: list[list[tuple[str, str]]]) -> None:
    history = History()
    for each in histories:
        for what, path in each:
            history.happen(what, path)
        history.check()
