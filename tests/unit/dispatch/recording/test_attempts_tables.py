"""The tables of attempts, of ended deliveries, and of notifications."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import RUN_NUMBERS, Attempt
from arborcast.dispatch.monitoring.sources import QueryProgress
from arborcast.dispatch.recording import follower
from arborcast.dispatch.recording.archive import Archive, notification_rows
from arborcast.dispatch.recording.attempts_tables import EndedDeliveries, delivery_rows
from arborcast.dispatch.tables import ATTEMPTS, DELIVERIES, NOTIFICATIONS, TABLES
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, rows_of
from arborcast.topic_model.records import notifications
from tests.support import make
from tests.support.listed_logs import Listed, ListedLogs
from tests.support.table_rows import NOON, NOON_MS, attempt, attempts_tables, logged, read, write


def rows(*made: Attempt) -> pa.Table:
    return rows_of([attempts.encode(*made)])


def after(ms: float) -> datetime:
    return NOON + timedelta(milliseconds=ms)


def test_an_attempt_is_a_row_with_every_column() -> None:
    failed: dict[str, Any] = {"error": "client-error", "detail": "HTTP 404", "status": 404, "response": b"\xff"}
    made = attempt("n", "s", "parked", 333, duration_ms=1.5, batch=9, next_ms=NOON_MS + 1_000, **failed)
    (row,) = rows(made).to_pylist()

    names = {"notification": "n", "subscription": "s", "topic": "a/b", "endpoint": "http://s/", "push": "n-s-1"}
    times = {"day": date(2026, 1, 2), "accepted_at": NOON, "started_at": after(333), "next_at": after(1_000)}
    counts = {"number": 1, "messages": 1, "request_bytes": 0, "response_bytes": 0, "batch": 9, "duration_ms": 1.5}
    assert row == {**names, **failed, **times, **counts, "state": "parked", "reused": False, "lapsed": False}


def test_a_delivery_is_a_row_with_its_latencies() -> None:
    (row,) = delivery_rows(rows(attempt("n", "s", "delivered", 200, duration_ms=30.5, batch=1))).to_pylist()

    names = {"notification": "n", "subscription": "s", "topic": "a/b", "endpoint": "http://s/"}
    times = {"day": date(2026, 1, 2), "accepted_at": NOON, "ended_at": after(230.5)}
    latencies = {"waited_ms": 200.0, "push_ms": 30.5, "latency_ms": 230.5}
    assert row == {**names, **times, **latencies, "state": "delivered", "error": "", "attempts": 1, "batch": 1}
    # The gateway's clock is ahead: waits are not negative.
    (row,) = delivery_rows(rows(attempt("n", "s", "delivered", -100))).to_pylist()
    assert (row["waited_ms"], row["latency_ms"]) == (0.0, 10.0)


def test_a_notification_is_a_row_with_every_column() -> None:
    facts: dict[str, Any] = {"publisher": "me", "priority": -5, "cause": "n0", "hops": 2, "distribution": "group"}

    def archived(number: int, value: bytes = b"") -> Listed:
        made = make.notification(f"n{number}", accepted_ms=NOON_MS, path=("G/a", "H/b"), **facts)
        return Listed(b"", value or notifications.encode(made)[1], number, NOON_MS + 2, 3)

    (row,) = notification_rows([archived(7)], recorded_ms=NOON_MS + 1_000).to_pylist()
    times = {"day": date(2026, 1, 2), "accepted_at": NOON, "logged_at": after(2), "recorded_at": after(1_000)}
    fields = {"notification": "n7", "topic": "a/b", "partition": 3, "offset": 7, "payload": b"<x/>", "payload_bytes": 4}
    absent = {"message_id": "", "only": "", "producer": b"", "traceparent": "", "control": -1, "erased": None}
    assert row == {**times, **fields, **absent, **facts, "path": "G/a H/b"}
    (row,) = notification_rows([archived(7)], 0, lambda notification: f"e-{notification.id}").to_pylist()
    assert (row["payload"], row["producer"], row["payload_bytes"], row["erased"]) == (b"", b"", 4, "e-n7")
    found = notification_rows([archived(1), archived(2, b"junk"), archived(3)], 0)
    assert found.column("notification").to_pylist() == ["n1", "n3"]


def test_columns_are_described_and_incompatible_tables_refused(tmp_path: Path) -> None:
    for spec in TABLES:
        stored = spec.ensure(str(tmp_path / spec.name)).schema().fields
        assert [field.name for field in stored] == [column.name for column in spec.columns]
        assert all(len(str(field.metadata["comment"])) > 10 for field in stored)
        named = {*spec.partition_by, *filter(None, (spec.key, spec.time))}
        assert named <= {field.name for field in stored}
    others = [column for column in NOTIFICATIONS.columns if column.name != "offset"]
    offset = next(column for column in NOTIFICATIONS.columns if column.name == "offset")
    for columns, found in ((others, "no column"), ([*others, dataclasses.replace(offset, type="string")], "a column")):
        location = str(tmp_path / found)
        other = dataclasses.replace(NOTIFICATIONS, columns=tuple(columns))
        other.ensure(location)
        with pytest.raises(InfrastructureError, match=f"has {found} offset.* move the table away"):
            NOTIFICATIONS.ensure(location)
        assert DeltaTable(location).schema() == other.schema()


Places = tuple[Path, Path]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return tmp_path / "attempts", tmp_path / "deliveries"


def records(count: int, first: int, partition: int = 0) -> list[Listed]:
    """Records with one attempt each, named by their offsets."""
    made = (attempt(f"n{number}", "s", "delivered") for number in range(first, first + count))
    return logged(map(attempts.encode, made), first, partition)


def contents(places: Places) -> list[tuple[list[str], dict[int, int]]]:
    """The notifications in each of the two tables, and its positions in the log."""
    specs = ATTEMPTS, DELIVERIES
    return [
        ([name for (name,) in read(place, "notification")], DeltaTableWriter(spec, str(place)).positions("attempts"))
        for place, spec in zip(places, specs, strict=True)
    ]


def test_repeated_records_are_written_once(places: Places) -> None:
    tables = attempts_tables(*places)
    write(tables, records(3, 0))
    write(tables, records(2, 3))
    restarted = attempts_tables(*places)
    # Only old records, old and new ones together, and another partition with its own offsets.
    write(restarted, records(4, 1))
    write(restarted, [*records(3, 3), *records(2, 6, partition=2)])
    write(attempts_tables(*places), records(2, 6, partition=2))
    assert contents(places) == [([f"n{number}" for number in range(8)], {0: 6, 1: 0, 2: 8})] * 2


def test_records_without_rows_advance_the_positions(places: Places) -> None:
    write(attempts_tables(*places), logged([attempts.encode()]))
    assert contents(places) == [([], {0: 1})] * 2


def test_the_position_is_known_when_the_disk_is_full_since_the_start(
    places: Places, log: ListedLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(attempts_tables(*places), records(2, 0))
    log.records["attempts"] = records(5, 0)
    restarted = attempts_tables(*places)
    monkeypatch.setattr(DeltaTableWriter, "extend", Mock(side_effect=OSError("No space left on device")))
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            restarted.step()
        assert restarted.progress == QueryProgress(settled={0: 2})


def test_a_crash_between_the_tables_loses_and_repeats_no_rows(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    def crashed(*_: object) -> NoReturn:
        raise OSError("crash")

    counted: list[int] = []
    write(attempts_tables(*places), records(1, 0, partition=1))
    with monkeypatch.context() as patched:
        patched.setattr(EndedDeliveries, "append", crashed)
        with pytest.raises(OSError, match="crash"):
            write(attempts_tables(*places), records(4, 1))
    restarted = attempts_tables(*places, recorded=lambda rows: counted.append(rows.num_rows))

    write(restarted, [*records(4, 1), *records(1, 5, partition=1)])

    assert contents(places) == [([f"n{number}" for number in range(6)], {0: 5, 1: 6})] * 2
    assert counted == [1], "earlier rows were counted before the crash"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> ListedLogs:
    return ListedLogs(monkeypatch, follower)


def accept(log: ListedLogs, *names: str) -> None:
    for name in names:
        log.write("notifications", *notifications.encode(make.notification(name)))


def archived(location: Path) -> list[str]:
    return [name for (name,) in read(location, "notification")]


def test_a_commit_of_the_archive_with_an_unknown_outcome(
    tmp_path: Path, log: ListedLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, extend = Archive(KafkaSettings(), str(tmp_path), 0.0), DeltaTableWriter.extend

    def unsure(*committed: Any) -> None:
        extend(*committed)
        raise OSError("connection reset")

    accept(log, "a", "b")
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTableWriter, "extend", unsure)
        with pytest.raises(OSError, match="reset"):
            archive.step()
    accept(log, "c")
    for _ in range(2):
        archive.step()
    assert archived(tmp_path) == ["a", "b", "c"]
    assert archive.progress == QueryProgress(1, {0: 3})


@pytest.mark.parametrize(("more", "topic_id"), [(0, "first"), (30, "second")], ids=["a shorter log", "a longer log"])
def test_the_archive_of_a_recreated_log_continues_at_its_beginning(
    tmp_path: Path, log: ListedLogs, more: int, topic_id: str
) -> None:
    names, others = [f"n{number}" for number in range(20)], ["z", *(f"z{number}" for number in range(more))]
    accept(log, *names)
    Archive(KafkaSettings(), str(tmp_path), 0.0).step()
    log.records.clear()
    log.topic_id = topic_id
    accept(log, *others)
    for _ in range(2):
        archive = Archive(KafkaSettings(), str(tmp_path), 0.0)
        for _ in range(3):
            archive.step()
        assert archived(tmp_path) == sorted([*names, *others])


def delivered(name: str, batch: int, after_ms: int = 0, **more: object) -> Attempt:
    return attempt(name, str(more.pop("to", "s")), str(more.pop("state", "delivered")), after_ms, batch=batch, **more)


def ended(location: Path) -> list[str]:
    return [" ".join(map(str, row)) for row in read(location, "notification", "subscription", "state", "attempts")]


def test_ended_deliveries_are_rows_with_their_last_attempt(tmp_path: Path) -> None:
    EndedDeliveries(str(tmp_path)).append(
        rows(
            delivered("waits", 1, state="parked"),
            delivered("tried-again", 1, state="parked"),
            delivered("tried-again", 1, number=2),
            delivered("sent-again", 1, state="dead"),
            delivered("sent-again", 1, number=2),
        ),
        {},
    )
    assert ended(tmp_path) == ["sent-again s delivered 2", "tried-again s delivered 2"]


def test_a_repeated_batch_adds_no_second_row(tmp_path: Path) -> None:
    EndedDeliveries(str(tmp_path)).append(rows(delivered("n1", 6), delivered("n2", 7)), {})
    # Batch 7 was interrupted: its pushes are in the log again, in a later batch of the record query.
    again = rows(delivered("n2", 7), delivered("n2", 7, to="t"), delivered("n3", 7), delivered("n4", 8))
    EndedDeliveries(str(tmp_path)).append(again, {})
    assert ended(tmp_path) == [f"{each} delivered 1" for each in ("n1 s", "n2 s", "n2 t", "n3 s", "n4 s")]


def test_a_redriven_dead_letter_is_one_delivery(tmp_path: Path) -> None:
    table = EndedDeliveries(str(tmp_path))
    table.append(rows(delivered("n1", 1, state="dead", number=5), delivered("o'n2", 1, state="dead")), {})
    table.append(rows(delivered("n1", -1, number=6), delivered("n3", -1, state="expired", number=0)), {})
    assert ended(tmp_path) == ["n1 s delivered 6", "n3 s expired 0", "o'n2 s dead 1"]


def test_a_redriven_dead_letter_that_dies_again_has_its_last_end(tmp_path: Path) -> None:
    table = EndedDeliveries(str(tmp_path))
    table.append(rows(attempt("n", "s", "dead", number=5, error="timeout")), {})
    table.append(rows(attempt("n", "s", "dead", 60_000, number=1, batch=-1, error="client-error")), {})
    assert read(tmp_path, "error", "attempts", "ended_at") == [("client-error", 1, after(60_010))]
    table.append(rows(attempt("n", "s", "dead", 90_000, number=1, batch=-1, error="purged")), {})
    assert read(tmp_path, "error", "attempts", "ended_at") == [("client-error", 1, after(60_010))]


def test_merges_read_only_files_in_the_range_of_their_ids(tmp_path: Path) -> None:
    table = EndedDeliveries(str(tmp_path))
    days = ["0190a", "0195b", "019ac"]
    for number, day in enumerate(days):
        table.append(rows(delivered(day, number, state="dead")), {})
    (between,) = (tmp_path / name for name, first in files_of(tmp_path) if first == days[1])
    between.unlink()
    table.append(rows(delivered(days[0], -1, number=2), delivered(days[2], -1, number=2)), {"reached": 1})
    assert table.table.progress("reached") == 1


def files_of(location: Path) -> list[tuple[str, str]]:
    files = pa.table(DeltaTable(str(location)).get_add_actions(flatten=True))
    return list(zip(files["path"].to_pylist(), files["min.notification"].to_pylist(), strict=True))


def test_a_merge_is_repeated_after_a_concurrent_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = EndedDeliveries(str(tmp_path))
    for number in range(3):
        table.append(rows(delivered(f"n{number}", number, state="dead", number=5)), {})
    times = 0
    merge = DeltaTable.merge

    def raced(delta: DeltaTable, *given: Any, **named: Any) -> Any:
        """Upkeep joins files between the merge's read and its commit."""
        nonlocal times
        merger = merge(delta, *given, **named)
        if times:
            times -= 1
            upkeep = DeltaTable(str(tmp_path))
            upkeep.optimize.compact()
            # Files to join for the next conflict.
            write_deltalake(upkeep, delivery_rows(rows(delivered(f"x{times}", 0))), mode="append")
        return merger

    monkeypatch.setattr(DeltaTable, "merge", raced)
    again = rows(delivered("n1", -1, number=6))

    times = 99
    with pytest.raises(CommitFailedError):
        table.append(again, {"reached": 1})
    assert "n1 s dead 5" in ended(tmp_path), "no change after repeated conflicts"

    times = 2
    table.append(again, {"reached": 1})
    assert ended(tmp_path)[:3] == ["n0 s dead 5", "n1 s delivered 6", "n2 s dead 5"]
    assert table.table.progress("reached") == 1


def test_a_new_checkpoint_adds_no_second_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hour_ms = 3_600_000
    table = EndedDeliveries(str(tmp_path))
    table.append(rows(delivered("n1", 6), delivered("n2", 7, state="dead")), {})

    # The first batch, and later ones: all notifications accepted before its begin may be in the table.
    table.append(rows(delivered("n1", RUN_NUMBERS, hour_ms), delivered("n3", RUN_NUMBERS, hour_ms)), {})
    later, second = {"accepted_ms": NOON_MS + 2 * hour_ms}, RUN_NUMBERS + 1
    again = [delivered("n2", second, hour_ms, number=2), delivered("n3", second, hour_ms)]
    EndedDeliveries(str(tmp_path)).append(rows(*again, delivered("n4", second, 2 * hour_ms, **later)), {})
    assert ended(tmp_path) == ["n1 s delivered 1", "n2 s delivered 2", "n3 s delivered 1", "n4 s delivered 1"]

    looked_up: list[object] = []

    def states(keys: Iterable[object]) -> dict[object, str]:
        looked_up.extend(keys)
        return {}

    monkeypatch.setattr(table, "_states", states)
    table.append(rows(delivered("n5", RUN_NUMBERS + 2, 2 * hour_ms, **later)), {})
    assert not looked_up, "later notifications are not looked up"
