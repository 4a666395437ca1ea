"""Files of a user: drafts, which survive the process and are never saved automatically, and named views of lists."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import urlencode

import pytest

from arborcast.console import personal_files, saved_views
from arborcast.console.saved_views import SavedView, SavedViews
from arborcast.console.screens.topics import draft, stored_drafts
from arborcast.console.screens.topics.draft import Edit, ImportEdit, MoveEdit, PutEdit, RemoveEdit, Subtree
from arborcast.console.screens.topics.stored_drafts import Drafts
from arborcast.core.errors import InfrastructureError, TopicError
from arborcast.core.files import write_atomically
from arborcast.topic_model.records.control import TopicPolicy, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.console import Browser, ConsoleParts, console_parts
from tests.support.console_answers import Answering

A = TopicRecord(TopicPath("a"), code="1", policy=TopicPolicy(publishers=("anna",), routing="local"))

EDITS: list[Edit] = [
    PutEdit(A, None),
    PutEdit(A, TopicRecord(TopicPath("a"))),
    MoveEdit(TopicPath("a"), TopicPath("b"), Subtree(3, 77)),
    RemoveEdit(TopicPath("{urn:x}c"), Subtree(1, 5)),
    ImportEdit("topics.json", (A,), replace=True),
]


def started_again(browser: Browser, parts: ConsoleParts) -> ConsoleParts:
    """Another process over the same log and data directory; the browser stays open."""
    again = console_parts(parts.console.settings.home, parts.changes.records)
    browser.goes_on_with(again.app)
    return again


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    return console_parts(tmp_path, [A, TopicRecord(TopicPath("a/b"))])


def change(browser: Browser, priority: str) -> None:
    browser.at("/topics?at=a").submit("/topics/put", priority=priority)


def priority_of(parts: ConsoleParts) -> int:
    record = parts.control.table.topics.get(TopicPath("a"))
    assert record is not None
    return record.policy.priority


def test_a_draft_survives_a_restart(browser: Browser, parts: ConsoleParts) -> None:
    change(browser, "7")
    parts = started_again(browser, parts)
    assert "1 unsaved change, of 20" in " ".join(browser.at("/topics").page.text_content().split())
    assert priority_of(parts) == 0
    browser.get("/topics/review")
    assert "the console was restarted" in browser.text
    browser.submit("/topics/save")
    assert priority_of(parts) == 7
    change(browser, "8")
    browser.at("/topics/review").submit("/topics/discard")
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
    monkeypatch.setattr(stored_drafts, "_MOST_TOPICS", 1)
    document = {"version": 1, "topics": [{"path": "x"}, {"path": "y"}]}
    browser.at("/topics").submit("/topics/import", files={"file": ("t.json", json.dumps(document).encode())})
    browser.get("/topics")
    assert "Too large to survive a restart" in browser.page.text_content()
    started_again(browser, parts)
    assert "No unsaved changes" in browser.at("/topics/review").text


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
        assert drafts.of("anna") is draft, "one draft per user"
        writers.append(threading.Thread(target=drafts.write, args=("anna", draft)))
        writers[-1].start()
        assert began.wait(120)
    goes_on.set()
    for writer in writers:
        writer.join(120)
    assert Drafts(tmp_path).of("anna").edits == EDITS[:2]


def test_visitors_without_edits_displace_no_draft(tmp_path: Path) -> None:
    """Each request without a cookie is of another principal. A draft too large for a file is in memory alone."""
    drafts = Drafts(tmp_path / "drafts", most=3)
    for person in ("anna", "berta"):
        drafts.of(person).edits = list(EDITS)
    for number in range(50):
        drafts.of(f"principal {number}")
    assert drafts.of("anna").edits == drafts.of("berta").edits == EDITS
    for number in range(3):
        drafts.of(f"worker {number}").edits = list(EDITS)
    assert drafts.of("anna").edits == [], "the oldest draft with edits is dropped"


def test_imports_of_sessions_that_ended_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stored_drafts, draft):
        monkeypatch.setattr(module, "MOST_IMPORTED", 3)
    drafts, small = Drafts(tmp_path), PutEdit(A, None)
    drafts.of("small").gather(small)
    for person in ("first", "second"):
        drafts.of(person).gather(ImportEdit("topics.json", (A, A)))
        with pytest.raises(TopicError, match="imports are staged already"):
            drafts.of(person).gather(ImportEdit("again.json", (A, A)))
    assert [drafts.of(each).imported for each in ("second", "first")] == [2, 0]
    assert drafts.of("small").edits == [small]


FILTER = "/subscriptions?topic=&endpoint=panel&state=failing&sort=-Created&after=s3"
URL = "/subscriptions?endpoint=panel&state=failing&sort=-Created"


@pytest.fixture(autouse=True)
def answers(answering: Answering) -> None:
    answering()


def views(browser: Browser) -> dict[str, str]:
    """The views beside the filter, with their addresses."""
    links = browser.page.xpath("//div[contains(@class, 'views')]/a[not(contains(@href, 'format='))]")
    return {each.text_content(): each.get("href") for each in links}


def save(browser: Browser, page: str, name: str) -> None:
    browser.at(page).submit("/views", name=name)


def test_a_filter_is_saved_under_a_name_and_deleted(browser: Browser) -> None:
    save(browser, FILTER, "  Failing \n panels ")
    assert "View Failing panels saved." in browser.answer.text
    assert str(browser.answer.url).endswith(URL), "the view is open"
    assert views(browser) == {"Failing panels": URL}
    assert browser.page.xpath("//a[@aria-current='true'][.='Failing panels']")
    browser.get("/subscriptions")
    assert views(browser) == {"Failing panels": URL}
    assert not browser.page.xpath("//a[@aria-current='true'][.='Failing panels']")
    assert not browser.page.xpath("//button[@value='delete']"), "no view is open"
    assert views(browser.at("/deliveries/dead")) == {}, "separate views for each list"
    browser.get(URL)
    (name,) = browser.page.xpath("//form[@action='/views'][.//button[@value='delete']]//input[@name='name']/@value")
    token = browser.page.xpath("//input[@name='token']/@value")[0]
    browser.post("/views", {"token": token, "url": "/subscriptions", "name": name, "action": "delete"})
    assert "View deleted." in browser.answer.text
    assert views(browser) == {}


def test_the_search_field_has_views(browser: Browser) -> None:
    save(browser, "/deliveries/dead?reason=503", "No room at <b>panels</b>")
    browser.get("/find?q=NO+ROOM", x_fragment="1")
    assert browser.page.xpath("//li/a/@href") == ["/deliveries/dead?reason=503"]
    assert not browser.page.xpath("//li//b")
    assert browser.at("/find?q=room").page.xpath("//main//li/a/@href") == ["/deliveries/dead?reason=503"]
    browser.get(f"/find?{urlencode({'q': 'No room at <b>panels</b>'})}")
    assert str(browser.answer.url).endswith("/deliveries/dead?reason=503")


@pytest.mark.parametrize("url", ["//evil.example/", "/topics?at=a", ""])
def test_only_lists_have_views(browser: Browser, url: str) -> None:
    browser.at("/subscriptions").submit("/views", name="x", url=url)
    assert browser.answer.status_code == 400
    assert browser.answer.url.host == "127.0.0.1"


def test_names_and_limits(browser: Browser, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "_VIEWS", 2)
    for name in ("b", "A", "c", "b"):
        save(browser, f"/subscriptions?endpoint={name}", name)
        assert ("2 views are saved: delete one first." in browser.answer.text) == (name == "c")
    save(browser, "/subscriptions?state=suspended", "b")
    save(browser, "/subscriptions?endpoint=" + "x" * 1_000, "b")
    assert "The filter is too long for a view" in browser.answer.text
    for name in ("", " \t", "x" * 61):
        save(browser, "/subscriptions", name)
        assert "Enter a name of at most 60 characters." in browser.answer.text
    # Without sign-in, views belong to the machine.
    other = Browser(console_parts(parts.console.settings.home).app)
    other.get("/subscriptions")
    assert list(views(other).items()) == [("A", "/subscriptions?endpoint=A"), ("b", "/subscriptions?state=suspended")]


def test_files_of_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="the views cannot be stored"):
        SavedViews(tmp_path / "file").save("anna", "a", "/subscriptions")
    saved = SavedViews(tmp_path / "views")
    saved.save("anna", "a", "/subscriptions?state=failing")
    assert (saved.of("anna"), saved.of("berta")) == ([SavedView("a", "/subscriptions?state=failing")], [])
    with monkeypatch.context() as patched:
        patched.setattr(saved._files, "read", Mock(side_effect=PermissionError(13, "Permission denied")))
        assert saved.of("anna") == []
        with pytest.raises(InfrastructureError):
            saved.save("anna", "b", "/subscriptions")
    assert [each.name for each in saved.of("anna")] == ["a"], "an unreadable file is not replaced"
    (file,) = (tmp_path / "views").iterdir()
    for damage in (b"", b"{", b"[]", b'{"v": 2, "views": []}'):
        file.write_bytes(damage)
        assert saved.of("anna") == []
    saved.save("anna", "a", "/subscriptions")
    for _ in range(2):
        saved.remove("anna", "a", "/subscriptions")
    assert not file.exists()
