from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from arborcast.directory.entries import ldif
from arborcast.directory.entries.changes import Move, Put, Remove
from arborcast.directory.entries.mapping import ProblemKind
from arborcast.directory.errors import DirectoryError, LdifError
from arborcast.directory.settings import DirectorySettings
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

# Somebody else's entry.
dn: cn=printer,ou=topics,dc=x
objectClass: device
cn: printer
"""


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


def test_what_we_do_not_understand_stays_in_the_file_word_for_word(file: Path, directory: FileDirectory) -> None:
    listing = directory.load()
    assert [problem.kind for problem in listing.problems] == [ProblemKind.FOREIGN]
    result = directory.write([Put(topic("alarm", code="7")), Put(topic("new"))], listing)
    assert result.problems == ()
    assert (
        file.read_text()
        == BY_HAND.replace("description: rings a bell\n", "description: rings a bell\ntopicCode: 7\n")
        + "\ndn: topicName=new,ou=topics,dc=x\nobjectClass: arborcastTopic\ntopicName: new\n"
    )


def test_writing_what_is_there_already_does_not_touch_the_file(file: Path, directory: FileDirectory) -> None:
    before = written(file)
    directory.write([Put(topic("alarm"))], directory.load())
    assert written(file) == before


def written(file: Path) -> tuple[int, int, int]:
    """Changes when the file is written, and not when it is read."""
    found = os.stat(file)
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def test_a_removed_topic_takes_its_comment_along_and_nothing_else(file: Path, directory: FileDirectory) -> None:
    directory.write([Remove(parse_path("alarm"))], directory.load())
    text = file.read_text()
    assert "alarm" not in text
    assert "# Kept by" in text
    assert "cn=printer" in text


def test_a_moved_topic_keeps_comment_and_description_and_comes_after_its_new_parent(
    file: Path, directory: FileDirectory
) -> None:
    listing = directory.write([Put(topic("z")), Put(topic("alarm/sub"))], directory.load()).listing
    directory.write([Move(parse_path("alarm"), parse_path("z/alarm"))], listing)
    lines = file.read_text().splitlines()
    assert [line[4:] for line in lines if line.startswith("dn: topicName")] == [
        "topicName=z,ou=topics,dc=x",
        "topicName=alarm,topicName=z,ou=topics,dc=x",
        "topicName=sub,topicName=alarm,topicName=z,ou=topics,dc=x",
    ]
    moved = lines.index("dn: topicName=alarm,topicName=z,ou=topics,dc=x")
    assert lines[moved - 1] == "# The alarms."
    assert "description: rings a bell" in lines[moved : moved + 5]


def test_an_edit_since_the_last_look_is_kept_by_a_write(file: Path, directory: FileDirectory) -> None:
    listing = directory.load()
    file.write_text(BY_HAND + "\ndn: topicName=hand,ou=topics,dc=x\nobjectClass: arborcastTopic\ntopicName: hand\n")
    result = directory.write([Put(topic("ours"))], listing)
    assert set(result.listing.entries) == {"alarm", "hand", "ours"}
    assert "topicName=hand" in file.read_text()


def test_a_broken_file_is_reported_once_and_the_listing_stays_until_it_is_mended(
    file: Path, directory: FileDirectory
) -> None:
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("alarm")
    file.write_text(BY_HAND + "\nnonsense\n")
    error = watch.wait_error()
    assert isinstance(error, LdifError)
    assert error.line == len(BY_HAND.splitlines()) + 2
    assert str(file) in str(error)
    with pytest.raises(LdifError):
        directory.write([Put(topic("ours"))], watch.listings[-1][1])
    assert file.read_text().endswith("nonsense\n")  # nobody's work is overwritten
    file.write_text(BY_HAND.replace("alarm", "mended"))
    watch.wait_paths("mended")
    assert len(watch.errors) == 1


def test_a_broken_file_is_parsed_once(file: Path, directory: FileDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    parse = ldif.parse

    def counted(data: bytes) -> list[ldif.Block]:
        parsed.append(data)
        return parse(data)

    monkeypatch.setattr(ldif, "parse", counted)
    messages = set()
    for content in ("nonsense", "more nonsense"):
        file.write_text(content)
        for _ in range(3):
            with pytest.raises(LdifError, match="topic tree is not changed") as caught:
                directory.load()
            messages.add(str(caught.value))
    assert parsed == [b"nonsense", b"more nonsense"]
    assert len(messages) == 2
    file.write_text(BY_HAND)
    assert directory.load().initialised


def test_a_file_that_is_being_written_is_not_read_half(file: Path, directory: FileDirectory) -> None:
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("alarm")
    with file.open("w") as writing:
        for line in BY_HAND.replace("alarm", "longer").splitlines(keepends=True):
            writing.write(line)
            writing.flush()
    watch.wait_paths("longer")
    assert [set(listing.entries) for _, listing in watch.listings] == [{"alarm"}, {"longer"}]


def test_an_editor_that_replaces_the_file_is_noticed_and_so_is_that_it_vanishes(
    file: Path, directory: FileDirectory
) -> None:
    watch = Watch()
    directory.watch(watch)
    watch.wait_paths("alarm")
    other = file.with_suffix(".tmp")
    other.write_text(BY_HAND.replace("alarm", "other"))
    status = os.stat(file)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))  # same length, same time: another file all the same
    other.replace(file)
    watch.wait_paths("other")
    file.unlink()
    _, listing = watch.wait(lambda listing: not listing.initialised)
    assert listing.entries == {}


def test_two_entries_of_one_dn_are_a_problem_and_both_stay_in_the_file(file: Path, directory: FileDirectory) -> None:
    twice = "\ndn: topicName=alarm,ou=topics,dc=x\nobjectClass: arborcastTopic\ntopicName: alarm\ntopicCode: second\n"
    file.write_text(BY_HAND + twice)
    listing = directory.load()
    assert listing.records()[parse_path("alarm")].code == ""
    assert ProblemKind.DUPLICATE_TOPIC in [problem.kind for problem in listing.problems]
    directory.write([Put(topic("more"))], listing)
    assert "topicCode: second" in file.read_text()


def test_a_link_stays_a_link_and_rights_stay_as_they_were(tmp_path: Path, file: Path) -> None:
    file.chmod(0o604)
    link = tmp_path / "link.ldif"
    link.symlink_to(file)
    directory = FileDirectory(link, SETTINGS)
    directory.write([Put(topic("new"))], directory.load())
    assert link.is_symlink()
    assert "topicName=new" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o604
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []  # no draft left behind


def test_a_new_file_explains_itself_and_what_cannot_be_read_or_written_is_our_error(tmp_path: Path) -> None:
    path = tmp_path / "data" / "topics.ldif"
    directory = FileDirectory(path, SETTINGS)
    directory.write([Put(topic("a"))], directory.load())
    assert path.read_text().startswith("# The topic tree of Arborcast.")
    assert path.stat().st_mode & 0o007 == 0, "not for everybody"
    with pytest.raises(DirectoryError, match="cannot read"):
        FileDirectory(tmp_path, SETTINGS).load()
    (tmp_path / "file").write_text("in the way")
    blocked = FileDirectory(tmp_path / "file" / "topics.ldif", SETTINGS)
    with pytest.raises(DirectoryError):
        blocked.write([Put(topic("a"))], blocked._listing)
