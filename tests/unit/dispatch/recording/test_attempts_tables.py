from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from deltalake import DeltaTable

from arborcast.core.errors import InfrastructureError
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.recording.archive import notification_rows
from arborcast.dispatch.recording.attempts_tables import EndedDeliveries
from arborcast.dispatch.tables import ATTEMPTS, DELIVERIES, NOTIFICATIONS, TABLES
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, rows_of
from arborcast.topic_model.records import notifications
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.table_rows import Logged, attempts_tables, logged, write


def values(count: int = 1, first: int = 0) -> list[bytes]:
    made = [
        Attempt(
            notification=f"n{number}",
            subscription="s",
            topic=TopicPath("a/b"),
            endpoint="http://e/",
            number=1,
            push="p",
            state="parked",
            accepted_ms=1_700_000_000_123,
            started_ms=1_700_000_000_456,
            duration_ms=1.5,
            error="client-error",
            detail="HTTP 404",
            status=404,
            response=b"\xff",
            batch=9,
            next_ms=1_700_000_001_000,
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
        "state": "parked",
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
        "next_at": datetime(2023, 11, 14, 22, 13, 21, 0, UTC),
    }


def records(count: int, first: int, partition: int = 0) -> list[Logged]:
    """As many records, each with one attempt, whose number is the record's offset."""
    return logged([one for number in range(first, first + count) for one in delivered(1, number)], first, partition)


def delivered(count: int, first: int = 0) -> list[bytes]:
    made = [each for value in values(count, first) for each in attempts.decode(value)]
    return list(attempts.encode(msgspec.structs.replace(each, state="delivered") for each in made))


def ids(location: Path) -> list[str]:
    return sorted(DeltaTable(str(location)).to_pyarrow_table().column("notification").to_pylist())


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "attempts", tmp_path / "deliveries"


def reached(location: Path) -> dict[int, int]:
    spec = ATTEMPTS if location.name == "attempts" else DELIVERIES
    return DeltaTableWriter(spec, str(location)).positions("attempts")


def test_records_are_written_once_however_they_come_again(places: tuple[Path, Path]) -> None:
    tables = attempts_tables(*places)
    write(tables, records(3, 0))
    write(tables, records(2, 3))

    restarted = attempts_tables(*places)
    # Records that are there, some that are there beside some that are not, and another partition with its own offsets.
    write(restarted, records(4, 1))
    write(restarted, [*records(3, 3), *records(2, 6, partition=2)])
    write(attempts_tables(*places), records(2, 6, partition=2))

    assert ids(places[0]) == ids(places[1]) == [f"n{number}" for number in range(8)]
    assert reached(places[0]) == reached(places[1]) == {0: 6, 1: 0, 2: 8}


def test_records_without_rows_say_how_far_they_came(places: tuple[Path, Path]) -> None:
    write(attempts_tables(*places), logged([attempts.NOTHING]))

    assert reached(places[0]) == reached(places[1]) == {0: 1}
    assert ids(places[0]) == ids(places[1]) == []


def test_each_table_has_what_it_lacks_after_a_crash_between_them(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crashed(*_: object) -> NoReturn:
        raise OSError("gone")

    counted: list[int] = []
    write(attempts_tables(*places), records(1, 0, partition=1))
    with monkeypatch.context() as patched:
        patched.setattr(EndedDeliveries, "append", crashed)
        with pytest.raises(OSError, match="gone"):
            write(attempts_tables(*places), records(4, 1))
    restarted = attempts_tables(*places, recorded=lambda rows: counted.append(rows.num_rows))

    write(restarted, [*records(4, 1), *records(1, 5, partition=1)])

    assert ids(places[0]) == ids(places[1]) == [f"n{number}" for number in range(6)]
    assert counted == [1], "what the table had already was counted then"
    assert reached(places[0]) == reached(places[1]) == {0: 5, 1: 6}


def archived(number: int, value: bytes | None = None) -> Logged:
    topic, accepted_ms = TopicPath("a/b"), 1_700_000_000_123
    notification = Notification(
        f"n{number}",
        topic,
        b"<x/>",
        accepted_ms,
        publisher="me",
        priority=-5,
        cause="n0",
        hops=2,
        path=("G/a", "H/b"),
        distribution="group",
    )
    return Logged(value or notifications.encode(notification)[1], 3, number, 1_700_000_000_125)


def test_notification_becomes_a_row_with_every_column() -> None:
    (row,) = notification_rows([archived(7)], recorded_ms=1_700_000_001_000).to_pylist()

    assert row == {
        "day": date(2023, 11, 14),
        "notification": "n7",
        "topic": "a/b",
        "accepted_at": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "logged_at": datetime(2023, 11, 14, 22, 13, 20, 125_000, UTC),
        "recorded_at": datetime(2023, 11, 14, 22, 13, 21, 0, UTC),
        "partition": 3,
        "offset": 7,
        "publisher": "me",
        "message_id": "",
        "only": "",
        "payload_bytes": 4,
        "payload": b"<x/>",
        "producer": b"",
        "traceparent": "",
        "control": -1,
        "priority": -5,
        "cause": "n0",
        "hops": 2,
        "path": "G/a H/b",
        "distribution": "group",
        "erased": None,
    }


def test_a_notification_that_an_erasure_covers_has_a_row_without_its_payload() -> None:
    (row,) = notification_rows([archived(7)], 0, lambda notification: f"e-{notification.id}").to_pylist()
    assert (row["payload"], row["producer"], row["payload_bytes"], row["erased"]) == (b"", b"", 4, "e-n7")


def test_what_nobody_can_read_is_not_archived() -> None:
    rows = notification_rows([archived(1), archived(2, b"junk"), archived(3)], 0)

    assert rows.column("notification").to_pylist() == ["n1", "n3"]


def test_every_column_is_described_and_stored_so(tmp_path: Path) -> None:
    for spec in TABLES:
        stored = spec.ensure(str(tmp_path / spec.name)).schema().fields
        assert [field.name for field in stored] == [column.name for column in spec.columns]
        assert all(len(str(field.metadata["comment"])) > 10 for field in stored)
        named = {*spec.partition_by, *filter(None, (spec.key, spec.time))}
        assert named <= {field.name for field in stored}


@pytest.mark.parametrize("lost", [False, True])
def test_table_with_other_columns_is_refused(tmp_path: Path, lost: bool) -> None:
    location = str(tmp_path / "notifications")
    changed = [
        dataclasses.replace(column, type="string") if column.name == "offset" else column
        for column in NOTIFICATIONS.columns
        if not lost or column.name != "offset"
    ]
    other = dataclasses.replace(NOTIFICATIONS, columns=tuple(changed))
    other.ensure(location)

    found = "no column offset" if lost else "a column offset of type"
    with pytest.raises(InfrastructureError, match=f"has {found}.* move the table away"):
        NOTIFICATIONS.ensure(location)
    assert DeltaTable(location).schema() == other.schema()
