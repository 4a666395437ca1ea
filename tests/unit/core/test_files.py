from __future__ import annotations

import os
from pathlib import Path

import pytest

from arborcast.core.errors import ConfigError
from arborcast.core.files import WatchedFile, stamp_of, write_atomically


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    opened = file.open()

    stamp = write_atomically(file, "neu ä")

    with opened:
        assert opened.read() == "old"
    assert file.read_text(encoding="utf-8") == "neu ä"
    assert stamp == stamp_of(file.stat())
    assert list(tmp_path.iterdir()) == [file]


def test_permissions_are_those_of_new_files_or_those_that_are_asked_for(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        for mode, expected in ((None, 0o644), (0o600, 0o600), (0o666, 0o666)):
            write_atomically(tmp_path / "file", b"", mode=mode)
            assert (tmp_path / "file").stat().st_mode & 0o777 == expected
    finally:
        os.umask(umask)


def test_what_cannot_be_put_in_place_is_taken_away_again(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", b"x")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_a_watched_file_is_read_again_when_it_has_changed_and_kept_when_it_cannot_be(tmp_path: Path) -> None:
    file, now = tmp_path / "file", [0.0]

    def read(text: str, name: str) -> int:
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(f"{name} is no number") from error

    file.write_text("1")
    watched = WatchedFile(file, read, clock=lambda: now[0])
    seen = [watched.value]
    for text in ("2", "nonsense", "3"):
        write_atomically(file, text, durable=False)
        seen.append(watched.value)  # looked at a moment ago
        now[0] += 2
        seen.append(watched.value)
    assert seen == [1, 1, 2, 2, 2, 2, 3]


def test_a_watched_file_that_is_missing_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, now = tmp_path / "file", [0.0]
    file.write_text("1")
    watched = WatchedFile(file, lambda text, _: int(text), clock=lambda: now[0])
    for _ in range(2):
        file.unlink()
        for _ in range(3):
            now[0] += 2
            assert watched.value == 1
        file.write_text("1")
        now[0] += 2
        assert watched.value == 1
    assert [each.getMessage().count("cannot be read") for each in caplog.records if each.levelname == "ERROR"] == [1, 1]
