"""Tables of a newer version after a rollback, merged tables, and the retention of each table."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.recording.attempts_tables import EndedDeliveries
from arborcast.dispatch.recording.recording import Recording
from arborcast.dispatch.recording.upkeep import Upkeep
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.spark.query_supervisor import StopGate
from arborcast.dispatch.tables import (
    ATTEMPTS,
    DEAD_LETTERS,
    DELIVERIES,
    ENDPOINT_HEALTH,
    INCOMPLETE,
    NOTIFICATIONS,
    ROUTES,
    SLO,
    SUBSCRIPTIONS,
)
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, rows_of
from arborcast.dispatch.tables.spec import Column, TableSpec
from tests.support.table_rows import attempt, fill, neutral, read, record

pytestmark = pytest.mark.slow


def name_of(spec: TableSpec) -> str:
    """The column that identifies a row: the key if the table has one."""
    return spec.key or next(column.name for column in spec.columns if column.type == "string")


def write(spec: TableSpec, location: str, name: str, batch: int) -> None:
    """With the operation of this version: states are merged, events appended, the snapshot of routes replaced."""
    table, row = DeltaTableWriter(spec, location), neutral(spec, **{name_of(spec): name})
    if spec.key:
        table.change([name], lambda _: [row], {"w": batch})
    elif spec is ROUTES:
        table.replace(spec.arrow([row]), {"w": batch})
    else:
        table.extend(spec.arrow([row]), {"w": batch})


# For each operation of `write`, and each type of columns.
@pytest.mark.parametrize("spec", [NOTIFICATIONS, SLO, SUBSCRIPTIONS, ROUTES], ids=lambda spec: spec.name)
def test_a_table_of_a_newer_version_is_written_after_a_rollback(tmp_path: Path, spec: TableSpec) -> None:
    location, key = str(tmp_path), name_of(spec)
    mood = Column("mood", "string", "A column of a newer version.", optional=True)
    level = Column("level", "long", "Another column of it.")
    newer = dataclasses.replace(spec, columns=(*spec.columns[:-1], mood, spec.columns[-1], level))
    for number in range(8):
        row = neutral(newer, **{key: f"newer {number}"}, mood="good", level=7)
        DeltaTableWriter(newer, location).extend(newer.arrow([row]), {"w": number})

    write(spec, location, "this version", batch=8)
    Upkeep(spec, location).step()

    expected: list[tuple[str, str | None, int]] = [("this version", None, 0)]
    if spec is not ROUTES:
        expected = [*((f"newer {number}", "good", 7) for number in range(8)), *expected]
    assert read(location, key, "mood", "level") == expected
    assert len(DeltaTable(location).file_uris()) == 1, "small files are joined"
    # The upgrade is repeated.
    row = neutral(newer, **{key: "upgraded"}, mood="better", level=8)
    DeltaTableWriter(newer, location).extend(newer.arrow([row]), {"w": 9})
    assert read(location, key, "mood", "level") == [*expected, ("upgraded", "better", 8)]


@pytest.mark.parametrize("spec", [SUBSCRIPTIONS, DEAD_LETTERS], ids=lambda spec: spec.name)
def test_filters_by_text_on_merged_tables(tmp_path: Path, spec: TableSpec) -> None:
    """Before and after files are joined: pyarrow cannot read the string views of delta-rs by itself."""
    location = spec.location(TableSettings(), tmp_path)
    table = DeltaTableWriter(spec, location)
    for number in range(10):
        rows = [neutral(spec, **{spec.key: name}) for name in (f"k{number}", f"old {number}")]
        table.extend(spec.arrow(rows), {"w": number})
    DeltaTable(location).delete(f"{spec.key} like 'old %'")
    assert any("view" in str(pq.ParquetFile(file).schema_arrow) for file in DeltaTable(location).file_uris())

    def found(where: ds.Expression) -> list[object]:
        keys: list[object] = spec.read(DeltaTable(location), [spec.key], where)[spec.key].to_pylist()
        return keys

    key = ds.field(spec.key)
    for _ in range(2):
        assert found(key == "k2") == ["k2"]
        assert sorted(map(str, found((key >= "k1") & key.isin(["k0", "k1", "k9"])))) == ["k1", "k9"]
        whole = spec.read(DeltaTable(location))
        assert whole.num_rows == 10
        assert whole.schema.types == spec.arrow_schema().types
        Upkeep(spec, location).step()


def test_an_ended_delivery_is_overwritten_in_a_newer_table(tmp_path: Path) -> None:
    location = DELIVERIES.location(TableSettings(), tmp_path)
    mood = Column("mood", "string", "A column of a newer version.")
    newer = dataclasses.replace(DELIVERIES, columns=(*DELIVERIES.columns, mood))
    newer.ensure(location)
    record(tmp_path, attempt("n", "s", "dead", batch=1))
    again = rows_of([attempts.encode(attempt("n", "s", "delivered", 99, number=2, batch=-1))])
    EndedDeliveries(location).append(again, {})

    assert read(location, "state", "attempts") == [("delivered", 2)]


def test_retention_of_each_table(tmp_path: Path) -> None:
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
        for each in recorder.works:
            if isinstance(each.work, Upkeep):
                each.work.step()

    def left(spec: TableSpec, column: str) -> list[Any]:
        return [value for (value,) in read(spec.location(settings, tmp_path), column)]

    for spec, kept in days:
        assert min(left(spec, "day")) == (now - timedelta(days=kept)).date(), "whole days are removed"
    assert left(SUBSCRIPTIONS, "subscription") == ["active", *(f"ended {age}" for age in range(5))]
    assert left(INCOMPLETE, "message") == [str(age) for age in range(5)]
