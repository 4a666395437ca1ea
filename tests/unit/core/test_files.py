"""Replaced files, watched files, and XML of others."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest
from lxml import etree

from arborcast.core.errors import ConfigError
from arborcast.core.files import WatchedFile, readable_by_others, stamp_of, write_atomically, write_output
from arborcast.core.xml import xml_parser
from tests.support.make import Clock
from tests.support.waiting import change_mode


def test_a_file_is_replaced_without_leftovers(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    with file.open() as opened:
        stamp = write_atomically(file, "neu ä")
        assert opened.read() == "old"
    assert file.read_text(encoding="utf-8") == "neu ä"
    assert stamp == stamp_of(file.stat())
    assert list(tmp_path.iterdir()) == [file]

    umask = os.umask(0o022)
    try:
        file.unlink()
        for mode, expected in ((None, 0o644), (0o600, 0o600), (0o666, 0o666)):
            write_atomically(file, b"", mode=mode)
            assert file.stat().st_mode & 0o777 == expected
    finally:
        os.umask(umask)

    file.unlink()
    file.mkdir()
    with pytest.raises(OSError, match="file"):
        write_atomically(file, b"x")
    assert list(tmp_path.iterdir()) == [file], "the new content is removed"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As /dev/null, which root can replace; and the target of a link."""
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_output(pipe, "text")
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    link.symlink_to(file)
    write_output(link, b"text")
    assert link.is_symlink()
    assert file.read_text() == "text"


def test_as_root_a_replaced_file_stays_with_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, given = tmp_path / "secrets.keys", list[tuple[int, int]]()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _, user, group: given.append((user, group)))
    write_atomically(file, "1", mode=0o600)
    assert given == [], "a new file"
    write_atomically(file, "2", mode=0o600)
    assert given == [(file.stat().st_uid, file.stat().st_gid)]


def test_a_watched_file_is_read_on_a_change_kept_on_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, clock = tmp_path / "file", Clock()

    def read(text: str, name: str) -> int:
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(f"{name} is no number") from error

    file.write_text("1")
    watched = WatchedFile(file, read, clock=clock)
    seen = [watched.value]
    for text in ("nonsense", "2", "3"):
        write_atomically(file, text, durable=False)
        seen.append(watched.value)  # read just before
        clock.after(2)
        seen.append(watched.value)
    assert seen == [1, 1, 1, 1, 2, 2, 3]

    caplog.clear()
    for _ in range(2):
        file.unlink()
        for _ in range(3):
            clock.after(2)
            assert watched.value == 3
        file.write_text("3")
        clock.after(2)
        assert watched.value == 3
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert ["cannot be read" in each for each in errors] == [True] * 2, "each absence is logged once"


def test_a_watched_file_is_read_once_it_can_be_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, clock = tmp_path / "file", Clock()
    file.write_text("1")
    watched = WatchedFile(file, lambda text, _name: text, clock=clock)
    write_atomically(file, "22")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        for _ in range(3):
            clock.after(2)
            assert watched.value == "1"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    clock.after(2)
    assert watched.value == "22"
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert ["too many open files" in each for each in errors] == [True], "logged once"


def test_a_watched_file_is_read_after_its_permissions_were_corrected(tmp_path: Path) -> None:
    file, clock = tmp_path / "file", Clock()

    def read(text: str, name: str) -> str:
        if Path(name).stat().st_mode & 0o077:
            raise ConfigError(f"{name} is readable by others: chmod 600 it")
        return text

    write_atomically(file, "1", mode=0o600)
    watched = WatchedFile(file, read, clock=clock)
    write_atomically(file, "2", mode=0o644)
    clock.after(2)
    assert watched.value == "1"
    change_mode(file, 0o600)
    clock.after(2)
    assert watched.value == "2"


def test_xml_is_read_without_entities_and_comments_to_a_depth(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for entity in ('"secret"', f'SYSTEM "{secret.as_uri()}"'):
        root = etree.fromstring(f"<!DOCTYPE a [<!ENTITY e {entity}>]><a>&e;</a>".encode(), xml_parser())
        assert "secret" not in "".join(str(text) for text in root.itertext(tag=etree.Element))
    etree.fromstring(b"<a>" * 200 + b"</a>" * 200, xml_parser())
    with pytest.raises(etree.XMLSyntaxError):
        etree.fromstring(b"<a>" * 300 + b"</a>" * 300, xml_parser())
    document = b"<a><!-- c --><?p i?><b/></a>"
    assert len(etree.fromstring(document, xml_parser())) == 3
    assert len(etree.fromstring(document, xml_parser(comments=False))) == 1


@pytest.mark.parametrize(
    ("owner", "mode", "me", "others"),
    [
        (10001, 0o600, 10001, False),
        (10001, 0o640, 10001, True),
        (0, 0o440, 10001, False),  # a mounted Secret of Kubernetes
        (0, 0o640, 10001, False),
        (0, 0o660, 10001, True),
        (0, 0o444, 10001, True),
        (0, 0o640, 0, True),
    ],
)
def test_files_others_can_read(monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, me: int, others: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: me)
    assert readable_by_others(os.stat_result((mode, 0, 0, 0, owner, 0, 0, 0, 0, 0))) is others
