"""Tables that a newer version has made, after a rollback; and how long each table is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.recording.attempts_tables import EndedDeliveries
from arborcast.dispatch.recording.recording import Recording
from arborcast.dispatch.recording.state_tables import RowChanges
from arborcast.dispatch.recording.upkeep import Upkeep
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.spark.query_supervisor import StopGate
from arborcast.dispatch.tables import (
    ATTEMPTS,
    DELIVERIES,
    ENDPOINT_HEALTH,
    INCOMPLETE,
    NOTIFICATIONS,
    ROUTES,
    SUBSCRIPTIONS,
    TABLES,
)
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, rows_of
from arborcast.dispatch.tables.spec import Column, TableSpec
from tests.support.table_rows import attempt, fill, record

pytestmark = pytest.mark.slow

NAMES = [spec.name for spec in TABLES]
NEUTRAL: Mapping[str, object] = {
    "string": "",
    "long": 0,
    "integer": 0,
    "double": 0.0,
    "boolean": False,
    "binary": b"",
    "date": date(2026, 1, 2),
    "timestamp": datetime(2026, 1, 2, tzinfo=UTC),
}


def row(spec: TableSpec, name: str) -> dict[str, object]:
    """A row that can be told by its name, which is its key where the table has one."""
    made = {column.name: None if column.optional else NEUTRAL[column.type] for column in spec.columns}
    return {**made, name_of(spec): name}


def name_of(spec: TableSpec) -> str:
    return spec.key or next(column.name for column in spec.columns if column.type == "string")


def write(spec: TableSpec, location: str, *names: str, batch: int = 0) -> None:
    """As this version does: states are merged, events appended, the snapshot of routes replaced."""
    table = DeltaTableWriter(spec, location)
    rows = [row(spec, name) for name in names]
    if spec.key:
        changes = RowChanges(spec)
        for name, each in zip(names, rows, strict=True):
            changes.put(name, each)
        table.merge(changes.arrow(), {"w": batch})
    elif spec is ROUTES:
        table.replace(spec.arrow(rows), {"w": batch})
    else:
        table.append(spec.arrow(rows), "w", batch)


def found(spec: TableSpec, location: str, column: str) -> dict[object, object]:
    rows = DeltaTable(location).to_pyarrow_table().to_pylist()
    return {each[name_of(spec)]: each[column] for each in rows}


@pytest.mark.parametrize("optional", [True, False], ids=["may be null", "may not be null"])
@pytest.mark.parametrize("name", NAMES)
def test_a_table_of_a_newer_version_is_written_after_a_rollback(tmp_path: Path, name: str, optional: bool) -> None:
    (spec,) = (each for each in TABLES if each.name == name)
    location = str(tmp_path)
    mood = Column("mood", "string", "Something of the future.", optional=optional)
    level = Column("level", "long", "Something else of it.", optional=optional)
    newer = dataclasses.replace(spec, columns=(*spec.columns[:-1], mood, spec.columns[-1], level))
    for number in range(8):
        each = {**row(newer, f"newer {number}"), "mood": "good", "level": 7}
        DeltaTableWriter(newer, location).append(newer.arrow([each]), "w", number)

    write(spec, location, "ours", batch=8)
    Upkeep(spec, location).step()

    ours = None if optional else ""
    expected: dict[object, object] = {"ours": ours}
    if spec is not ROUTES:
        expected |= {f"newer {number}": "good" for number in range(8)}
    assert found(spec, location, "mood") == expected
    assert len(DeltaTable(location).file_uris()) == 1, "small files are joined"
    # The newer version comes back.
    DeltaTableWriter(newer, location).append(
        newer.arrow([{**row(newer, "again"), "mood": "better", "level": 8}]), "w", 9
    )
    assert found(spec, location, "mood") == expected | {"again": "better"}


def test_a_delivery_that_ends_again_is_overwritten_in_a_table_of_a_newer_version(tmp_path: Path) -> None:
    location = DELIVERIES.location(TableSettings(), tmp_path)
    mood = Column("mood", "string", "Something of the future.")
    newer = dataclasses.replace(DELIVERIES, columns=(*DELIVERIES.columns, mood))
    newer.ensure(location)
    record(tmp_path, attempt("n", "s", "dead", batch=1))
    again = rows_of(attempts.encode([attempt("n", "s", "delivered", 99, number=2, batch=-1)]))
    EndedDeliveries(location).append(again, {})

    assert [(each["state"], each["attempts"]) for each in DeltaTable(location).to_pyarrow_table().to_pylist()] == [
        ("delivered", 2)
    ]


def test_each_table_is_kept_for_as_long_as_its_own_setting_says(tmp_path: Path) -> None:
    days = ((NOTIFICATIONS, 1), (ATTEMPTS, 2), (DELIVERIES, 2), (ENDPOINT_HEALTH, 5))
    settings = TableSettings(notifications_days=1, deliveries_days=2, history_days=5)
    now = datetime.now(UTC)
    past = [now - timedelta(days=age, minutes=1) for age in range(8)]
    for spec, _ in days:
        fill(tmp_path, spec, [{"day": at.date(), spec.time: at} for at in past])
    ended = [{"subscription": f"ended {age}", "state": "ended", "ended_at": at} for age, at in enumerate(past)]
    fill(tmp_path, SUBSCRIPTIONS, [*ended, {"subscription": "active", "state": "active"}])
    fill(tmp_path, INCOMPLETE, [{"message": str(age), "given_up_at": at} for age, at in enumerate(past)])
    recording = Recording(
        KafkaSettings(),
        settings,
        tmp_path,
        StopGate(),
        health=dict,
        control_position=lambda: 0,
        routes=lambda limit: [],
        recorded=lambda rows: None,
    )

    for recorder in recording._recorders:
        for each in recorder._works:
            if isinstance(each.work, Upkeep):
                each.work.step()

    for spec, kept in days:
        rows = DeltaTable(spec.location(settings, tmp_path)).to_pyarrow_table().to_pylist()
        # Whole days go.
        assert min(each["day"] for each in rows) == (now - timedelta(days=kept)).date(), spec.name
    left = DeltaTable(SUBSCRIPTIONS.location(settings, tmp_path)).to_pyarrow_table()["subscription"].to_pylist()
    assert sorted(left) == ["active", *(f"ended {age}" for age in range(5))]
    left = DeltaTable(INCOMPLETE.location(settings, tmp_path)).to_pyarrow_table()["message"].to_pylist()
    assert sorted(left) == [str(age) for age in range(5)]
