"""The screen Cluster."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from arborcast.admin import federation
from arborcast.admin.federation import MemberList
from arborcast.console.pages import _moment
from arborcast.core.errors import ConfigError, InfrastructureError
from arborcast.engine.install.version import installed
from tests.support.console import Browser, console_parts
from tests.support.console_answers import FEDERATED, LINKS, MEMBERS, answering

EVIL = "<img src=x onerror=alert(1)>"

MEMBERS_OF, LINKS_OF = federation.members, federation.with_waiting
UNREPRESENTED = tuple(msgspec.structs.replace(each, represents=False) for each in MEMBERS)


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(console_parts(tmp_path, settings=FEDERATED).app)


def rows(browser: Browser, table: int) -> list[str]:
    found = browser.page.xpath(f"(//table)[{table}]/tbody/tr")
    return [" ".join(" ".join(each.xpath(".//text()")).split()) for each in found]


def test_members_stand_by_group_and_links_with_what_waits(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch)
    assert browser.get("/cluster").status_code == 200
    assert [each.text_content() for each in browser.page.xpath("//h2")] == [
        "Group north",
        "Group south",
        "Outgoing links",
    ]
    assert rows(browser, 1) == [
        "n1 this engine representative live 0.4 s ago https://n1.example:8080 2.0.0",
        "n2 suspect 7.0 s ago https://n2.example:8080 2.0.0",
    ]
    assert rows(browser, 2)[0] == "s1 gone 1 h 6 min ago https://s1.example:8080 2.0.0"
    assert rows(browser, 3) == [
        f"north/n2 https://n2.example:8080/federation active 41 {_moment(LINKS[0].waiting_since_ms)} "
        "plant//alarm building//.",
        "group south https://s2.example:8080/federation active 0 - a0//. a1//. a2//. a3//. a4//. and 2 more",
    ]
    assert "/deliveries/waiting?subscription=peer-n2" in browser.page.xpath("//td/a/@href")


def test_an_engine_by_itself_says_how_to_begin_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch)
    browser = Browser(console_parts(tmp_path).app)
    browser.get("/cluster")
    assert "Not part of a federation" in browser.text
    assert "arborcast federation key" in browser.text
    assert 'administrator = "http://admin.example:8095"' in browser.text, "the port that it takes by itself"
    assert not asked


@pytest.mark.parametrize(
    ("members", "links", "words"),
    [
        (MemberList(UNREPRESENTED, EVIL), (), f"{EVIL}. Showing the last known state.|No outgoing links"),
        (ConfigError("no key"), LINKS, "no key"),
        (MemberList(MEMBERS, ""), InfrastructureError("Kafka is away"), "Kafka is away"),
    ],
)
def test_what_cannot_be_had_leaves_the_rest(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, members: object, links: object, words: str
) -> None:
    answering(monkeypatch, {MEMBERS_OF: members, LINKS_OF: links})
    browser.get("/cluster")
    assert all(each in browser.text for each in words.split("|"))
    assert "No engine has registered" not in browser.text
    assert browser.text.count("no representative") == 2 * (words[0] == "<")
    assert len(rows(browser, 1)) == 2


def test_the_page_is_bounded_and_what_strangers_wrote_does_nothing(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = msgspec.structs.replace(
        MEMBERS[0], engine=f"g/{EVIL}", url="http://u:secret@h/\u202e", version=EVIL, state=EVIL
    )
    link = msgspec.structs.replace(LINKS[0], link=EVIL, to=EVIL, url="http://u:secret@h", topics=(EVIL,) * 256)
    answering(monkeypatch, {MEMBERS_OF: MemberList((member,) * 1_000, ""), LINKS_OF: (link,) * 999})
    answer = browser.get("/cluster")
    assert len(answer.content) < 500_000
    assert "And 800 more" in browser.text
    assert "And 799 more" in browser.text
    main = answer.text.partition("<main")[2]
    assert "<img" not in main
    assert "\u202e" not in main
    assert "secret" not in main


def test_before_the_log_is_read_the_members_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch)
    parts = console_parts(tmp_path, settings=FEDERATED)
    parts.ready = False
    browser = Browser(parts.app)
    browser.get("/cluster")
    assert "The control log is being read." in browser.text
    assert len(rows(browser, 1)) == 2
    assert [question for question, _ in asked] == [MEMBERS_OF]


def test_each_page_names_the_engine_and_the_screen_is_there_in_a_federation_only(
    browser: Browser, tmp_path: Path
) -> None:
    alone = Browser(console_parts(tmp_path / "alone").app)
    for each, listed in ((alone, False), (browser, True)):
        each.get("/topics")
        assert ("/cluster" in each.page.xpath("//nav//a/@href")) == listed
    footer = " ".join(browser.page.xpath("string(//footer)").split())
    assert footer.endswith(f"Arborcast {installed('arborcast')}, engine n1.")
