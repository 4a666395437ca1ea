"""The screen Topics: views of the trees, staged edits and saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from arborcast.admin.messages import LastMessages, NewestMessage
from arborcast.console.screens.topics import draft, editing, tree_pages
from arborcast.core.errors import InfrastructureError
from arborcast.topic_model.records.control import SubscriptionRecord, TopicPolicy, TopicRecord, TopicRemoved
from arborcast.topic_model.topics import TopicPath, make_path
from tests.support.console import EVIL, Browser, ConsoleParts, console_parts, values_of
from tests.support.routing import make_subscription

PLANT = "{urn:plant}plant"


def topic(path: str, code: str = "", **facts: object) -> TopicRecord:
    return TopicRecord(TopicPath(path), code=code, **facts)  # type: ignore[arg-type]


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    lines = [topic(f"{PLANT}/line{line}", code=f"L{line}") for line in range(3)]
    return console_parts(tmp_path, [topic(PLANT), *lines, topic(f"{PLANT}/line1/press"), topic("office/door")])


@pytest.fixture
def browser(parts: ConsoleParts) -> Browser:
    browser = Browser(parts.app)
    browser.get("/topics")
    return browser


def names(browser: Browser) -> list[str]:
    return [each.text_content().strip() for each in browser.page.xpath("//a[contains(@class, 'name')]")]


def stage(browser: Browser, path: str, **fields: Any) -> None:
    """Stage an edit of a topic, and open the review."""
    browser.at(f"/topics?at={path}").submit("/topics/put", **fields)
    browser.get("/topics/review")


def saved(parts: ConsoleParts, path: str) -> TopicRecord:
    record = parts.control.table.topics.get(TopicPath(path))
    assert record is not None
    return record


def test_trees_unfold_to_the_selected_topic(parts: ConsoleParts, browser: Browser) -> None:
    parts.put(SubscriptionRecord(make_subscription("s1", f"{PLANT}//.", consumer="http://here.example/in")))
    assert names(browser) == ["office", "plant"]
    browser.get(f"/topics?at={PLANT}/line1")
    assert names(browser) == ["office", "plant", "line0", "line1", "press", "line2"]
    assert browser.page.xpath("//a[@aria-current='true']/text()") == ["line1"]
    for words in (
        "topicName=line1,topicName=plant+topicNamespace=urn:plant,ou=topics,dc=arborcast",
        "http://here.example/in",
        "one subscription",
    ):
        assert words in browser.text
    browser.get(browser.page.xpath("//a[text()='Test']/@href")[0])
    assert browser.page.xpath("//input[@name='topic']/@value") == [f"{PLANT}/line1"]


def test_a_level_of_any_size_is_served_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "LARGE", 500)
    parts = console_parts(tmp_path, [topic(f"wide/t{number:04}") for number in range(1_000)])
    browser = Browser(parts.app)
    assert len(names(browser.at("/topics?at=wide"))) == 201
    browser.get(*browser.page.xpath("//a[@data-more]/@data-more"))
    assert (names(browser)[0], len(names(browser))) == ("t0200", 200)
    browser.get("/topics?at=wide/t0500")
    assert "t0500" in names(browser)
    assert len(names(browser)) == 201
    # Without script there is a page for each part.
    assert names(browser.at(*browser.page.xpath("//a[@data-more]/@href")))[1] == "t0700"
    assert len(names(browser.at("/topics?q=t0"))) == 200
    browser.get("/topics?at=wide&do=remove")
    assert "1,000 subtopics" in browser.text
    browser.submit("/topics/remove")
    assert names(browser)[0] == "wide", "the result of a large change is only in the review"
    browser.get("/topics/review")
    assert "1,000 topics" in browser.text
    assert "1,000 removed" in browser.submit("/topics/save").text
    assert len(parts.control.table.topics) == 0


def test_without_a_selected_topic_none_are_counted(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each change, a million would take a second of the event loop."""
    monkeypatch.setattr(tree_pages.TreePages, "_subtree", None)
    assert browser.get("/topics").status_code == 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("LINE1", [f"{PLANT}/line1", f"{PLANT}/line1/press"]),
        ("L2", [f"{PLANT}/line2"]),
        ("{urn:plant}plant/*", [f"{PLANT}/line0", f"{PLANT}/line1", f"{PLANT}/line2"]),
        ("nowhere", []),
        ("a//%25", []),
    ],
)
def test_search(browser: Browser, text: str, expected: list[str]) -> None:
    assert browser.get(f"/topics?q={text}").status_code == 200
    assert [each for each in names(browser) if each in expected] == expected
    assert bool(browser.page.xpath("//div[@id='left']/p[@class='refusal']")) is (text == "a//%25")


def test_edits_are_staged_and_saved_together(parts: ConsoleParts, browser: Browser) -> None:
    written = len(parts.changes.records)
    browser.at("/topics?do=add").submit("/topics/put", name="hall", namespace="urn:hall", code="H")
    assert "unsaved" in browser.text
    browser.get("/topics?at={urn:hall}hall&do=add")
    browser.submit("/topics/put", name="gate/left", priority="7", retain="yes", publishers="anna\ngroup:guards\n")
    browser.get(f"/topics?at={PLANT}/line1")
    browser.submit("/topics/put", code="L9", **dict[str, Any]({"routing-reliable": "yes"}))
    browser.at(f"/topics?at={PLANT}/line2&do=rename").submit("/topics/move", name="line3")
    browser.get("/topics?at=office&do=remove")
    assert "1 subtopics" in browser.text
    browser.submit("/topics/remove")
    assert len(parts.changes.records) == written, "nothing is written before the save"
    assert names(browser) == ["hall", "plant"], "the trees include staged edits"

    browser.get("/topics/review")
    assert "5 changes to save" in browser.text
    assert "Saved: 3 added, 1 changed, 2 removed" in browser.submit("/topics/save").text
    assert saved(parts, "{urn:hall}hall").code == "H"
    gate = saved(parts, "{urn:hall}hall/gate/left").policy
    assert gate == TopicPolicy(retain=True, priority=7, publishers=("anna", "group:guards"))
    assert saved(parts, f"{PLANT}/line1").policy.reliable
    assert saved(parts, f"{PLANT}/line3").code == "L2"
    assert not parts.control.table.topics.is_node(TopicPath("office"))
    assert "No unsaved changes" in browser.get("/topics/review").text


def test_a_move_is_counted_and_changes_nothing_until_it_is_saved(parts: ConsoleParts, browser: Browser) -> None:
    before = {record.path: record for record in parts.control.table.topics.records()}
    stage(browser, f"{PLANT}/line1")
    assert "No changes" in browser.text, "the form without edits"
    browser.submit("/topics/discard")
    browser.get(f"/topics?at={PLANT}&do=move")
    assert browser.submit("/topics/move", target=f"{PLANT}/line1/below").status_code == 422
    assert "cannot be moved below itself" in browser.text
    browser.at(f"/topics?at={PLANT}/line1&do=move").submit("/topics/move", target=f"{PLANT}/line9")
    browser.get("/topics/review")
    assert "2 topics" in browser.text
    assert browser.page.xpath("//form[@action='/topics/save']/button/text()") == ["Save 1 change"]
    assert {record.path: record for record in parts.control.table.topics.records()} == before


@pytest.mark.parametrize(
    ("fields", "name", "words"),
    [
        ({"name": "line1"}, "name", "exists already"),
        ({"name": "a b"}, "name", "not a legal topic name"),
        ({"name": ""}, "name", "needs a name"),
        ({"name": "x", "code": "L2"}, "code", "belongs to"),
        ({"name": "x", "code": "c" * 300}, "code", "256 characters"),
        ({"name": "x", "priority": "101"}, "priority", "from -100 to 100"),
        ({"name": "x", "priority": "many"}, "priority", "from -100 to 100"),
        ({"name": "x", "reach": "to:"}, "routing", "name the groups"),
        ({"name": "x", "reach": "to:", "groups": "a/b"}, "routing", "has no valid groups"),
        ({"name": "x", "publishers": "a\x07"}, "publishers", "control character"),
    ],
)
def test_a_refusal_is_beside_its_field(browser: Browser, fields: dict[str, Any], name: str, words: str) -> None:
    assert browser.at(f"/topics?at={PLANT}&do=add").submit("/topics/put", **fields).status_code == 422
    (said,) = browser.page.xpath(f"//*[@id='wrong-{name}']/text()")
    assert words in said
    if name != "name":
        assert browser.page.xpath("//input[@name='name']/@value") == ["x"], "the input is kept"
    assert "No unsaved changes" in browser.get("/topics/review").text


def test_a_form_that_is_refused_keeps_its_lines(parts: ConsoleParts, browser: Browser) -> None:
    line, typed = f"{PLANT}/line1", {"types": "{urn:t}a\n{urn:t}b", "publishers": "anna\nbert"}
    browser.get(f"/topics?at={line}")
    sent: dict[str, Any] = dict(typed)
    for code in ("L0", "L2"):
        as_sent = {name: text.replace("\n", "\r\n") for name, text in sent.items()}
        assert browser.submit("/topics/put", code=code, **as_sent).status_code == 422
        sent = {name: values_of(browser.page, "/topics/put")[name][0] for name in typed}
        assert sent == typed
    browser.submit("/topics/put", code="", **as_sent)
    browser.at("/topics/review").submit("/topics/save")
    assert saved(parts, line).message_types == ("{urn:t}a", "{urn:t}b")
    assert saved(parts, line).policy.publishers == ("anna", "bert")


def test_conflicts_with_edits_of_others(parts: ConsoleParts, browser: Browser) -> None:
    line = f"{PLANT}/line1"
    theirs = topic(line, code="L1", policy=TopicPolicy(priority=9))
    stage(browser, line, priority="5")
    parts.put(theirs)
    assert browser.submit("/topics/save").status_code == 409
    assert "Priority none 9 5" in browser.text
    assert saved(parts, line).policy.priority == 9
    browser.submit("/topics/keep")
    assert browser.submit("/topics/save").status_code == 200
    assert saved(parts, line).policy.priority == 5

    # A form opened before the other edit.
    fields = values_of(browser.at(f"/topics?at={line}").page, "/topics/put")
    parts.put(theirs)
    browser.post("/topics/put", {**{name: each[0] for name, each in fields.items()}, "priority": "6"})
    assert browser.at("/topics/review").submit("/topics/save").status_code == 409
    parts.put(TopicRemoved(TopicPath(line)))
    assert browser.at("/topics/review").submit("/topics/save").status_code == 409
    assert "Another user has removed it" in browser.text
    browser.submit("/topics/drop")
    assert "No unsaved changes" in browser.text

    # A subtree with a new topic.
    browser.at(f"/topics?at={PLANT}&do=remove").submit("/topics/remove")
    parts.put(topic(f"{PLANT}/line9"))
    assert browser.at("/topics/review").submit("/topics/save").status_code == 409
    assert "This subtree had 4 topics when the change was staged; it has 5" in browser.text
    assert saved(parts, PLANT)


def test_a_review_whose_changes_were_changed_in_another_window(parts: ConsoleParts, browser: Browser) -> None:
    stage(browser, f"{PLANT}/line1", priority="3")
    review, written = browser.answer, len(parts.changes.records)
    stage(browser, f"{PLANT}/line1", priority="4")
    for action in ("save", "drop", "discard"):
        browser.answer = review
        assert "not those of that page any more" in browser.submit(f"/topics/{action}").text
    assert "1 change to save" in browser.text
    assert len(parts.changes.records) == written
    browser.submit("/topics/save")
    assert saved(parts, f"{PLANT}/line1").policy.priority == 4


def test_a_review_of_many_changes_reads_them_once(
    parts: ConsoleParts, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each of their forms a page of a thousand changes would take seconds of the event loop."""
    for path in (PLANT, f"{PLANT}/line1"):
        stage(browser, path, priority="3")
    mark = Mock(return_value="m")
    monkeypatch.setattr(editing, "mark_of", mark)
    browser.at("/topics/review")
    assert mark.call_count == 1


def test_drafts_are_personal_and_survive_an_outage_of_kafka(parts: ConsoleParts, browser: Browser) -> None:
    stage(browser, f"{PLANT}/line1", priority="5")
    assert "No unsaved changes" in Browser(parts.app).get("/topics/review").text
    parts.changes.error = InfrastructureError("no broker answers")
    parts.trouble = "Kafka does not answer."
    assert browser.submit("/topics/save").status_code == 503
    assert "no broker answers" in browser.text
    assert "Kafka does not answer." in browser.answer.text
    parts.changes.error = None
    browser.submit("/topics/save")
    assert saved(parts, f"{PLANT}/line1").policy.priority == 5


@pytest.mark.parametrize("form", ["ldif", "topicset", "json"])
def test_export_and_import(parts: ConsoleParts, browser: Browser, tmp_path: Path, form: str) -> None:
    document = browser.get(f"/topics/export?form={form}")
    name = document.headers["content-disposition"].partition('"')[2].rstrip('"')
    other = console_parts(tmp_path / "other")
    there = Browser(other.app)
    there.at("/topics").submit("/topics/import", files={"file": (name, document.content)})
    assert "6 added, 0 changed, 0 removed" in there.text
    assert len(other.control.table.topics) == 0
    there.submit("/topics/save")
    assert other.control.table.topics == parts.control.table.topics


def test_few_documents_are_made_at_once(parts: ConsoleParts, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.console.questions, "_at_work", 32)
    assert browser.get("/topics/export?form=ldif").status_code == 400
    assert "32 other questions wait for an answer" in browser.text


def test_a_replacing_import_and_invalid_documents(parts: ConsoleParts, browser: Browser) -> None:
    for wrong in (b"", b"<a", b"{}", b'[{"path": "a b"}]', b"dn: x"):
        assert browser.submit("/topics/import", files={"file": ("topics", wrong)}).status_code == 422
        assert browser.page.xpath("//*[@id='wrong-file']")
        browser.get("/topics")
    document = b'{"version": 1, "topics": [{"type": "topic", "path": "office/door"}, {"type": "topic", "path": "new"}]}'
    browser.submit("/topics/import", files={"file": ("t.json", document)}, replace="yes")
    assert "1 added, 0 changed, 5 removed" in browser.text
    assert len(parts.control.table.topics) == 6
    parts.put(topic("meanwhile"))
    assert browser.submit("/topics/save").status_code == 409
    assert "The tree had 6 topics when the change was staged; it has 7" in browser.text
    browser.submit("/topics/keep")
    assert "- meanwhile" in browser.text
    browser.submit("/topics/save")
    assert sorted(parts.control.table.topics.paths()) == ["new", "office/door"]


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    evil = f"{EVIL}\"'&\x85x"
    hostile = topic("a", code=evil, message_types=(evil,), policy=TopicPolicy(publishers=(evil,)))
    parts = console_parts(tmp_path, [hostile, topic(make_path([("urn:a&b'", "b\u00e9")]))])
    browser = Browser(parts.app)
    for page in ("", "?at=a", "?at=%3Cscript%3Ealert(1)", "?q=%3Cscript%3E", "?do=<script>"):
        browser.get(f"/topics{page}")
        assert not browser.shows_hostile(), page
        assert [each.get("src", "").split("/")[-1] for each in browser.page.xpath("//script")] == ["console.js"]
    stage(browser, "a", priority="1")
    assert not browser.shows_hostile()
    assert browser.page.xpath("//dt/text()") == ["Priority"], "invisible characters are not changed by a view"
    browser.submit("/topics/save")
    assert saved(parts, "a").code == evil


@pytest.mark.parametrize(
    ("fields", "routing"),
    [
        ({"reach": "group", "routing-split": "yes"}, "split group"),
        ({"reach": "to:", "groups": "north, south north"}, "to:north,south"),
        ({"reach": "local", "groups": "north"}, "local"),
        ({"reach": ""}, ""),
    ],
)
def test_the_reach_of_messages_is_shown(
    parts: ConsoleParts, browser: Browser, fields: dict[str, Any], routing: str
) -> None:
    stage(browser, f"{PLANT}/line1", **fields)
    if routing:
        browser.submit("/topics/save")
    assert saved(parts, f"{PLANT}/line1").policy.routing == routing
    browser.get(f"/topics?at={PLANT}/line1/press")
    assert browser.page.xpath("//input[@name='reach' and @checked]/@value") == [""]
    assert f"Inherit {routing.split()[-1] if routing else 'everywhere'}" in browser.text
    stage(browser, f"{PLANT}/line1")
    assert ("No changes" if routing else "No unsaved changes") in browser.text


def test_a_topic_becomes_a_queue(parts: ConsoleParts, browser: Browser) -> None:
    line = f"{PLANT}/line1"
    stage(browser, line, queue="yes", apart="yes")
    assert "Work queue yes Duplicates separate" in browser.text
    browser.submit("/topics/save")
    assert saved(parts, line).policy == TopicPolicy(queue=True, merge=False)
    stage(browser, line, priority="3")
    browser.submit("/topics/save")
    assert saved(parts, line).policy == TopicPolicy(queue=True, merge=False, priority=3)
    assert browser.at(f"/topics?at={line}").page.xpath("//a[text()='Open queue']")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (LastMessages((NewestMessage("01ab", 0, EVIL, EVIL, kept=True),)), "retained"),
        (LastMessages(looked_at=1_500), "The newest 1,500 records of the log have none of this topic"),
        (LastMessages(complete=True), "No messages"),
        (LastMessages(problem=EVIL), "alert(1)"),
    ],
)
def test_last_messages_are_read_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: LastMessages, words: str
) -> None:
    read = Mock(return_value=found)
    monkeypatch.setattr(tree_pages, "last_messages", read)
    policies = {
        "usual": TopicPolicy(),
        "kept": TopicPolicy(retain=True),
        "queue": TopicPolicy(retain=True, queue=True),
        "not": TopicPolicy(retain=False),
    }
    records = [topic(path, policy=policy) for path, policy in policies.items()]
    browser = Browser(console_parts(tmp_path, records, settings={"topics__retain_all": True}).app)
    for path in policies:
        browser.get(f"/topics?at={path}")
        browser.get(browser.page.xpath("//a[text()='Recent messages']/@href")[0])
        assert words in browser.text
        assert not browser.shows_hostile()
    asked = [(each.args[1], each.kwargs["kept"]) for each in read.call_args_list]
    assert asked == [("usual", True), ("kept", True), ("queue", False), ("not", False)]
