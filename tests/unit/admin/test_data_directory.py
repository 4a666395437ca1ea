from __future__ import annotations

import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from arborcast.admin import data_directory
from arborcast.admin.data_directory import ARCHIVE, KEYS, AuditCounts, back_up, copy, drill, restore_copy
from arborcast.cli import app
from arborcast.engine.embedded.home import Home
from arborcast.engine.processes.errors import HomeError, HomeInUse
from arborcast.engine.settings.loading import load_settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = Home(tmp_path / "home")
    home.create()
    for name, text in (("kafka/data/a-0/1.log", "records"), ("topics.ldif", "dn: x"), ("log/job.log", "said")):
        file = home.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (home.path / KEYS).write_text("key")
    (home.path / KEYS).chmod(0o600)
    return home.path


def test_a_copy_is_restored_for_its_owner_alone(home: Path, tmp_path: Path) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    with Home(home).locked(), pytest.raises(HomeInUse):
        copy(home, backup)
    assert not backup.exists()
    made = copy(home, backup)
    assert [file.name for file in made] == [ARCHIVE, KEYS]
    with tarfile.open(made[0]) as opened:
        assert KEYS not in opened.getnames(), "not beside what they open"
    with pytest.raises(HomeError, match="not empty"):
        restore_copy(backup, home)
    assert (home / "log" / "job.log").exists()
    command = ["restore", str(backup), "--home", str(restored)]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert {str(file.relative_to(restored)) for file in restored.rglob("*.*")} == {
        *("kafka/data/a-0/1.log", "topics.ldif", KEYS)
    }
    assert (restored / "kafka/data/a-0/1.log").read_text() == "records"
    for file in (*made, restored / KEYS):
        assert file.stat().st_mode & 0o077 == 0, file
    made[0].write_bytes(made[0].read_bytes()[:700])
    with pytest.raises(HomeError, match="cannot be restored"):
        restore_copy(backup, tmp_path / "again")


@pytest.mark.parametrize(("was_up", "as_drill"), [(True, False), (False, False), (True, True)])
def test_an_engine_is_started_again_after_a_failed_copy(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_up: bool, as_drill: bool
) -> None:
    started: list[Path] = []

    def up(settings: Any, _options: Any) -> int:
        started.append(settings.home)
        return 0

    monkeypatch.setattr(data_directory, "down", lambda _home: was_up)
    monkeypatch.setattr(data_directory, "up", up)
    monkeypatch.setattr(data_directory, "_audited", lambda *_: AuditCounts(1, 1, 1))
    (tmp_path / "file").touch()
    settings, folder = load_settings(home=home, environ={}), tmp_path / "file" / "backup"
    action = (
        partial(drill, settings, lambda: settings.kafka, folder, 0) if as_drill else partial(back_up, settings, folder)
    )
    with pytest.raises(HomeError, match="the backup cannot be written to"):
        action()
    assert started == [home] * was_up


def test_a_backup_needs_an_engine_and_an_audit_names_what_is_missing(tmp_path: Path) -> None:
    command = ["backup", "--data-directory", str(tmp_path / "backup"), "--home", str(tmp_path / "none")]
    assert "no engine's data directory" in str(CliRunner().invoke(app, command).exception)
    before = AuditCounts(accepted=10, matches=20, settled=5)
    assert before.missing_from(AuditCounts(accepted=10, matches=20, settled=20)) == []
    assert before.missing_from(AuditCounts(accepted=9, matches=20, settled=5)) == ["1 of 10 accepted notifications"]
