"""Backups: the archive, and what is in it while deliveries move from log to log; the logs are lists here."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import pytest

from arborcast.admin import backup
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
from arborcast.cli.maintenance import print_backup
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import dead_letters, parked
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import Delivery, Place
from arborcast.dispatch.realtime.messages import WorkerProgress
from arborcast.topic_model.projections.pull_store import PullLimits
from arborcast.topic_model.records import notifications
from tests.support.listed_logs import ListedLogs
from tests.support.make import notification

DIED_MS = 2_000


class Logs(ListedLogs):
    progress: Mapping[int, WorkerProgress] = {}

    def dispatched(self, before: int) -> None:
        """All notifications before this offset are settled, or parked."""
        self.progress = {0: WorkerProgress(1, 0, before, 1)}

    def redrive(self, delivery: Delivery, letter: DeadLetter) -> Delivery:
        """In the order in which the desk of dead letters does it; its new name."""
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
def test_a_letter_that_moves_between_the_logs_is_not_lost(
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
        # What is parked is read for the file of notifications, and nothing before.
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


def test_the_backup_has_and_counts_what_is_behind_the_position(
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
    lines = [line.split() for line in said.splitlines()[1:]]
    assert [line[0] for line in lines] == [*manifest.logs]


def test_a_restore_flushes_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer has no bound: 2,000 records of 4 MB would be in memory."""
    monkeypatch.setattr(backup, "_AT_ONCE_BYTES", 1_000)
    unflushed, most, sent = 0, 0, 0

    class Future:
        def add_errback(self, _call: object) -> None: ...

    class Producer:
        def partitions_for(self, _topic: str) -> set[int]:
            return {0}

        def send(self, _topic: str, value: bytes, key: bytes, partition: int) -> Future:
            nonlocal unflushed, most, sent
            unflushed, sent = unflushed + len(value) + len(key), sent + 1
            most = max(most, unflushed)
            return Future()

        def flush(self, timeout: float) -> None:
            nonlocal unflushed
            unflushed = 0

    records = (BackupRecord(b"k", b"x" * 400) for _ in range(50))
    backup._fill(Producer(), "control", "control", records)  # type: ignore[arg-type]
    assert (sent, unflushed) == (50, 0)
    assert most < 1_500


RECORDS = [BackupRecord(b"k1", b"v" * 100_000), BackupRecord(b"k2", None), BackupRecord(b"", b"")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "backup"
    seal(folder, Manifest(1, {"control": write_log(folder, "control", RECORDS)}))
    return folder


def test_an_archive_keeps_order_and_refuses_what_is_not_whole(folder: Path) -> None:
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
