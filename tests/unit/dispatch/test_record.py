from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

from deltalake import DeltaTable

from dispatch import attempts
from dispatch.attempts import Attempt
from dispatch.record import AttemptsTable, rows_of
from dispatch.settings import TableSettings
from dispatch.tables import ATTEMPTS, TABLES
from topic_model.topics import TopicPath


def values(count: int = 1, first: int = 0) -> list[bytes]:
    made = [
        Attempt(
            notification=f"n{number}",
            subscription="s",
            topic=TopicPath("a/b"),
            endpoint="http://e/",
            number=1,
            push="p",
            state="failed",
            accepted_ms=1_700_000_000_123,
            started_ms=1_700_000_000_456,
            duration_ms=1.5,
            error="client-error",
            detail="HTTP 404",
            status=404,
            response=b"\xff",
            batch=9,
        )
        for number in range(first, first + count)
    ]
    return list(attempts.encode(made))


def test_attempt_becomes_a_row_with_every_column() -> None:
    (row,) = rows_of(values()).to_pylist()

    assert row == {
        "day": date(2023, 11, 14),
        "notification": "n0",
        "subscription": "s",
        "topic": "a/b",
        "endpoint": "http://e/",
        "number": 1,
        "push": "p",
        "state": "failed",
        "error": "client-error",
        "detail": "HTTP 404",
        "status": 404,
        "accepted_at": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "started_at": datetime(2023, 11, 14, 22, 13, 20, 456_000, UTC),
        "duration_ms": 1.5,
        "messages": 1,
        "request_bytes": 0,
        "response_bytes": 0,
        "response": b"\xff",
        "reused": False,
        "batch": 9,
    }


def test_repeated_batch_is_not_written_twice_even_after_a_restart(tmp_path: Path) -> None:
    location = str(tmp_path / "attempts")
    table = AttemptsTable(location)
    assert table.append(rows_of(values(3)), "query-1", 0)
    assert table.append(rows_of(values(2, 3)), "query-1", 1)
    assert not table.append(rows_of(values(2, 3)), "query-1", 1)

    restarted = AttemptsTable(location)
    assert not restarted.append(rows_of(values(3)), "query-1", 0)
    assert not restarted.append(rows_of(values(2, 3)), "query-1", 1)
    assert restarted.append(rows_of(values(1, 5)), "query-1", 2)

    rows = DeltaTable(location).to_pyarrow_table().column("notification").to_pylist()
    assert sorted(rows) == [f"n{number}" for number in range(6)]


def test_new_checkpoint_starts_its_own_count(tmp_path: Path) -> None:
    table = AttemptsTable(str(tmp_path / "attempts"))

    assert table.append(rows_of(values(1)), "query-1", 5)
    assert table.append(rows_of(values(1, 1)), "query-2", 0)


def test_batch_without_rows_makes_no_version(tmp_path: Path) -> None:
    location = str(tmp_path / "attempts")
    table = AttemptsTable(location)

    assert table.append(rows_of([attempts.NOTHING]), "query-1", 0)

    assert DeltaTable(location).version() == 0


def test_location_is_below_the_home_unless_set() -> None:
    assert ATTEMPTS.location(TableSettings(), Path("/data")) == "/data/tables/attempts"
    assert ATTEMPTS.location(TableSettings(path="s3://bucket/t/"), Path("/data")) == "s3://bucket/t/attempts"


def test_every_column_is_described_and_stored_so(tmp_path: Path) -> None:
    for spec in TABLES:
        stored = spec.ensure(str(tmp_path / spec.name)).schema().fields
        assert [field.name for field in stored] == [column.name for column in spec.columns]
        assert all(len(str(field.metadata["comment"])) > 10 for field in stored)
        assert {*spec.partition_by} <= {field.name for field in stored}
