from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from arborcast.admin.archive import MANIFEST, BackupError, BackupRecord, Manifest, read_log, seal, verify, write_log

RECORDS = [BackupRecord(b"k1", b"v" * 100_000), BackupRecord(b"k2", None), BackupRecord(b"", b"")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "backup"
    seal(folder, Manifest(1, {"control": write_log(folder, "control", RECORDS)}))
    return folder


def test_what_was_put_in_comes_out_in_its_order_for_its_owner_alone(folder: Path) -> None:
    assert verify(folder).logs["control"].records == 3
    assert list(read_log(folder, "control")) == RECORDS
    assert not stat.S_IMODE((folder / "control.records.gz").stat().st_mode) & 0o077


def test_an_unfinished_and_a_newer_backup_are_none_and_nothing_is_written_over(folder: Path) -> None:
    with pytest.raises(BackupError, match="choose an empty folder"):
        write_log(folder, "control", [])
    assert list(read_log(folder, "control")) == RECORDS
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest | {"v": 99}))
    with pytest.raises(BackupError, match="upgrade"):
        verify(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(BackupError, match="no complete backup"):
        verify(folder)


def test_a_file_that_is_changed_cut_off_or_gone_is_told(folder: Path) -> None:
    file = folder / "control.records.gz"
    whole = file.read_bytes()
    for at in (0, 50, -1):
        content = bytearray(whole)
        content[at] ^= 1
        file.write_bytes(content)
        with pytest.raises(BackupError, match="is damaged"):
            verify(folder)
    file.write_bytes(whole[:-20])
    with pytest.raises(BackupError, match="cannot be read"):
        list(read_log(folder, "control"))
    file.unlink()
    with pytest.raises(BackupError, match="cannot be read"):
        verify(folder)
