"""What was gathered outlives the console's process, and is never saved by itself."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from arborcast.console import personal_files
from arborcast.console.screens.topics import draft, kept
from arborcast.console.screens.topics.draft import BringEdit, Edit, MoveEdit, PutEdit, RemoveEdit, Subtree
from arborcast.console.screens.topics.kept import Drafts
from arborcast.core.errors import TopicError
from arborcast.core.files import write_atomically
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, ConsoleParts, console_parts

A = TopicRecord(TopicPath("a"), code="1", policy=TopicPolicy(publishers=("anna",), routing="local"))

EDITS: list[Edit] = [
    PutEdit(A, None),
    PutEdit(A, TopicRecord(TopicPath("a"))),
    MoveEdit(TopicPath("a"), TopicPath("b"), Subtree(3, 77)),
    RemoveEdit(TopicPath("{urn:x}c"), Subtree(1, 5)),
    BringEdit("topics.json", (A,), replace=True),
]


def started_again(browser: Browser, parts: ConsoleParts) -> ConsoleParts:
    """Another process over the same log and data directory; the browser has stayed open."""
    again = console_parts(parts.console.settings.home, parts.changes.records)
    browser.goes_on_with(again.app)
    return again


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    return console_parts(tmp_path, [A, TopicRecord(TopicPath("a/b"))])


def change(browser: Browser, priority: str) -> None:
    browser.get("/topics?at=a")
    browser.submit("/topics/put", priority=priority)


def priority_of(parts: ConsoleParts) -> int:
    record = parts.control.table.topics.get(TopicPath("a"))
    assert record is not None
    return record.policy.priority


def test_a_draft_outlasts_a_restart(browser: Browser, parts: ConsoleParts) -> None:
    change(browser, "7")
    parts = started_again(browser, parts)
    browser.get("/topics")
    assert "1 unsaved change, of 20" in " ".join(browser.page.text_content().split())
    assert priority_of(parts) == 0
    browser.get("/topics/review")
    assert "the console was restarted" in browser.text
    browser.submit("/topics/save")
    assert priority_of(parts) == 7
    change(browser, "8")
    browser.get("/topics/review")
    browser.submit("/topics/discard")
    parts = started_again(browser, parts)
    browser.get("/topics/review")
    assert "No unsaved changes" in browser.text
    change(browser, "9")
    parts.put(TopicRecord(TopicPath("a"), code="2"))
    parts = started_again(browser, parts)
    browser.get("/topics/review")
    assert "Theirs" in browser.text
    assert browser.submit("/topics/save").status_code == 409
    assert priority_of(parts) == 0


def test_files_are_private_and_a_damaged_one_is_no_draft(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path)
    drafts.of("../anna\n").edits = list(EDITS)
    drafts.write("../anna\n", drafts.of("../anna\n"))
    (file,) = tmp_path.iterdir()
    assert "anna" not in file.name
    assert file.stat().st_mode & 0o077 == 0
    assert Drafts(tmp_path).of("../anna\n").edits == EDITS, "edits of every kind"
    assert Drafts(tmp_path).of("berta").edits == []
    for damage in (b"", b"{", b"[]", b'{"v": 2, "at_ms": 9000000000000, "edits": []}'):
        file.write_bytes(damage)
        assert Drafts(tmp_path).of("../anna\n").edits == []


def test_a_large_draft_is_not_kept(browser: Browser, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST_TOPICS", 1)
    document = {"version": 1, "topics": [{"path": "x"}, {"path": "y"}]}
    browser.get("/topics")
    browser.submit("/topics/import", files={"file": ("t.json", json.dumps(document).encode())})
    browser.get("/topics")
    assert "Too large to survive a restart" in browser.page.text_content()
    started_again(browser, parts)
    browser.get("/topics/review")
    assert "No unsaved changes" in browser.text


def test_files_are_bounded_in_number_and_age(tmp_path: Path) -> None:
    drafts = Drafts(tmp_path / "drafts", most=3)
    for number in range(9):
        drafts.of(f"p{number}").edits = list(EDITS)
        drafts.write(f"p{number}", drafts.of(f"p{number}"))
    assert len(list((tmp_path / "drafts").iterdir())) == 3
    assert Drafts(tmp_path / "drafts").of("p8").edits == EDITS
    assert Drafts(tmp_path / "drafts", clock=lambda: 4_000_000_000.0).of("p8").edits == []
    (tmp_path / "file").touch()
    in_memory = Drafts(tmp_path / "file")
    in_memory.of("anna").edits = list(EDITS)
    in_memory.write("anna", in_memory.of("anna"))
    assert (in_memory.of("anna").edits, in_memory.of("anna").kept) == (EDITS, False)


def test_edits_during_a_write_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts, began, goes_on = Drafts(tmp_path), threading.Event(), threading.Event()
    draft = drafts.of("anna")

    def slowly(path: Path, data: bytes, mode: int) -> None:
        if not began.is_set():
            began.set()
            assert goes_on.wait(120)
        write_atomically(path, data, mode=mode)

    monkeypatch.setattr(personal_files, "write_atomically", slowly)
    writers = []
    for edit in EDITS[:2]:
        draft.edits.append(edit)
        assert drafts.of("anna") is draft, "there is one, whoever writes"
        writers.append(threading.Thread(target=drafts.write, args=("anna", draft)))
        writers[-1].start()
        assert began.wait(120)
    goes_on.set()
    for writer in writers:
        writer.join(120)
    assert Drafts(tmp_path).of("anna").edits == EDITS[:2]


def test_visitors_without_edits_replace_no_draft(tmp_path: Path) -> None:
    """Each request without a cookie is of another visitor. What is too large for a file is in memory alone."""
    drafts = Drafts(tmp_path / "drafts", most=3)
    for person in ("anna", "berta"):
        drafts.of(person).edits = list(EDITS)
    for number in range(50):
        drafts.of(f"stranger {number}")
    assert drafts.of("anna").edits == drafts.of("berta").edits == EDITS
    for number in range(3):
        drafts.of(f"worker {number}").edits = list(EDITS)
    assert drafts.of("anna").edits == [], "of those that hold something the oldest goes"


def test_imports_of_sessions_that_ended_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kept, draft):
        monkeypatch.setattr(module, "MOST_IMPORTED", 3)
    drafts, small = Drafts(tmp_path), PutEdit(A, None)
    drafts.of("small").gather(small)
    for person in ("first", "second"):
        drafts.of(person).gather(BringEdit("topics.json", (A, A)))
        with pytest.raises(TopicError, match="imports are staged already"):
            drafts.of(person).gather(BringEdit("again.json", (A, A)))
    assert [drafts.of(each).imported for each in ("second", "first")] == [2, 0]
    assert drafts.of("small").edits == [small]
