"""The contract of all directories, tested with the LDIF file and with a real OpenLDAP server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from arborcast.directory.entries.changes import Move, Put, Remove
from arborcast.directory.entries.mapping import ProblemKind
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores import open_directory
from arborcast.directory.stores.contract import Directory
from arborcast.directory.stores.file import FileDirectory
from arborcast.topic_model.records.control import TopicRemoved
from arborcast.topic_model.topics import parse_path
from tests.support.directory import Watch, fill, synced, topic
from tests.support.slapd import SUFFIX, Slapd
from tests.support.waiting import wait_until

_bases = itertools.count()


@dataclass
class _Home:
    settings: DirectorySettings
    path: Path

    def open(self) -> Directory:
        directory = open_directory(self.settings)
        assert directory is not None
        return directory


class FileHome(_Home):
    def add(self, rdns: str, **attributes: str) -> None:
        lines = [f"dn: {rdns},{self.settings.base_dn}", "objectClass: arborcastTopic"]
        lines += [f"{name}: {value}" for name, value in attributes.items()]
        self._edit(self._text() + "\n" + "\n".join(lines) + "\n")

    def replace(self, rdns: str, attribute: str, value: str) -> None:
        records = self._text().split("\n\n")
        index = next(i for i, r in enumerate(records) if f"dn: {rdns},{self.settings.base_dn}\n" in r + "\n")
        lines = [line for line in records[index].strip("\n").split("\n") if not line.startswith(attribute + ":")]
        records[index] = "\n".join([*lines, f"{attribute}: {value}"])
        self._edit("\n\n".join(records) + "\n")

    def delete(self, rdns: str) -> None:
        records = self._text().split("\n\n")
        left = [r.strip("\n") for r in records if f"dn: {rdns},{self.settings.base_dn}\n" not in r + "\n"]
        self._edit("\n\n".join(left) + "\n")

    def _text(self) -> str:
        return self.path.read_text()

    def _edit(self, text: str) -> None:
        # As an editor does that writes in place.
        self.path.write_text(text)


@dataclass
class LdapHome(_Home):
    server: Slapd

    def add(self, rdns: str, **attributes: str) -> None:
        with self.server.admin() as connection:
            connection.add(f"{rdns},{self.settings.base_dn}", ["arborcastTopic"], attributes)

    def replace(self, rdns: str, attribute: str, value: str) -> None:
        with self.server.admin() as connection:
            connection.modify(f"{rdns},{self.settings.base_dn}", {attribute: [("MODIFY_REPLACE", [value])]})

    def delete(self, rdns: str) -> None:
        with self.server.admin() as connection:
            connection.delete(f"{rdns},{self.settings.base_dn}")


Home = FileHome | LdapHome
"""One kind of directory, and an editor of it."""


@pytest.fixture(params=["file", pytest.param("ldap", marks=pytest.mark.ldap)])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    if request.param == "file":
        file = str(tmp_path / "topics.ldif")
        settings = DirectorySettings(kind="file", file=file, base_dn="ou=topics,dc=arborcast", poll_interval_s=0.05)
        return FileHome(settings, tmp_path / "topics.ldif")
    server: Slapd = request.getfixturevalue("slapd")
    return LdapHome(server.settings(base_dn=f"ou=contract{next(_bases)},{SUFFIX}"), tmp_path, server)


@pytest.fixture
def directory(home: Home) -> Iterator[Directory]:
    opened = home.open()
    yield opened
    opened.close()


def test_another_client_loads_written_topics(home: Home, directory: Directory) -> None:
    wanted = [
        topic("a/b", code="17", final=True, message_types=("urn:t#x", "urn:t#y"), retain=True, priority=-2),
        topic(
            "{http://example.org/a,b=c+d#e}Größe/温度", routing="local reliable", publishers=(" spaced ", "cn=p,o=q")
        ),
        topic("a/{urn:x}b"),
    ]
    empty = directory.load()
    assert (empty.entries, empty.initialised) == ({}, False)
    result = directory.write([Put(record) for record in wanted], empty)
    assert result.problems == ()
    assert result.listing.records() == {record.path: record for record in wanted}
    other = home.open()
    listing = other.load()
    other.close()
    assert listing.records() == {record.path: record for record in wanted}
    assert listing.initialised


def test_a_removed_topic_with_children_stays_as_a_node(directory: Directory) -> None:
    listing = fill(directory, "a", "a/b/c")
    listing = directory.write([Remove(parse_path("a"))], listing).listing
    assert set(listing.entries) == {"a/b/c"}
    assert set(listing.places) == {"a", "a/b", "a/b/c"}
    listing = directory.write([Remove(parse_path("a/b/c"))], listing).listing
    assert set(listing.places) == set()


def test_writing_keeps_foreign_attributes_of_the_entry(home: Home, directory: Directory) -> None:
    fill(directory, "a/x", "b")
    home.replace("topicName=x,topicName=a", "description", "by hand")
    listing = directory.load()
    assert directory.write([Put(topic("a/x", code="5"))], listing).problems == ()
    listing = directory.write([Move(parse_path("a/x"), parse_path("b/y"))], directory.load()).listing
    assert listing.records() == {"b": topic("b"), "b/y": topic("b/y", code="5")}
    if isinstance(home, FileHome):
        text = home.path.read_text()
    else:
        with home.server.admin() as connection:
            connection.search(f"topicName=y,topicName=b,{home.settings.base_dn}", "(objectClass=*)", attributes=["*"])
            text = str(connection.entries)
    assert "by hand" in text


def test_a_manual_edit_since_the_listing_is_not_overwritten(home: Home, directory: Directory) -> None:
    listing = fill(directory, "a", "b")
    home.replace("topicName=a", "topicCode", "theirs")
    directory.load()
    result = directory.write([Put(topic("a", code="ours")), Put(topic("b", code="B"))], listing)
    assert [(p.kind, p.path) for p in result.problems] == [(ProblemKind.CONFLICT, "a")]
    assert result.listing.records() == {"a": topic("a", code="theirs"), "b": topic("b", code="B")}


def test_the_watcher_gets_all_entries_then_manual_edits(home: Home, directory: Directory) -> None:
    fill(directory, "a")
    watch = Watch()
    directory.watch(watch)
    _, first = watch.wait_paths("a")
    assert first.fresh
    home.add("topicName=b,topicName=a", topicName="b")
    watch.wait_paths("a", "a/b")
    home.replace("topicName=b,topicName=a", "topicPriority", "7")
    watch.wait(lambda listing: listing.records().get(parse_path("a/b")) == topic("a/b", priority=7))
    home.delete("topicName=b,topicName=a")
    _, last = watch.wait_paths("a")
    assert not last.fresh
    assert watch.errors == []


def test_invalid_entries_are_reported_and_the_others_are_loaded(home: Home, directory: Directory) -> None:
    fill(directory, "a")
    home.add("topicName=1st", topicName="1st")
    home.add("topicName=b", topicName="b", topicCode="K")
    home.add("topicName=c", topicName="c", topicCode="K")
    listing = directory.load()
    assert set(listing.entries) == {"a", "b"}
    assert sorted(problem.kind.value for problem in listing.problems) == ["duplicate-code", "illegal-name"]
    assert all(problem.dn.startswith("topicName=") for problem in listing.problems)


def test_sync_in_both_directions_without_reflection(home: Home, directory: Directory, tmp_path: Path) -> None:
    fill(directory, "a")
    with synced(home.open(), tmp_path / "state") as (log, sync):
        wait_until(lambda: set(log.topics()) == {"a"})
        log.append([topic("ours/x", code="1")])
        wait_until(lambda: set(directory.load().entries) == {"a", "ours/x"})
        home.add("topicName=theirs", topicName="theirs")
        wait_until(lambda: set(log.topics()) == {"a", "ours/x", "theirs"})
        home.delete("topicName=a")
        wait_until(lambda: set(log.topics()) == {"ours/x", "theirs"})
        log.append([TopicRemoved(parse_path("theirs"))])
        wait_until(lambda: set(directory.load().entries) == {"ours/x"})
        # At the end both are equal, and the log has one record per step: no change was reflected.
        added, removed = ["TopicRecord"], ["TopicRemoved"]
        assert [type(record).__name__ for record in log.records] == added * 3 + removed + ["Tombstone"] + removed
        assert sync.status.connected
        assert sync.status.problems == ()


def test_many_edits_on_both_sides_end_equal(home: Home, directory: Directory, tmp_path: Path) -> None:
    fill(directory, "theirs")
    opened = home.open()
    # An editor that saves an old text undoes the changes of the engine since then.
    exclusive = opened._lock if isinstance(opened, FileDirectory) else nullcontext()
    with synced(opened, tmp_path / "state") as (log, _):
        wait_until(lambda: set(log.topics()) == {"theirs"})
        for number in range(30):
            log.append([topic(f"ours/t{number}", code=f"o{number}")])
            if number % 3 == 0:
                with exclusive:
                    home.add(f"topicName=t{number},topicName=theirs", topicName=f"t{number}")
            if number % 5 == 4:
                log.append([topic(f"ours/t{number - 1}", priority=number)])
                log.append([TopicRemoved(parse_path(f"ours/t{number - 2}"))])
        expected = {"theirs"} | {f"theirs/t{n}" for n in range(0, 30, 3)}
        expected |= {f"ours/t{n}" for n in range(30) if n % 5 != 2}
        wait_until(lambda: set(log.topics()) == expected)
        wait_until(lambda: directory.load().records() == log.topics())
        assert directory.load().records()[parse_path("ours/t3")] == topic("ours/t3", priority=4)
