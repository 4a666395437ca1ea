"""The screens Cameras, Changes, Cluster, Problems and Queues, and the search of the header."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from arborcast.admin import cameras, federation, operations, queues
from arborcast.admin.federation import MemberList
from arborcast.admin.queues import JobFigures, QueueRequests, QueueStatus, ServerStatus
from arborcast.console.pages import _moment
from arborcast.core.errors import ConfigError, InfrastructureError
from arborcast.directory.entries.mapping import EntryProblem, ProblemKind
from arborcast.directory.sync.problems import FILE, ProblemFile
from arborcast.engine.install.version import installed
from arborcast.topic_model.records.control import (
    CameraRecord,
    CameraState,
    ControlRecord,
    SubscriptionRecord,
    SubscriptionSuspended,
    TopicRecord,
)
from arborcast.topic_model.records.operations import OperationBegun, OperationEnded
from arborcast.topic_model.topics import TopicPath
from tests.support.command import Shell
from tests.support.console import EVIL, Browser, ConsoleParts, console_parts
from tests.support.console_answers import (
    ANSWERS,
    FEDERATED,
    INSPECTIONS,
    JOB,
    LINKS,
    MEMBERS,
    QUEUE_RECORDS,
    REQUESTS,
    Answering,
    Asked,
)
from tests.support.routing import make_subscription

MEMBERS_OF, LINKS_OF = federation.members, federation.with_waiting

Open = Callable[..., Browser]


@pytest.fixture
def opened(tmp_path: Path, answering: Answering) -> Open:
    """A page of a console with these records and settings, and these results of calls."""

    def open_page(page: str, records: Sequence[ControlRecord] = (), answers: Any = ANSWERS, **settings: Any) -> Browser:
        answering({**ANSWERS, **answers})
        browser = Browser(console_parts(tmp_path, records, settings=settings).app)
        assert browser.get(page).status_code == 200
        return browser

    return open_page


CAMERAS = (
    CameraRecord("gate", "http://192.168.1.20/onvif/device_service", "the-secret-key", "viewer", "k:sealed"),
    CameraRecord("yard", "http://192.168.1.21/onvif/device_service", "the-secret-key"),
    CameraRecord("attic", "http://192.168.1.22/onvif/device_service", "the-secret-key", paused=True),
    CameraState("gate", "connected", 1_000),
    CameraState("yard", "away", 2_000, f"no answer from {EVIL}"),
)


def test_cameras(opened: Open) -> None:
    browser = opened("/cameras", CAMERAS)
    yard, attic, gate = browser.rows()
    assert [row.split()[0] for row in (yard, attic, gate)] == ["yard", "attic", "gate"], "problems first"
    assert "away" in yard
    assert all(words in gate for words in ("connected", "1,440"))
    assert gate.endswith("-3 s")
    assert not browser.shows_hostile("the-secret-key", "sealed")
    browser = opened("/cameras", CAMERAS, {cameras.figures: JobFigures(problem="connection refused")})
    assert "the gateway does not respond" in browser.text
    assert "connected" not in browser.text
    assert "arborcast cameras add" in opened("/cameras").text


def test_members_are_by_group_and_links_have_their_backlog(opened: Open) -> None:
    browser = opened("/cluster", **FEDERATED)
    assert browser.page.xpath("//h2/text()") == ["Group north", "Group south", "Outgoing links"]
    assert browser.rows(1) == [
        "n1 this engine representative live 0.4 s ago https://n1.example:8080 2.0.0",
        "n2 suspect 7.0 s ago https://n2.example:8080 2.0.0",
    ]
    assert browser.rows(2)[0] == "s1 gone 1 h 6 min ago https://s1.example:8080 2.0.0"
    assert browser.rows(3) == [
        f"north/n2 https://n2.example:8080/federation active 41 {_moment(LINKS[0].waiting_since_ms)} "
        "plant//alarm building//.",
        "group south https://s2.example:8080/federation active 0 - a0//. a1//. a2//. a3//. a4//. and 2 more",
    ]
    assert "/deliveries/waiting?subscription=peer-n2" in browser.page.xpath("//td/a/@href")
    footer = " ".join(browser.page.xpath("string(//footer)").split())
    assert footer.endswith(f"Arborcast {installed('arborcast')}, engine n1.")
    assert "/cluster" in browser.page.xpath("//nav//a/@href")


def test_an_engine_in_no_federation(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = opened("/cluster")
    assert "/cluster" not in browser.page.xpath("//nav//a/@href")
    for words in (
        "Not part of a federation",
        "arborcast federation key",
        'administrator = "http://admin.example:8095"',
    ):
        assert words in browser.text


UNREPRESENTED = tuple(msgspec.structs.replace(each, represents=False) for each in MEMBERS)


@pytest.mark.parametrize(
    ("members", "links", "words"),
    [
        (MemberList(UNREPRESENTED, "away"), (), ["away. Showing the last known state.", "No outgoing links"]),
        (ConfigError("no key"), LINKS, ["no key"]),
        (MemberList(MEMBERS, ""), InfrastructureError("Kafka is away"), ["Kafka is away"]),
    ],
)
def test_an_unknown_part_of_the_cluster(opened: Open, members: Any, links: Any, words: list[str]) -> None:
    browser = opened("/cluster", (), {MEMBERS_OF: members, LINKS_OF: links}, **FEDERATED)
    assert all(each in browser.text for each in words)
    assert "No engine has registered" not in browser.text
    assert browser.text.count("no representative") == 2 * (links == ())
    assert len(browser.rows()) == 2


def test_before_the_log_is_read_members_are_shown(tmp_path: Path, answering: Answering) -> None:
    asked = answering()
    parts = console_parts(tmp_path, settings=FEDERATED)
    parts.ready = False
    browser = Browser(parts.app)
    browser.get("/cluster")
    assert "The control log is being read." in browser.text
    assert len(browser.rows()) == 2
    assert [question for question, _ in asked] == [MEMBERS_OF]
    parts.ready = True
    browser.get("/cluster")
    (waiting,) = (arguments for question, arguments in asked if question is LINKS_OF)
    assert waiting[-1] is parts.console.questions.views, "not the whole log of waiting deliveries for each view"


QUEUE = f"/queues?queue={INSPECTIONS}"


def test_queues(tmp_path: Path, answering: Answering) -> None:
    asked = answering()
    parts = console_parts(tmp_path, QUEUE_RECORDS, settings={"metrics__job_port": 9465})
    browser = Browser(parts.app)
    browser.get("/queues")
    assert browser.rows() == [
        "{urn:plant}plant/inspections 3 1 min 14 s 2 2 of 3",
        "reports 1 5.0 s 0 no workers",
        "labels 0 - 0 2 of 3",
    ], "the longest backlog first"
    assert asked == [(queues.job_figures, (parts.console.settings.home, "http://127.0.0.1:9465"))]
    browser.get(browser.page.xpath("//td/a/@href")[0])
    assert asked[-1] == (queues.requests, (INSPECTIONS, 100, parts.console.questions.views))
    servers = [each.partition("inspect ")[2] for each in browser.rows()]
    assert servers == ["active 1 12 s", "active 2 3.1 s", "paused 1 idle"]
    first = REQUESTS[0]
    assert browser.rows(2)[0] == f"{_moment(first.accepted_ms)} {first.notification} 50 1 after earlier messages"
    assert "Pending 3, the oldest for 1 min 14 s In progress 2 Duplicates merged" in browser.text
    assert "And 4 more" in browser.text
    for name in ("s7", "s8"):
        parts.put(SubscriptionSuspended(name, "connection refused", since_ms=1, at_ms=2))
    browser.get("/queues")
    assert browser.rows()[0] == "{urn:plant}plant/inspections 3 1 min 14 s 2 none of 3 active"
    assert "none of 3 active" in browser.page.xpath("//span[@class='badge bad']/text()")
    assert "none is active" in browser.at(QUEUE).text
    without_port = console_parts(tmp_path)
    Browser(without_port.app).get("/queues")
    assert asked.pop() == (queues.job_figures, (without_port.console.settings.home, ""))


def test_queues_with_unknown_figures(opened: Open) -> None:
    away = {queues.job_figures: JobFigures(problem="connection refused")}
    assert "the dispatch job does not respond" in opened("/queues", QUEUE_RECORDS, away).text
    browser = opened(QUEUE, QUEUE_RECORDS, away)
    assert "the dispatch job does not respond" in browser.text
    assert "idle" not in browser.text
    assert "at work for" not in browser.rows()[0]
    assert len(browser.rows(2)) == len(REQUESTS)
    text = opened("/queues?queue=reports", QUEUE_RECORDS, {queues.requests: QueueRequests()}).text
    assert "No workers" in text
    assert "No requests" in text
    assert "A work queue hands each request to one idle worker" in opened("/queues").text
    for page, words in (("/queues?queue=a//.", "names more than one topic"), (QUEUE, f"no: {EVIL[:-1]}")):
        browser = opened(page, QUEUE_RECORDS, {queues.requests: InfrastructureError(f"no: {EVIL}")})
        assert words in browser.page.xpath("//p[@class='refusal']/text()")[0]


ROUTING = EntryProblem(
    ProblemKind.BAD_VALUE,
    "topicName=press,ou=topics",
    "topicRoutingPolicy is ignored: unknown routing word 'fast'",
    TopicPath("plant/press"),
)


def list_problems(home: Path, *found: EntryProblem) -> None:
    ProblemFile(home / FILE, "ldap://u:secret@host/ou=topics").save(found, 1_767_262_800_000)


def test_problems_of_the_directory_as_page_and_command(opened: Open, tmp_path: Path) -> None:
    command = Shell(None, None, "topics", "problems", "--home", str(tmp_path))
    assert "in the control log alone" in opened("/topics/problems", directory__kind="none").text
    assert "Directory and topics are in sync" in opened("/topics/problems", directory__kind="file").text
    assert "are the same" in command()
    list_problems(tmp_path, ROUTING)
    browser = opened("/topics/problems")
    for words in (ROUTING.dn, "unknown routing word", "Correct the attribute", "Since 202", "bad value"):
        assert words in browser.text
    assert browser.page.xpath("//dd/a/@href") == ["/topics?at=plant/press"]
    assert "Correct the attribute" in command()
    document = command.json()
    assert (document["count"], document["problems"][0]["topic"]) == (1, "plant/press")


def test_pages_are_bounded_and_text_is_escaped(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = msgspec.structs.replace(MEMBERS[0], engine=f"g/{EVIL}", url="http://u:secret@h/\u202e", version=EVIL)
    link = msgspec.structs.replace(LINKS[0], link=EVIL, to=EVIL, url="http://u:secret@h", topics=(EVIL,) * 256)
    server = ServerStatus(EVIL, f"http://u:secret@one/{EVIL}", 1, "active", 90_000.0)
    hostile = QueueStatus(TopicPath(f"{{{EVIL}}}q"), True, 3, 2, 74.2, (server,) * 1_000)
    request = msgspec.structs.replace(REQUESTS[0], notification=EVIL)
    answers = {
        MEMBERS_OF: MemberList((msgspec.structs.replace(member, state=EVIL),) * 1_000, ""),
        LINKS_OF: (link,) * 999,
        queues.job_figures: JOB,
        queues.requests: QueueRequests((request,)),
    }
    monkeypatch.setattr(queues, "queues", lambda *_: [hostile] * 1_000)
    monkeypatch.setattr(queues, "queue", lambda *_: hostile)
    list_problems(tmp_path, *(EntryProblem(ProblemKind.FOREIGN, f"cn={n},{EVIL}", EVIL) for n in range(3_000)))
    more = {
        "/cluster": "And 799 more",
        "/queues": "And 800 more",
        QUEUE: "And 800 more",
        "/topics/problems": "And 2,800 more: arborcast topics problems names the first 1,000",
    }
    for page, words in more.items():
        browser = opened(page, QUEUE_RECORDS, answers, **FEDERATED)
        assert words in browser.text
        assert len(browser.answer.content) < 600_000
        assert not browser.shows_hostile("secret"), page
    assert "And 800 more" in opened("/cluster", (), answers, **FEDERATED).text
    assert "1 d 1 h" in opened(QUEUE, (), answers).text


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    made = make_subscription("s1", "plant//.", consumer="http://one.example/in")
    return console_parts(tmp_path, [SubscriptionRecord(made), TopicRecord(TopicPath("plant/press"), code="1.4")])


@pytest.fixture
def asked(answering: Answering) -> Asked:
    return answering()


def test_changes_are_listed(browser: Browser, asked: Asked) -> None:
    assert (bool(browser.at("/operations?since=yesterday").page.xpath("//*[@role='alert']")), asked) == (True, [])
    browser.get("/operations?actor=anna&since=2h")
    for words in ("topics save plant/press", '{"code":"1"}', '{"code":"2"}', "and 2 more", "3 deleted", "And 3 more"):
        assert words in browser.text
    ((function, (wanted, limit)),) = asked
    assert (function, wanted.actor, wanted.action, wanted.subject, limit) == (operations.listed, "anna", "", "", 100)
    assert wanted.since_ms > 0


@pytest.mark.usefixtures("asked")
def test_a_change_is_recorded_before_it_is_made(parts: ConsoleParts, browser: Browser) -> None:
    def pause() -> int:
        return browser.at("/subscriptions").submit("/subscriptions/act", action="pause", id=["s1"]).status_code

    parts.changes.error = InfrastructureError("Kafka is away")
    assert pause() == 503
    begun, ended = parts.operations
    assert isinstance(begun, OperationBegun)
    assert (begun.interface, begun.actor, begun.action) == (
        "console",
        "without a name, from 127.0.0.1",
        "subscriptions pause",
    )
    (change,) = begun.changes
    assert (json.loads(change.before)["paused"], json.loads(change.after)["paused"]) == (False, True)
    assert ended == OperationEnded(begun.id, "failed: Kafka is away", 1)
    parts.changes.error = None
    written, record = len(parts.changes.records), parts.console.changes._record
    parts.console.changes._record = Mock(side_effect=InfrastructureError("Kafka is away"))
    assert pause() == 503
    assert len(parts.changes.records) == written, "no change without a record"
    parts.console.changes._record = record
    assert pause() == 200
    begun, ended = parts.operations[2:]
    assert ended == OperationEnded(begun.id, "done", 1)


@pytest.mark.parametrize(
    ("text", "url", "offered"),
    [
        ("0" * 32, f"/deliveries?notification={'0' * 32}", None),
        ("s1", "/subscriptions/s1", ["/subscriptions/s1"]),
        ("1.4", "/topics?at=plant%2Fpress", None),
        ("plant/press", "/topics?at=plant%2Fpress", ["/topics?at=plant%2Fpress"]),
        ("one.example", "/subscriptions?endpoint=one.example", None),
        ("nowhere", "/topics?q=nowhere", []),
        ("a||//", "/topics?q=a%7C%7C//", []),
    ],
)
def test_the_header_finds_ids_urls_and_topics(browser: Browser, text: str, url: str, offered: list[str] | None) -> None:
    (name,) = browser.at("/").page.xpath("//form[@action='/find']/input/@name")
    assert str(browser.get(f"/find?{name}={text}").url).replace("%2F", "/").endswith(url.replace("%2F", "/"))
    if offered is not None:  # suggestions
        browser.get(f"/find?q={text}", x_fragment="1")
        assert browser.page.xpath("//li/a/@href") == offered
        assert not browser.page.xpath("//title"), "a fragment of a page"


def test_a_search_with_several_results_lists_them(parts: ConsoleParts, browser: Browser) -> None:
    made = make_subscription("s2", "a", consumer="http://u:secret@press.example/in")
    parts.put(SubscriptionRecord(made))
    links = browser.at("/find?q=press").page.xpath("//main//li/a")
    assert [(" ".join(each.text_content().split()), each.get("href")) for each in links] == [
        ("Endpoint http://…@press.example/in", "/subscriptions/s2"),
        ("Topic plant/press", "/topics?at=plant%2Fpress"),
    ]
    assert not browser.shows_hostile("secret")
