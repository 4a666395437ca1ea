from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock, call

import pytest

from arborcast.core.errors import ConfigError
from arborcast.directory.entries import ldif
from arborcast.directory.entries.changes import Move, Put, Remove
from arborcast.directory.entries.mapping import ProblemKind
from arborcast.directory.errors import DirectoryError, LdifError
from arborcast.directory.settings import DirectorySettings
from arborcast.directory.stores import open_directory
from arborcast.directory.stores.file import FileDirectory
from arborcast.topic_model.topics import parse_path
from tests.support.directory import Watch, topic

SETTINGS = DirectorySettings(base_dn="ou=topics,dc=x", poll_interval_s=0.05)

BY_HAND = """\
# Kept by the operations team.

dn: ou=topics,dc=x
objectClass: organizationalUnit
ou: topics

# The alarms.
dn: topicName=alarm,ou=topics,dc=x
objectClass: arborcastTopic
topicName: alarm
description: rings a bell

# An entry of another program.
dn: cn=printer,ou=topics,dc=x
objectClass: device
cn: printer
"""


def entry(name: str) -> str:
    return f"\ndn: topicName={name},ou=topics,dc=x\nobjectClass: arborcastTopic\ntopicName: {name}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "topics.ldif"
    path.write_text(BY_HAND)
    return path


@pytest.fixture
def directory(file: Path) -> Iterator[FileDirectory]:
    opened = FileDirectory(file, SETTINGS)
    yield opened
    opened.close()


def test_the_kind_of_directory_in_the_settings() -> None:
    assert open_directory(DirectorySettings(kind="none")) is None
    for settings, name in (
        (DirectorySettings(file="elsewhere.ldif"), "elsewhere.ldif"),
        (DirectorySettings(kind="ldap", base_dn="ou=t,dc=x"), "ldap://127.0.0.1:389 ou=t,dc=x"),
    ):
        opened = open_directory(settings)
        assert opened is not None
        assert (opened.name, isinstance(opened, FileDirectory)) == (name, settings.kind == "file")
    for base_dn, url, key in (
        ("", "ldap://a", "base_dn"),
        ("topics", "ldap://a", "base_dn"),
        ("ou=t", "http://127.0.0.1", "url"),
        ("ou=t", "ldap://127.0.0.1:70000", "url"),
    ):
        with pytest.raises(ConfigError, match=rf"directory\.{key}"):
            open_directory(DirectorySettings(kind="ldap", base_dn=base_dn, url=url))


def test_writes_leave_the_rest_of_the_file_unchanged(file: Path, directory: FileDirectory) -> None:
    listing = directory.load()
    assert [problem.kind for problem in listing.problems] == [ProblemKind.FOREIGN]
    changes = [Put(topic("alarm", code="7")), Put(topic("new"))]
    result = directory.write(changes, listing)
    assert result.problems == ()
    written = BY_HAND.replace("description: rings a bell\n", "description: rings a bell\ntopicCode: 7\n") + entry("new")
    assert file.read_text() == written

    before = os.stat(file)
    result = directory.write(changes, result.listing)
    after = os.stat(file)
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )

    # An edit since the last read is kept.
    file.write_text(written + entry("hand"))
    result = directory.write([Put(topic("z")), Put(topic("alarm/sub"))], result.listing)
    assert set(result.listing.entries) == {"alarm", "alarm/sub", "hand", "new", "z"}

    # A moved topic keeps its comment and description, and is after its new parent.
    result = directory.write([Move(parse_path("alarm"), parse_path("z/alarm"))], result.listing)
    lines = file.read_text().splitlines()
    places = [line[4:].removesuffix(",ou=topics,dc=x") for line in lines if line.startswith("dn: topicName")]
    moved = ["topicName=z", "topicName=alarm,topicName=z", "topicName=sub,topicName=alarm,topicName=z"]
    assert places == ["topicName=new", "topicName=hand", *moved]
    at = lines.index("dn: topicName=alarm,topicName=z,ou=topics,dc=x")
    assert lines[at - 1] == "# The alarms."
    assert "description: rings a bell" in lines[at : at + 5]

    # A removed topic is removed with its comment.
    directory.write([Remove(parse_path("z/alarm/sub")), Remove(parse_path("z/alarm"))], result.listing)
    text = file.read_text()
    assert "alarm" not in text
    assert "# Kept by" in text
    assert "cn=printer" in text


def test_a_watched_file_is_read_whole_with_any_editor(file: Path, directory: FileDirectory) -> None:
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("alarm")
    # Broken: reported once, and the listing stays until it is repaired.
    file.write_text(BY_HAND + "\nnonsense\n")
    error = watch.wait_error()
    assert isinstance(error, LdifError)
    assert error.line == len(BY_HAND.splitlines()) + 2
    assert str(error).startswith(f"line {error.line}: 'nonsense'")
    assert str(file) in str(error)
    with pytest.raises(LdifError):
        directory.write([Put(topic("ours"))], watch.listings[-1][1])
    assert file.read_text().endswith("nonsense\n"), "not overwritten"
    file.write_text(BY_HAND.replace("alarm", "mended"))
    watch.wait_paths("mended")
    assert len(watch.errors) == 1
    # Written line by line.
    with file.open("w") as writing:
        for line in BY_HAND.replace("alarm", "other").splitlines(keepends=True):
            writing.write(line)
            writing.flush()
    watch.wait_paths("other")
    assert [set(listing.entries) for _, listing in watch.listings] == [{"alarm"}, {"mended"}, {"other"}]
    # Replaced by a file of the same length and time.
    other = file.with_suffix(".tmp")
    other.write_text(BY_HAND.replace("alarm", "third"))
    status = os.stat(file)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(file)
    watch.wait_paths("third")
    file.unlink()
    _, listing = watch.wait(lambda listing: not listing.initialised)
    assert listing.entries == {}


@pytest.mark.parametrize("end", ["topicName: al", "topicName: alarm", "\n# An entry"])
def test_a_file_that_is_cut_within_a_line_removes_no_topic(file: Path, directory: FileDirectory, end: str) -> None:
    listing = directory.load()
    file.write_text(BY_HAND[: BY_HAND.index(end) + len(end)])
    for refused in (FileDirectory(file, SETTINGS), directory):
        with pytest.raises(LdifError, match="the last line has no line end"):
            refused.load()
        with pytest.raises(LdifError):
            refused.write([Put(topic("ours"))], listing)
    assert file.read_text().endswith(end)


def test_a_smaller_file_must_be_unchanged_for_longer(
    file: Path, directory: FileDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = directory.load()
    copies = [BY_HAND[: BY_HAND.index("\n# The alarms.")], BY_HAND + entry("last")]
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        file.write_text(copies.pop(0) if copies else file.read_text())
        os.utime(file, ns=(0, 0))
        return False

    monkeypatch.setattr(directory._service, "wait", wait)
    file.write_text(BY_HAND[:1] + "\n")
    result = directory.write([], listing)
    assert waited == [2.0, 2.0, 0.1]
    assert set(result.listing.entries) == {"alarm", "last"}


@pytest.mark.parametrize(("module", "function"), [(ldif, "write"), (os, "fsync")])
def test_an_edit_during_a_write_is_not_overwritten(
    file: Path, directory: FileDirectory, monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str
) -> None:
    listing = directory.load()
    original = getattr(module, function)

    def edited(argument: object) -> object:
        file.write_text(BY_HAND + entry("hand"))
        return original(argument)

    with monkeypatch.context() as patched:
        patched.setattr(module, function, edited)
        with pytest.raises(DirectoryError, match="edited during a write"):
            directory.write([Put(topic("ours"))], listing)
    assert set(directory.write([Put(topic("ours"))], listing).listing.entries) == {"alarm", "hand", "ours"}
    assert [path.name for path in file.parent.iterdir()] == [file.name], "no draft is left"


def test_a_text_that_undoes_changes_by_the_engine_is_logged(
    file: Path, directory: FileDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    def undone() -> list[str]:
        messages = [record.getMessage() for record in caplog.records if "directory.undone" in record.getMessage()]
        caplog.clear()
        return messages

    def write(*changes: Put | Remove) -> None:
        directory.write(changes, directory.load())

    file.write_text(BY_HAND + entry("old"))
    write(Put(topic("first")))
    opened = file.read_text()
    write(Put(topic("alarm", code="7")), Remove(parse_path("old")), *(Put(topic(f"new{n}")) for n in range(30)))
    # The editor has the text from before the second write.
    file.write_text(opened + entry("hand"))
    assert set(directory.load().entries) == {"alarm", "first", "hand", "old"}
    (warning,) = undone()
    assert f"{file} undoes 32 changes" in warning
    assert all(f"topicName={name},ou=topics,dc=x" in warning for name in ("alarm", "old", "new0"))
    assert "and 12 more" in warning
    assert "first" not in warning

    # Reported once; edits of the current text undo nothing.
    file.write_text(opened)
    directory.load()
    write(Put(topic("alarm", code="8")), Put(topic("second")))
    file.write_text(file.read_text().replace("topicCode: 8", "topicCode: 9").replace(entry("first"), ""))
    assert set(directory.load().entries) == {"alarm", "old", "second"}
    assert undone() == []


def test_a_broken_file_is_parsed_once(file: Path, directory: FileDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Mock(wraps=ldif.parse)
    monkeypatch.setattr(ldif, "parse", parse)
    messages = set()
    for content in ("nonsense\n", "more nonsense\n"):
        file.write_text(content)
        for _ in range(3):
            with pytest.raises(LdifError, match="the tree is unchanged") as caught:
                directory.load()
            messages.add(str(caught.value))
    assert parse.call_args_list == [call(b"nonsense\n"), call(b"more nonsense\n")]
    assert len(messages) == 2
    file.write_text(BY_HAND)
    assert directory.load().initialised


def test_two_entries_of_one_dn_are_a_problem_and_both_stay_in_the_file(file: Path, directory: FileDirectory) -> None:
    file.write_text(BY_HAND + entry("alarm") + "topicCode: second\n")
    listing = directory.load()
    assert listing.records()[parse_path("alarm")].code == ""
    assert ProblemKind.DUPLICATE_TOPIC in [problem.kind for problem in listing.problems]
    directory.write([Put(topic("more"))], listing)
    assert "topicCode: second" in file.read_text()


def test_links_modes_and_unreadable_or_unwritable_files(tmp_path: Path, file: Path) -> None:
    file.chmod(0o604)
    link = tmp_path / "link.ldif"
    link.symlink_to(file)
    directory = FileDirectory(link, SETTINGS)
    directory.write([Put(topic("new"))], directory.load())
    assert link.is_symlink()
    assert "topicName=new" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o604
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.ldif", "topics.ldif"], "no draft is left"

    path = tmp_path / "data" / "topics.ldif"
    directory = FileDirectory(path, SETTINGS)
    directory.write([Put(topic("a"))], directory.load())
    assert path.read_text().startswith("# The topic tree of Arborcast.")
    assert path.stat().st_mode & 0o007 == 0, "not readable by others"
    with pytest.raises(DirectoryError, match="cannot read"):
        FileDirectory(tmp_path, SETTINGS).load()
    blocked = FileDirectory(file / "topics.ldif", SETTINGS)
    with pytest.raises(DirectoryError):
        blocked.write([Put(topic("a"))], blocked._listing)
