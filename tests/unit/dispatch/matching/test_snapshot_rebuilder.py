"""Base and overlay under changes, with builds that the test delays."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arborcast.dispatch.matching.bases import FileBase, FileBases, SnapshotRebuilder
from arborcast.topic_model.records.control import SubscriptionEnded, SubscriptionRecord
from arborcast.topic_model.routing import RoutingTable
from arborcast.topic_model.snapshot import Snapshot, SnapshotView
from arborcast.topic_model.topics import TopicPath
from tests.support.make import subscription


def record(name: object, topic: str = "a") -> SubscriptionRecord:
    return SubscriptionRecord(subscription(f"s{name}", topic))


class DelayedBases(FileBases):
    """Files that wait for `go`; `fail` makes the next one fail."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "bases")
        self.go = threading.Event()
        self.go.set()
        self.fail = False
        self.shared: list[FileBase] = []

    def share(self, snapshot: Snapshot) -> FileBase:
        assert self.go.wait(120)
        if self.fail:
            raise OSError("no space left on device")
        self.shared.append(super().share(snapshot))
        return self.shared[-1]

    def kept(self) -> list[bool]:
        """Whether each file exists."""
        return [Path(each.file).exists() for each in self.shared]


def begun(folder: Path, min_overlay: int = 3) -> tuple[RoutingTable, DelayedBases, SnapshotRebuilder]:
    table, bases = RoutingTable(), DelayedBases(folder)
    return table, bases, SnapshotRebuilder(table, bases, min_overlay)


def matched(rebuilder: SnapshotRebuilder, topic: str = "a") -> list[str]:
    base, overlay = rebuilder.current()
    return [each.id for each in SnapshotView(base.open(), overlay).match(TopicPath(topic))]


def wait_for_thread(rebuilder: SnapshotRebuilder) -> None:
    assert rebuilder._build is not None
    assert rebuilder._build.thread is not None
    rebuilder._build.thread.join(120)


def changed(table: RoutingTable, numbers: range) -> None:
    for number in numbers:
        table.apply(record(number))


def test_the_old_base_with_its_overlay_until_the_new_base(tmp_path: Path) -> None:
    table, bases, rebuilder = begun(tmp_path)
    first, _ = rebuilder.current()
    bases.go.clear()

    changed(table, range(5))
    assert matched(rebuilder) == ["s0", "s1", "s2", "s3", "s4"]
    table.apply(SubscriptionEnded("s1", "unsubscribed", 1))
    for number in (5, 6):
        changed(table, range(number, number + 1))
        assert rebuilder.current()[0] is first
    assert matched(rebuilder) == ["s0", "s2", "s3", "s4", "s5", "s6"]

    bases.go.set()
    wait_for_thread(rebuilder)
    base, overlay = rebuilder.current()
    assert base is not first
    assert overlay.size == 3, "changes during the build: one removed, two added"
    assert 0 <= len(pickle.dumps(overlay)) - overlay.packed_size() < 200, "the pickled size without pickle's overhead"
    assert matched(rebuilder) == ["s0", "s2", "s3", "s4", "s5", "s6"]
    assert bases.kept() == [False, True], "one build at a time"


def test_a_failed_build_keeps_the_old_base_and_is_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table, bases, rebuilder = begun(tmp_path)
    first, _ = rebuilder.current()
    bases.fail = True
    changed(table, range(4))
    rebuilder.current()
    wait_for_thread(rebuilder)
    assert matched(rebuilder) == ["s0", "s1", "s2", "s3"]
    assert "no space left" in caplog.text
    assert rebuilder._build is None, "not repeated at once"

    bases.fail = False
    changed(table, range(4, 10))
    rebuilder.current()
    wait_for_thread(rebuilder)

    assert rebuilder.current()[0] is not first
    assert len(matched(rebuilder)) == 10


def test_a_build_without_a_thread_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table, _, rebuilder = begun(tmp_path)
    first, _ = rebuilder.current()
    changed(table, range(4))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        rebuilder.current()
    assert "can't start new thread" in caplog.text
    changed(table, range(4, 10))
    rebuilder.current()
    wait_for_thread(rebuilder)
    assert rebuilder.current()[0] is not first


def test_newest_has_the_new_base_only_after_its_build(tmp_path: Path) -> None:
    table, bases, rebuilder = begun(tmp_path)
    first, _ = rebuilder.newest()
    assert rebuilder.renewed(), "no changes"
    bases.go.clear()
    changed(table, range(5))
    assert rebuilder.newest()[0] is first
    assert not rebuilder.renewed()
    assert not rebuilder.renewed()
    bases.go.set()
    wait_for_thread(rebuilder)
    assert rebuilder.renewed()
    base, checkpoint = rebuilder.newest()
    assert base is not first
    assert checkpoint.overlay().size == 0
    assert bases.kept() == [False, True]

    bases.fail = True
    changed(table, range(5, 10))
    rebuilder.renewed()
    wait_for_thread(rebuilder)
    assert rebuilder.renewed(), "the build failed: the old base is the newest"
    assert rebuilder.newest()[0] is base


def test_a_larger_base_allows_a_larger_overlay(tmp_path: Path) -> None:
    table, _, rebuilder = begun(tmp_path)
    changed(table, range(1_000))
    rebuilder.current()
    changed(table, range(1_000, 1_020))
    rebuilder.current()
    assert rebuilder._build is None
    changed(table, range(1_020, 1_021))
    rebuilder.current()
    assert rebuilder._build is not None


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 12)),
            st.tuples(st.just("end"), st.integers(0, 12)),
            st.tuples(st.sampled_from(["hold", "go", "match"]), st.just(0)),
        ),
        max_size=60,
    )
)
def test_the_view_matches_as_the_table(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    """Independent of the ends of builds."""
    table, bases, rebuilder = begun(tmp_path_factory.getbasetemp() / "view", min_overlay=2)
    rebuilder.current()
    actions: dict[str, Callable[[int], object]] = {
        "put": lambda number: table.apply(record(number, "a//." if number % 3 else "a/b")),
        "end": lambda number: table.apply(SubscriptionEnded(f"s{number}", "unsubscribed", 1)),
        "hold": lambda _: bases.go.clear(),
        "go": lambda _: bases.go.set(),
        "match": lambda _: None,
    }
    try:
        for what, number in steps:
            actions[what](number)
            for topic in ("a", "a/b"):
                assert matched(rebuilder, topic) == [each.id for each in table.match(TopicPath(topic))]
    finally:
        bases.go.set()
        rebuilder.close()


def test_files_of_bases(tmp_path: Path) -> None:
    folder = tmp_path / "bases"
    folder.mkdir()
    (folder / "left-by-a-killed-job.base").write_bytes(b"x")
    table = RoutingTable()
    changed(table, range(2))
    bases = FileBases(folder)
    rebuilder = SnapshotRebuilder(table, bases, min_overlay=1)

    first, _ = rebuilder.current()
    assert isinstance(first, FileBase)
    opened = first.open()
    assert first.size == opened.size > 0
    assert [file.name for file in folder.iterdir()] == [Path(first.file).name]
    changed(table, range(2, 5))
    rebuilder.current()
    wait_for_thread(rebuilder)
    second, _ = rebuilder.current()

    assert isinstance(second, FileBase)
    assert [file.name for file in folder.iterdir()] == [Path(second.file).name]
    assert [each.id for each in SnapshotView(opened).match(TopicPath("a"))] == ["s0", "s1"], "the mapping stays valid"
    assert len(SnapshotView(second.open()).match(TopicPath("a"))) == 5
    rebuilder.close()
    assert not folder.exists()
