"""The sync with a directory that fails on request; for real directories see tests/integration."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.directory.entries.changes import Change, Move, Put, Remove
from arborcast.directory.entries.dn import parse_dn
from arborcast.directory.entries.entries import EntrySet
from arborcast.directory.entries.mapping import EntryProblem, Listing, ProblemKind
from arborcast.directory.entries.reader import read_listing
from arborcast.directory.errors import DirectoryError, DirectoryUnavailable
from arborcast.directory.stores.contract import Watcher, Written, touched
from arborcast.directory.sync import sync
from arborcast.directory.sync.problems import FILE, SyncProblems, load_problems
from arborcast.directory.sync.reconcile import Plan, load_known, reconcile, save_known
from arborcast.directory.sync.sync import DirectorySync
from arborcast.topic_model.records.control import ControlRecord, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath, parse_path
from tests.support.directory import WAIT_SECONDS, Log, carry_out, topic
from tests.support.waiting import wait_until

BASE = parse_dn("ou=topics")


class ScriptedDirectory:
    """Entries in memory; the test sets refused changes and outages."""

    def __init__(self, *topics: TopicRecord) -> None:
        self.name = "scripted"
        self.entries = EntrySet()
        self._lock = threading.Lock()  # of the entries: the test reads them beside the sync's thread
        self.refuses: set[TopicPath] = set()
        self.supports_moves = True
        self.refusal = ProblemKind.REFUSED
        self.write_errors: list[DirectoryError] = []
        self.writes: list[Change] = []
        self.watcher: Watcher | None = None
        self.apply([Put(record) for record in topics])

    def load(self) -> Listing:
        with self._lock:
            return read_listing(self.entries, BASE)

    def apply(self, changes: Sequence[Change]) -> None:
        with self._lock:
            carry_out(changes, self.entries, BASE)

    def by_hand(self, *changes: Change) -> None:
        self.apply(changes)
        self.notify()

    def notify(self) -> None:
        assert self.watcher is not None
        self.watcher.changed(self.load())

    def write(self, changes: Sequence[Change], seen: Listing, stop: Callable[[], bool] = lambda: False) -> Written:
        if self.write_errors:
            raise self.write_errors.pop(0)
        self.writes += changes
        refused = [
            change
            for change in changes
            if self.refuses.intersection(touched(change)) or (isinstance(change, Move) and not self.supports_moves)
        ]
        self.apply([change for change in changes if change not in refused])
        problems = [EntryProblem(self.refusal, "dn", "no", touched(change)[-1]) for change in refused]
        return Written(tuple(problems), self.load())

    def watch(self, watcher: Watcher) -> None:
        self.watcher = watcher

    def close(self) -> None:
        self.watcher = None

    def paths(self) -> set[str]:
        return set(self.load().entries)


class Rig:
    """A sync between a log and a scripted directory."""

    def __init__(self, directory: ScriptedDirectory, state: Path) -> None:
        self.directory = directory
        self.log = Log()
        self.sync = DirectorySync(directory, self.log.append, state, state.with_name(FILE))
        self.log.sync = self.sync

    def start(self) -> None:
        self.sync.start()
        self.directory.notify()

    def paths(self) -> set[str]:
        return set(self.log.topics())

    def append(self, *records: ControlRecord) -> None:
        """Append records that one run reads together."""
        self.allow(False)
        self.log.append(records)
        self.allow(True)

    def allow(self, allowed: bool) -> None:
        """Give the sync the lease, or take it away."""
        self.sync.allowed = lambda: allowed
        self.sync.wake()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A sync that has read the topic `a` of the directory."""
    made = Rig(ScriptedDirectory(topic("a")), tmp_path / "state")
    made.start()
    wait_until(lambda: made.paths() == {"a"} and not made.sync.behind)
    yield made
    made.sync.close()


def test_changes_of_the_engine_are_written_also_after_failures(rig: Rig) -> None:
    rig.directory.write_errors = [DirectoryUnavailable("gone"), DirectoryUnavailable("gone")]
    rig.log.append([topic("b")])
    wait_until(lambda: rig.directory.paths() == {"a", "b"})
    assert rig.directory.writes == [Put(topic("b"))]
    for number in range(50):
        rig.log.append([topic("a", code=str(number))])
    last = {"a": topic("a", code="49"), "b": topic("b")}
    wait_until(lambda: rig.directory.load().records() == last)
    assert rig.log.topics() == last
    # Own changes are not read back as manual edits: only these and the first reading are in the log.
    assert len(rig.log.records) == 52


def test_a_move_without_support_is_made_entry_by_entry(rig: Rig) -> None:
    rig.directory.supports_moves = False
    rig.append(topic("z"), TopicRemoved(parse_path("a")))
    wait_until(lambda: rig.directory.paths() == {"z"})
    rig.append(topic("y"), TopicRemoved(parse_path("z")))
    wait_until(lambda: rig.directory.paths() == {"y"})
    assert [each for each in rig.directory.writes if isinstance(each, Move)] == [Move(parse_path("a"), parse_path("z"))]


@pytest.mark.parametrize("refusal", [ProblemKind.CONFLICT, ProblemKind.REFUSED])
def test_moves_are_made_after_one_to_a_refused_name_or_in_conflict_with_an_edit(rig: Rig, refusal: ProblemKind) -> None:
    a, b, c, z = map(parse_path, "abcz")
    rig.directory.refuses, rig.directory.refusal = {z}, refusal
    rig.append(topic("b", code="1"), topic("z"), TopicRemoved(a))
    wait_until(lambda: Move(a, z) in rig.directory.writes and "b" in rig.directory.paths())
    if refusal is ProblemKind.REFUSED:
        wait_until(lambda: Put(topic("z")) in rig.directory.writes and not rig.sync.behind)
    rig.append(topic("c", code="1"), TopicRemoved(b))
    wait_until(lambda: Move(b, c) in rig.directory.writes)


def test_a_refused_change_is_a_problem_until_it_is_mended(rig: Rig, tmp_path: Path) -> None:
    def listed() -> SyncProblems:
        """As other processes read them."""
        return load_problems(tmp_path / FILE)

    rig.directory.refuses = {parse_path("bad")}
    rig.log.append([topic("bad"), topic("good")])
    wait_until(lambda: rig.directory.paths() == {"a", "good"} and listed().count == 1)
    (first,) = listed().problems
    assert (first.kind, first.path, first.reason, first.since_ms > 0) == ("refused", "bad", "no", True)
    assert "every minute" in first.advice
    for number in range(5):
        rig.log.append([topic(f"more{number}")])
        wait_until(lambda number=number: f"more{number}" in rig.directory.paths())  # type: ignore[misc]  # mypy infers no lambda with a default
    assert rig.directory.writes.count(Put(topic("bad"))) == 1, "not repeated at every step"
    assert [problem.path for problem in rig.sync.status.problems] == ["bad"]
    # A valid change is made at once.
    rig.directory.refuses = set()
    rig.log.append([topic("bad", code="mended")])
    wait_until(lambda: "bad" in rig.directory.paths() and listed().count == 0)


def test_changes_are_counted_during_an_outage_of_the_directory(rig: Rig) -> None:
    rig.sync.unavailable(DirectoryUnavailable("the cable is out"))
    rig.log.append([topic("b"), topic("c")])
    assert (rig.sync.status.connected, rig.sync.status.detail) == (False, "the cable is out")
    assert (rig.sync.behind, rig.directory.writes) == (2, [])
    rig.directory.notify()
    wait_until(lambda: rig.directory.paths() == {"a", "b", "c"} and not rig.sync.behind)
    assert rig.sync.status.connected
    rig.allow(False)
    rig.log.append([topic("d")])
    assert rig.sync.behind == 0, "written by another process"


def test_a_large_edit_is_appended_in_portions(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    appended = list[int]()

    def append(records: Sequence[ControlRecord]) -> None:
        appended.append(len(records))
        rig.log.append(records)

    monkeypatch.setattr(rig.sync, "_append", append)
    below = [f"a/t{number}" for number in range(2_500)]
    rig.directory.by_hand(*(Put(topic(path)) for path in below))
    wait_until(lambda: rig.paths() == {"a", *below})
    assert appended == [1_000, 1_000, 500]


def test_records_are_applied_during_a_run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    followers: list[threading.Thread] = []

    def busy(*args: Any, **options: Any) -> Plan:
        if not followers:
            followers.append(threading.Thread(target=rig.log.append, args=([topic("c")],)))
            followers[0].start()
            followers[0].join(WAIT_SECONDS)
            assert not followers[0].is_alive()
        return reconcile(*args, **options)

    monkeypatch.setattr(sync, "reconcile", busy)
    rig.log.append([topic("b")])
    wait_until(lambda: rig.directory.paths() == {"a", "b", "c"} and not rig.sync.behind)


def test_records_before_an_append_that_fails_are_valid(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(records: Sequence[ControlRecord]) -> None:
        monkeypatch.setattr(rig.sync, "_append", rig.log.append)
        rig.log.append([topic("a", priority=5)])
        rig.directory.by_hand(Put(topic("a")))
        raise InfrastructureError("Kafka cannot be reached")

    monkeypatch.setattr(rig.sync, "_append", fail)
    rig.directory.by_hand(Put(topic("a", code="hand")))
    wait_until(lambda: rig.directory.load().records() == {"a": topic("a", priority=5)} == rig.log.topics())


def test_a_write_is_to_stop_with_the_loss_of_the_lease(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[bool] = []

    def write(changes: Sequence[Change], seen: Listing, stop: Callable[[], bool]) -> Written:
        stops.append(stop())
        rig.allow(False)
        stops.append(stop())
        return Written((), rig.directory.load(), len(changes))

    monkeypatch.setattr(rig.directory, "write", write)
    rig.log.append([topic("b")])
    wait_until(lambda: len(stops) == 2)
    assert stops == [False, True]


def test_edits_are_taken_over_soon_after_a_long_write(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pauses = SimpleNamespace(now_s=1_000.0, worked_s=0.0), list[float]()
    write = rig.directory.write

    def slow(changes: Sequence[Change], seen: Listing, stop: Callable[[], bool]) -> Written:
        # 100,000 topics on a slow server take an hour, mostly of waiting, and minutes of work.
        clock.now_s += 3_600.0
        clock.worked_s += 2.0 if Put(topic("b")) in changes else 100.0
        return write(changes, seen, stop)

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    monkeypatch.setattr(rig.directory, "write", slow)
    monkeypatch.setattr(rig.sync._service, "wait", pause)
    times = SimpleNamespace(monotonic=lambda: clock.now_s, thread_time=lambda: clock.worked_s, time_ns=time.time_ns)
    monkeypatch.setattr(sync, "time", times)
    for path, longest_s in (("b", 8.0), ("c", 60.0)):
        pauses.clear()
        rig.log.append([topic(path)])
        wait_until(lambda: max(pauses, default=0.0) > 1.0)
        assert max(pauses) == longest_s


def test_a_process_that_does_not_write_keeps_no_removed_topics(rig: Rig, tmp_path: Path) -> None:
    waiting = Rig(ScriptedDirectory(), tmp_path / "other")
    rig.allow(False)
    for number in range(100):
        for each in (rig, waiting):
            each.log.append([topic(f"t{number}")])
            each.log.append([TopicRemoved(parse_path(f"t{number}"))])
    wait_until(lambda: not rig.sync._tree.behind)
    assert not waiting.sync._tree.behind


def test_removals_before_a_takeover_are_not_undone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    rig = Rig(ScriptedDirectory(topic("a")), state)
    rig.allow(False)
    rig.log.append([topic("a")])
    rig.start()
    # Another process writes these to both sides, and stops.
    rig.log.append([topic("b"), topic("c"), topic("d")])
    rig.directory.by_hand(*(Put(topic(name)) for name in "bcd"))
    wait_until(lambda: set(load_known(state, "scripted")) == set("abcd"))
    rig.directory.by_hand(Remove(parse_path("b")), Put(topic("d", code="hand")))
    rig.log.append([TopicRemoved(parse_path("c"))])
    assert rig.directory.writes == []
    rig.allow(True)
    wait_until(lambda: rig.directory.paths() == {"a", "d"} == rig.paths())
    assert rig.log.topics() == {"a": topic("a"), "d": topic("d", code="hand")}
    rig.sync.close()


def test_a_late_listing_from_before_our_write_is_not_believed(rig: Rig) -> None:
    old = rig.directory.load()
    rig.log.append([topic("b")])
    wait_until(lambda: rig.directory.paths() == {"a", "b"})
    rig.sync.changed(old)
    rig.directory.by_hand(Put(topic("c")))
    wait_until(lambda: rig.paths() == {"a", "b", "c"})
    assert not any(isinstance(record, TopicRemoved) for record in rig.log.records)


def test_an_empty_directory_is_filled_and_an_emptied_one_applied(rig: Rig) -> None:
    rig.directory.by_hand(Remove(parse_path("a")))
    wait_until(lambda: rig.paths() == set())
    rig.log.append([topic("b")])
    wait_until(lambda: rig.directory.paths() == {"b"})
    rig.directory.entries = EntrySet()
    rig.directory.notify()
    wait_until(lambda: rig.directory.paths() == {"b"})
    assert rig.paths() == {"b"}


@pytest.mark.parametrize(("fresh", "initialised"), [(True, True), (False, False)])
def test_a_directory_that_is_restored_during_a_run_removes_no_topics(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, fresh: bool, initialised: bool
) -> None:
    names = {"a", *(f"t{number}" for number in range(300))}
    rig.directory.by_hand(*(Put(topic(name)) for name in names))
    wait_until(lambda: rig.paths() == names and set(rig.sync._known.topics) == names)

    def busy(*args: Any, **options: Any) -> Plan:
        monkeypatch.setattr(sync, "reconcile", reconcile)
        # The server was started without its data, and is filled from its backup.
        rig.directory.entries = EntrySet()
        rig.directory.apply([Put(topic("a"))])
        rig.sync.changed(dataclasses.replace(rig.directory.load(), fresh=fresh, initialised=initialised))
        rig.directory.by_hand(Put(topic("t0")))
        return reconcile(*args, **options)

    monkeypatch.setattr(sync, "reconcile", busy)
    rig.log.append([topic("b")])
    wait_until(lambda: rig.directory.paths() == names | {"b"} or rig.paths() != names | {"b"})
    assert rig.paths() == names | {"b"}


def test_agreed_topics_are_stored_for_the_next_process(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = Rig(ScriptedDirectory(topic("a"), topic("b")), state)
    first.start()
    wait_until(lambda: first.paths() == {"a", "b"})
    first.sync.close()
    assert set(load_known(state, "scripted")) == {"a", "b"}
    second = Rig(ScriptedDirectory(topic("a")), state)  # b was removed manually in the meantime
    second.log.append([topic("a"), topic("b"), topic("c")])  # c was added in the engine
    second.start()
    wait_until(lambda: second.paths() == {"a", "c"} == second.directory.paths())
    second.sync.close()

    for content in (b"", b"{", b'{"v": 1, "directory": "\xff"}', b'{"v": 99, "directory": "scripted", "topics": []}'):
        state.write_bytes(content)
        assert load_known(state, "scripted") == {}
    save_known(state, "one", [topic("a")])
    assert load_known(state, "other") == {}
    assert load_known(state, "one") == {"a": topic("a")}


@pytest.mark.parametrize(
    ("log", "left"), [("first", {"a"}), ("", {"a"}), ("second", {"a", "b"})], ids=["same", "no-ids", "created-again"]
)
def test_the_common_state_with_another_control_log_is_not_used(tmp_path: Path, log: str, left: set[str]) -> None:
    save_known(tmp_path / "state", "scripted", [topic("a"), topic("b")], "first")
    rig = Rig(ScriptedDirectory(topic("a"), topic("b")), tmp_path / "state")
    rig.log.append([topic("a")])  # removed since then, or a backup from before b
    rig.sync.of_log(log)
    rig.start()
    wait_until(lambda: rig.directory.paths() == left == rig.paths())
    rig.sync.close()


def test_a_thousand_problems_are_listed_each_kind_with_advice(tmp_path: Path) -> None:
    found = [EntryProblem(ProblemKind.FOREIGN, f"cn={number}", "none of ours") for number in range(5_000)]
    listed = SyncProblems().now("one", found, 1_000)
    assert (listed.count, len(listed.problems)) == (5_000, 1_000)
    for damaged in (b"", b"{", b'{"v": 9}', b"[]", b'{"directory": "\xff"}'):
        (tmp_path / FILE).write_bytes(damaged)
        assert load_problems(tmp_path / FILE) == SyncProblems()
    for kind in ProblemKind:
        (one,) = SyncProblems().now("one", [EntryProblem(kind, "cn=x", "so")], 1).problems
        assert one.advice.endswith(".")
