"""The contract of all directories, tested with the LDIF file and with a real OpenLDAP server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from arborcast.directory.entries.changes import Move, Put, Remove
from arborcast.directory.entries.mapping import Listing, ProblemKind
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores import open_directory
from arborcast.directory.stores.contract import Directory
from arborcast.directory.sync.sync import DirectorySync
from arborcast.topic_model.records.control import TopicRemoved
from arborcast.topic_model.topics import parse_path
from tests.support.directory import Log, Watch, topic
from tests.support.slapd import SUFFIX, Slapd
from tests.support.waiting import wait_until

_bases = itertools.count()


class Home(Protocol):
    """One kind of directory, and an editor of it."""

    def open(self) -> Directory: ...

    def add(self, rdns: str, **attributes: str) -> None: ...

    def replace(self, rdns: str, attribute: str, value: str) -> None: ...

    def delete(self, rdns: str) -> None: ...


class FileHome:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = DirectorySettings(kind="file", base_dn="ou=topics,dc=arborcast", poll_interval_s=0.05)

    def open(self) -> Directory:
        directory = open_directory(self.settings, self.path)
        assert directory is not None
        return directory

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


class LdapHome:
    def __init__(self, server: Slapd) -> None:
        self.server = server
        self.settings = server.settings(base_dn=f"ou=contract{next(_bases)},{SUFFIX}")

    def open(self) -> Directory:
        directory = open_directory(self.settings, Path("unused"))
        assert directory is not None
        return directory

    def add(self, rdns: str, **attributes: str) -> None:
        with self.server.admin() as connection:
            connection.add(f"{rdns},{self.settings.base_dn}", ["arborcastTopic"], attributes)

    def replace(self, rdns: str, attribute: str, value: str) -> None:
        with self.server.admin() as connection:
            connection.modify(f"{rdns},{self.settings.base_dn}", {attribute: [("MODIFY_REPLACE", [value])]})

    def delete(self, rdns: str) -> None:
        with self.server.admin() as connection:
            connection.delete(f"{rdns},{self.settings.base_dn}")


@pytest.fixture(params=["file", pytest.param("ldap", marks=pytest.mark.ldap)])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    if request.param == "file":
        return FileHome(tmp_path / "topics.ldif")
    return LdapHome(request.getfixturevalue("slapd"))


@pytest.fixture
def directory(home: Home) -> Iterator[Directory]:
    opened = home.open()
    yield opened
    opened.close()


def put(directory: Directory, *paths: str) -> Listing:
    """Write topics into an empty directory."""
    result = directory.write([Put(topic(path)) for path in paths], directory.load())
    assert result.problems == ()
    return result.listing


def test_a_new_directory_is_empty(directory: Directory) -> None:
    listing = directory.load()
    assert listing.entries == {}
    assert not listing.initialised


def test_another_client_loads_written_topics(home: Home, directory: Directory) -> None:
    wanted = [
        topic("a/b", code="17", final=True, message_types=("urn:t#x", "urn:t#y"), retain=True, priority=-2),
        topic(
            "{http://example.org/a,b=c+d#e}Größe/温度", routing="local reliable", publishers=(" spaced ", "cn=p,o=q")
        ),
        topic("a/{urn:x}b"),
    ]
    result = directory.write([Put(record) for record in wanted], directory.load())
    assert result.problems == ()
    assert result.listing.records() == {record.path: record for record in wanted}
    other = home.open()
    listing = other.load()
    other.close()
    assert listing.records() == {record.path: record for record in wanted}
    assert listing.initialised


def test_a_removed_topic_with_children_stays_as_a_node(directory: Directory) -> None:
    listing = put(directory, "a", "a/b/c")
    listing = directory.write([Remove(parse_path("a"))], listing).listing
    assert set(listing.entries) == {"a/b/c"}
    assert set(listing.places) == {"a", "a/b", "a/b/c"}
    listing = directory.write([Remove(parse_path("a/b/c"))], listing).listing
    assert set(listing.places) == set()


def test_writing_keeps_foreign_attributes_of_the_entry(home: Home, directory: Directory) -> None:
    put(directory, "a/x", "b")
    home.replace("topicName=x,topicName=a", "description", "by hand")
    listing = directory.load()
    assert directory.write([Put(topic("a/x", code="5"))], listing).problems == ()
    listing = directory.write([Move(parse_path("a/x"), parse_path("b/y"))], directory.load()).listing
    assert listing.records() == {"b": topic("b"), "b/y": topic("b/y", code="5")}
    if isinstance(home, FileHome):
        text = home.path.read_text()
    else:
        assert isinstance(home, LdapHome)
        with home.server.admin() as connection:
            connection.search(f"topicName=y,topicName=b,{home.settings.base_dn}", "(objectClass=*)", attributes=["*"])
            text = str(connection.entries)
    assert "by hand" in text


def test_a_manual_edit_since_the_listing_is_not_overwritten(home: Home, directory: Directory) -> None:
    listing = put(directory, "a", "b")
    home.replace("topicName=a", "topicCode", "theirs")
    directory.load()
    result = directory.write([Put(topic("a", code="ours")), Put(topic("b", code="B"))], listing)
    assert [(p.kind, p.path) for p in result.problems] == [(ProblemKind.CONFLICT, "a")]
    assert result.listing.records() == {"a": topic("a", code="theirs"), "b": topic("b", code="B")}


def test_the_watcher_gets_all_entries_then_manual_edits(home: Home, directory: Directory) -> None:
    put(directory, "a")
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
    put(directory, "a")
    home.add("topicName=1st", topicName="1st")
    home.add("topicName=b", topicName="b", topicCode="K")
    home.add("topicName=c", topicName="c", topicCode="K")
    listing = directory.load()
    assert set(listing.entries) == {"a", "b"}
    assert sorted(problem.kind.value for problem in listing.problems) == ["duplicate-code", "illegal-name"]
    assert all(problem.dn.startswith("topicName=") for problem in listing.problems)


class Engine:
    """A sync over this directory with a log in memory, as in the gateway."""

    def __init__(self, home: Home, state: Path, log: Log | None = None) -> None:
        self.log = log or Log()
        self.sync = DirectorySync(home.open(), self.log.append, state)
        for record in self.log.records:
            self.sync.applied(record)
        self.log.sync = self.sync
        self.sync.start()

    def close(self) -> None:
        self.sync.close()
        self.log.sync = None


@pytest.fixture
def engines(home: Home, tmp_path: Path) -> Iterator[list[Engine]]:
    started: list[Engine] = []
    yield started
    for engine in started:
        engine.close()


def test_sync_in_both_directions_without_reflection(
    home: Home, directory: Directory, engines: list[Engine], tmp_path: Path
) -> None:
    put(directory, "a")
    engine = Engine(home, tmp_path / "state")
    engines.append(engine)
    wait_until(lambda: set(engine.log.topics()) == {"a"})
    engine.log.append([topic("ours/x", code="1")])
    wait_until(lambda: set(directory.load().entries) == {"a", "ours/x"})
    home.add("topicName=theirs", topicName="theirs")
    wait_until(lambda: set(engine.log.topics()) == {"a", "ours/x", "theirs"})
    home.delete("topicName=a")
    wait_until(lambda: set(engine.log.topics()) == {"ours/x", "theirs"})
    engine.log.append([TopicRemoved(parse_path("theirs"))])
    wait_until(lambda: set(directory.load().entries) == {"ours/x"})
    # At the end both are equal, and the log has one record per step: no change was reflected.
    assert [type(record).__name__ for record in engine.log.records] == [
        "TopicRecord",
        "TopicRecord",
        "TopicRecord",
        "TopicRemoved",
        "Tombstone",
        "TopicRemoved",
    ]
    assert engine.sync.status.connected
    assert engine.sync.status.problems == ()


def test_edits_while_the_engine_was_down_are_distinguished(
    home: Home, directory: Directory, engines: list[Engine], tmp_path: Path
) -> None:
    put(directory, "keep", "gone-there", "gone-here")
    engine = Engine(home, tmp_path / "state")
    wait_until(lambda: len(engine.log.topics()) == 3)
    engine.close()
    home.delete("topicName=gone-there")
    home.add("topicName=new-there", topicName="new-there")
    engine.log.append([TopicRemoved(parse_path("gone-here")), topic("new-here")])
    again = Engine(home, tmp_path / "state", engine.log)
    engines.append(again)
    expected = {"keep", "new-there", "new-here"}
    wait_until(lambda: set(again.log.topics()) == expected)
    wait_until(lambda: set(directory.load().entries) == expected)


def test_many_edits_on_both_sides_end_equal(
    home: Home, directory: Directory, engines: list[Engine], tmp_path: Path
) -> None:
    put(directory, "theirs")
    engine = Engine(home, tmp_path / "state")
    engines.append(engine)
    wait_until(lambda: set(engine.log.topics()) == {"theirs"})
    for number in range(30):
        engine.log.append([topic(f"ours/t{number}", code=f"o{number}")])
        if number % 3 == 0:
            home.add(f"topicName=t{number},topicName=theirs", topicName=f"t{number}")
        if number % 5 == 4:
            engine.log.append([topic(f"ours/t{number - 1}", priority=number)])
            engine.log.append([TopicRemoved(parse_path(f"ours/t{number - 2}"))])
    expected = {"theirs"} | {f"theirs/t{n}" for n in range(0, 30, 3)}
    expected |= {f"ours/t{n}" for n in range(30) if n % 5 != 2}
    wait_until(lambda: set(engine.log.topics()) == expected)
    wait_until(lambda: directory.load().records() == engine.log.topics())
    assert directory.load().records()[parse_path("ours/t3")] == topic("ours/t3", priority=4)
