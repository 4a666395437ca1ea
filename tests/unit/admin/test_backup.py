"""Backups: the archive, and its contents during changes of the logs by deliveries; the logs are lists here. Copies of a
data directory."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import stat
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest
from typer.testing import CliRunner

from arborcast.admin import backup, data_directory
from arborcast.admin.archive import (
    MANIFEST,
    BackupError,
    BackupRecord,
    Contents,
    Manifest,
    read_log,
    seal,
    verify,
    write_log,
)
from arborcast.admin.data_directory import ARCHIVE, KEYS, AuditCounts, back_up, copy, drill, restore_copy
from arborcast.cli import app, maintenance
from arborcast.cli.maintenance import print_backup
from arborcast.core.errors import ConfigError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import dead_letters, parked
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery, Place
from arborcast.dispatch.realtime.messages import WorkerProgress
from arborcast.engine.embedded.engine import effective, write_settings
from arborcast.engine.embedded.home import Home
from arborcast.engine.processes import processes
from arborcast.engine.processes.errors import HomeError, HomeInUse
from arborcast.engine.settings.loading import Settings, load_settings
from arborcast.topic_model import control_log
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.projections.pull_store import PullLimits
from arborcast.topic_model.records import notifications, operations
from arborcast.topic_model.records.operations import OperationBegun, OperationEnded, Operator
from tests.support.fake_producer import FakeProducer, Sent
from tests.support.listed_logs import ListedLogs
from tests.support.make import notification

DIED_MS = 2_000


class Logs(ListedLogs):
    progress: Mapping[int, WorkerProgress] = {}

    def dispatched(self, before: int) -> None:
        """All notifications before this offset are settled, or parked."""
        self.progress = {0: WorkerProgress(1, 0, before, 1)}

    def redrive(self, delivery: Delivery, letter: DeadLetter) -> Delivery:
        """As the desk of dead letters does it; returns the new delivery."""
        again = Delivery(delivery.subscription, delivery.place._replace(redrive=letter.at_ms))
        self.park(again, letter.notification)
        self.bury(delivery, None)
        return again

    def back_up(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
        self.scanned(monkeypatch, backup)
        monkeypatch.setattr(backup, "read_progress", lambda _kafka: self.progress)
        return backup.backup(KafkaSettings(), folder, PullLimits(1, 1, 1))


def dead(name: str, offset: int) -> tuple[Delivery, DeadLetter]:
    letter = DeadLetter("s", "http://e/", notification(name), "dead", DIED_MS, 6)
    return Delivery("s", Place(1, 0, offset)), letter


@pytest.mark.parametrize("reaches_parked", [True, False], ids=["before parked is read", "after parked was read"])
def test_a_letter_that_moves_between_logs_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reaches_parked: bool
) -> None:
    logs = Logs(monkeypatch)
    stays, sent, purged = dead("stays", 1), dead("sent before", 2), dead("purged before", 3)
    meanwhile, delivered, dying = dead("sent meanwhile", 4), dead("delivered meanwhile", 5), dead("dying meanwhile", 6)

    def happen() -> None:
        logs.bury(*dying)
        logs.finished(dying[0])
        logs.redrive(*dying)
        logs.redrive(*meanwhile)
        logs.finished(logs.redrive(*delivered))

    def write(folder: Path, log: str, given: Iterable[BackupRecord]) -> Contents:
        # The parked deliveries are read for the file of notifications, the first log that is written.
        if log == "notifications" and reaches_parked:
            happen()
        written = write_log(folder, log, given)
        if log == "notifications" and not reaches_parked:
            happen()
        return written

    monkeypatch.setattr(backup, "write_log", write)
    for each in (stays, sent, purged, meanwhile, delivered):
        logs.bury(*each)
    logs.dispatched(100)
    logs.park(dying[0], dying[1].notification)
    logs.redrive(*sent)
    logs.bury(purged[0], None)
    logs.back_up(tmp_path, monkeypatch)
    owed = {notifications.decode(each.value or b"").id for each in read_log(tmp_path, "notifications")}
    letters = [(parked.decode_key(each.key)[0], each.value or b"") for each in read_log(tmp_path, "dead")]
    kept = {dead_letters.decode(value).notification.id for _, value in letters}
    assert owed == {"sent before", "dying meanwhile"} | ({"sent meanwhile"} if reaches_parked else set())
    assert kept == {"stays", "sent meanwhile", "delivered meanwhile", "dying meanwhile"}, "no more, and no fewer"
    assert {delivery.place.redrive for delivery, _ in letters} == {DIED_MS}


def test_the_backup_has_and_counts_records_behind_the_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = Logs(monkeypatch)
    for name in ("delivered", "behind the position"):
        logs.write("notifications", *notifications.encode(notification(name)))
    logs.dispatched(1)
    manifest = logs.back_up(tmp_path, monkeypatch)
    print_backup(manifest, tmp_path, "backed up to", json=False)
    owed = [notifications.decode(each.value or b"").id for each in read_log(tmp_path, "notifications")]
    assert owed == ["behind the position"]
    said = capsys.readouterr().out
    assert " 1 record   not delivered yet, or a moment ago\n" in said
    assert " 0 records  dead letters\n" in said
    assert [line.split()[0] for line in said.splitlines()[1:]] == [*manifest.logs]


def test_the_error_for_a_full_temporary_folder_names_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", Mock(side_effect=sqlite3.OperationalError("database or disk is full")))
    with pytest.raises(BackupError, match="TMPDIR sets its folder"):
        Logs(monkeypatch).back_up(tmp_path, monkeypatch)


def test_a_restore_flushes_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer has no bound: 2,000 records of 4 MB would be in memory."""
    monkeypatch.setattr(backup, "_AT_ONCE_BYTES", 1_000)

    class Producer(FakeProducer):
        most = 0

        def send(self, topic: str, *, value: bytes, key: bytes, partition: int) -> Sent:
            sent = super().send(topic, value=value, key=key, partition=partition)
            self.most = max(self.most, sum(len(each.value) + len(each.key) for each in self.open))
            return sent

    producer = Producer()
    records = (BackupRecord(b"k", b"x" * 400) for _ in range(50))
    backup._fill(cast(Any, producer), "control", "control", records)
    assert (len(producer.taken), producer.open) == (50, [])
    assert producer.most < 1_500


@pytest.mark.parametrize(
    ("first", "result", "starts"),
    [("restore", None, False), ("restore", "failed: away", False), ("restore", "9 records", True), ("x", None, True)],
)
def test_no_part_starts_on_the_logs_of_an_incomplete_restore(
    monkeypatch: pytest.MonkeyPatch, first: str, result: str | None, starts: bool
) -> None:
    logs = Logs(monkeypatch)
    logs.scanned(monkeypatch, control_log)
    monkeypatch.setattr(control_log, "ensure_topics", lambda *_, **__: None)
    operation, later = (operations.begun(Operator("command", "anna"), what, []) for what in (first, "restore"))
    written: list[OperationBegun | OperationEnded] = [operation, later, operations.ended(later, "done")]
    if result is not None:
        written.append(operations.ended(operation, result))
    for record in written:
        logs.write("operations", *operations.encode(record))
    with nullcontext() if starts else pytest.raises(ConfigError, match="has not ended, or failed"):
        ControlLog(KafkaSettings()).ensure_created()


RECORDS = [BackupRecord(b"k1", b"v" * 100_000), BackupRecord(b"k2", None), BackupRecord(b"", b"")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "backup"
    seal(folder, Manifest(1, {"control": write_log(folder, "control", RECORDS)}))
    return folder


def test_an_archive_keeps_order_and_incomplete_ones_are_refused(folder: Path) -> None:
    assert verify(folder).logs["control"].records == 3
    assert not stat.S_IMODE((folder / "control.records.gz").stat().st_mode) & 0o077
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


def test_a_changed_cut_or_missing_file_is_named(folder: Path) -> None:
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


def test_a_restored_copy_is_private(home: Path, tmp_path: Path) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    with Home(home).locked(), pytest.raises(HomeInUse):
        copy(home, backup)
    assert not backup.exists()
    made = copy(home, backup)
    assert [file.name for file in made] == [ARCHIVE, KEYS]
    with tarfile.open(made[0]) as opened:
        assert KEYS not in opened.getnames(), "not in the archive that they open"
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
    with pytest.raises(HomeError, match="did not end"):
        Home(tmp_path / "again").create()


def test_a_copy_has_linked_folders_and_replaces_the_draft_of_a_killed_one(home: Path, tmp_path: Path) -> None:
    other_disk, backup, restored = tmp_path / "disk", tmp_path / "backup", tmp_path / "restored"
    (home / "kafka").rename(other_disk)
    (home / "kafka").symlink_to(other_disk)
    backup.mkdir()
    (backup / f".{ARCHIVE}").write_text("a part")
    copy(home, backup)
    assert {file.name for file in backup.iterdir()} == {ARCHIVE, KEYS}
    assert (backup / ARCHIVE).stat().st_mode & 0o077 == 0
    restore_copy(backup, restored)
    assert (restored / "kafka/data/a-0/1.log").read_text() == "records"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The starts of an engine that runs; audits of a drill find the same."""
    starts: list[Settings] = []
    monkeypatch.setattr(data_directory, "down", lambda _home: True)
    monkeypatch.setattr(data_directory, "up", lambda settings, _options: starts.append(settings))
    monkeypatch.setattr(data_directory, "_audited", lambda *_: AuditCounts(1, 1, 1))
    return starts


def run(settings: Settings, folder: Path, as_drill: bool, since_ms: int = 0) -> None:
    """Make a backup, or a drill."""
    if as_drill:
        drill(settings, lambda: settings.kafka, folder, since_ms, lambda _line: None)
    else:
        back_up(settings, folder)


@pytest.mark.parametrize(("was_up", "as_drill"), [(True, False), (False, False), (True, True)])
def test_an_engine_is_started_again_after_a_failed_copy(
    home: Path, tmp_path: Path, started: list[Settings], monkeypatch: pytest.MonkeyPatch, was_up: bool, as_drill: bool
) -> None:
    monkeypatch.setattr(data_directory, "down", lambda _home: was_up)
    (tmp_path / "file").touch()
    with pytest.raises(HomeError, match="the backup cannot be written to"):
        run(load_settings(home=home, environ={}), tmp_path / "file" / "backup", as_drill)
    assert [each.home for each in started] == [home] * was_up


@pytest.mark.parametrize("as_drill", [False, True])
def test_an_engine_is_started_again_after_an_interrupted_stop(
    home: Path, tmp_path: Path, started: list[Settings], monkeypatch: pytest.MonkeyPatch, as_drill: bool
) -> None:
    """The stop has begun: it must end before the start."""
    monkeypatch.setattr(Home, "owner", lambda _home: 1)
    stops = Mock(side_effect=[KeyboardInterrupt, True])
    monkeypatch.setattr(data_directory, "down", stops)
    with pytest.raises(KeyboardInterrupt):
        run(load_settings(home=home, environ={}), tmp_path / "backup", as_drill)
    assert stops.call_count == 2
    assert [each.home for each in started] == [home]


@pytest.mark.parametrize("option", ["--data-directory", "--drill"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_backup_ends_with_its_clean_up_after_signals(
    home: Path, tmp_path: Path, started: list[Settings], monkeypatch: pytest.MonkeyPatch, option: str, number: int
) -> None:
    def signalled(*_: object) -> list[Path]:
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)  # a closed terminal sends it twice
        return []

    monkeypatch.setattr(data_directory, "copy", signalled)
    monkeypatch.setattr(maintenance, "kafka_of", lambda *_: None)
    command = ["backup", option, str(tmp_path / "backup"), "--home", str(home)]
    assert CliRunner().invoke(app, command).exit_code == 130
    assert [each.home for each in started] == [home]


def test_a_drill_without_a_terminal_leaves_the_data_directory_in_its_place(
    home: Path, tmp_path: Path, started: list[Settings]
) -> None:
    def report(line: str) -> None:
        if "was moved to" in line:
            raise BrokenPipeError

    settings = load_settings(home=home, environ={})
    with pytest.raises(BrokenPipeError):
        drill(settings, lambda: settings.kafka, tmp_path / "backup", 0, report)
    assert (home / "kafka/data/a-0/1.log").read_text() == "records"
    assert not list(tmp_path.glob("*.lost-*"))
    assert not started


def test_a_full_disk_leaves_no_archive_without_its_keys(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(data_directory, "write_atomically", Mock(side_effect=full))
    with pytest.raises(HomeError, match="the disk is full"):
        copy(home, tmp_path / "backup")
    assert not (tmp_path / "backup" / ARCHIVE).exists()


def test_a_file_in_place_of_the_folder_is_refused_before_the_stop(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_directory, "down", None)
    (tmp_path / "file").touch()
    for words in (["backup", "--data-directory"], ["backup"], ["restore"]):
        refused = CliRunner().invoke(
            app, [*words, str(tmp_path / "file"), "--home", str(home)], env={"COLUMNS": "1000"}
        )
        assert refused.exit_code == 2
        assert "is a file" in refused.output


def test_an_engine_is_started_again_with_the_options_of_its_start(
    home: Path, tmp_path: Path, started: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its clients do not find it, and its own job and that of spark-submit exclude each other."""
    options: dict[str, Any] = {"stack.job": "external", "gateway.port": 9001, "stack.kafka_port": 9002}
    options |= {"metrics.port": 9003, "console.port": 9004}
    monkeypatch.setattr(processes, "require_free", lambda *_: None)
    ran = effective(load_settings(home=home, overrides=options, environ={}))
    write_settings(ran, Home(home))
    monkeypatch.setattr(Home, "owner", lambda _home: 1)
    monkeypatch.setattr(data_directory, "job_state", lambda _home: "none")
    for as_drill in (False, True):
        run(load_settings(home=home, environ={}), tmp_path / f"backup {as_drill}", as_drill)
    for each in started:
        again = effective(each)
        assert (again.stack, again.gateway, again.kafka) == (ran.stack, ran.gateway, ran.kafka)
        assert (again.metrics, again.console) == (ran.metrics, ran.console)
    assert len(started) == 2


@pytest.mark.parametrize("as_drill", [False, True])
@pytest.mark.parametrize(
    ("folder", "why"),
    [("backup", "stop that job"), ("home/log/../backup", "a folder outside"), ("small", "0 MiB are needed: make room")],
)
def test_a_refused_backup_does_not_stop_the_engine(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, why: str, as_drill: bool
) -> None:
    """With a job of spark-submit, into the data directory, or to a disk without room for the copy."""
    if folder == "small":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Mock(free=10))
    if folder == "backup":
        write_settings(load_settings(home=home, overrides={"stack.job": "external"}, environ={}), Home(home))
        monkeypatch.setattr(Home, "owner", lambda _home: 1)
        monkeypatch.setattr(data_directory, "job_state", lambda _home: "running")
    for name in ("down", "_audited"):
        monkeypatch.setattr(data_directory, name, None)
    with pytest.raises(HomeError, match=why):
        run(load_settings(home=home, environ={}), tmp_path / folder, as_drill)


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(("since_hours", "compared_hours"), [(168, 90), (50, 50)])
def test_a_drill_does_not_compare_records_that_kafka_may_delete_meanwhile(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since_hours: int, compared_hours: int
) -> None:
    compared: list[int] = []

    def audited(_kafka: KafkaSettings, since_ms: int, until_ms: int, _progress: object) -> AuditCounts:
        compared.append(since_ms - now_ms)
        assert until_ms == now_ms
        return AuditCounts(1, 1, 1)

    now_ms = 1_000 * 3_600_000
    monkeypatch.setattr(data_directory, "time_ms", lambda: now_ms)
    monkeypatch.setattr(data_directory, "_audited", audited)
    settings = load_settings(home=home, overrides={"kafka.retention_hours": 100}, environ={})
    run(settings, tmp_path / "backup", True, now_ms - since_hours * 3_600_000)
    assert compared == [-compared_hours * 3_600_000] * 2


@pytest.mark.parametrize("is_mount_point", [False, True])
def test_a_drill_of_a_data_directory_on_another_disk(
    home: Path, tmp_path: Path, started: list[Settings], monkeypatch: pytest.MonkeyPatch, is_mount_point: bool
) -> None:
    """By a link: the restored copy is on that disk. A mount point cannot be renamed: the engine is started again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    there = home.rename(disk / "home")
    home.symlink_to(there)
    (there / "log" / "of the original").touch()  # log files are not copied
    refused = pytest.raises(HomeError, match=r"cannot rename the data directory .*: .*busy")
    if is_mount_point:
        busy = OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(home))
        monkeypatch.setattr(Path, "rename", Mock(side_effect=busy))
    with refused if is_mount_point else nullcontext():
        run(load_settings(home=home, environ={}), tmp_path / "backup", True)
    assert home.is_symlink()
    assert (there / "kafka/data/a-0/1.log").read_text() == "records"
    assert (there / "log").exists() is is_mount_point
    assert [each.name for each in disk.iterdir()] == ["home"]
    assert [each.home for each in started] == [home]


def test_a_backup_needs_an_engine_and_losses_are_counted(tmp_path: Path) -> None:
    command = ["backup", "--data-directory", str(tmp_path / "backup"), "--home", str(tmp_path / "none")]
    assert "no engine's data directory" in str(CliRunner().invoke(app, command).exception)
    before = AuditCounts(accepted=10, matches=20, settled=5)
    assert before.missing_from(AuditCounts(accepted=10, matches=20, settled=20)) == []
    assert before.missing_from(AuditCounts(accepted=9, matches=20, settled=5)) == ["1 of 10 accepted notifications"]
