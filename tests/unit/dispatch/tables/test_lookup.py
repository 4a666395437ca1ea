"""Rows by key come out as pyarrow would have them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from arborcast.dispatch.logs import attempts
from arborcast.dispatch.operations.trace.gathering import attempt_rows
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.tables import ATTEMPTS
from arborcast.dispatch.tables.delta_table import rows_of
from arborcast.dispatch.tables.spec import newest, open_table, rows_with
from tests.support.table_rows import NOON, attempt, record

pytestmark = pytest.mark.slow

ROWS = [
    attempt("n1", "good", "delivered", 40),
    attempt("n1", "bad", "parked", 61, next_ms=1_767_355_200_123, error="server-error", detail="HTTP 503"),
    attempt("n2", "it's", "delivered", 62, response=b"\xff\x00"),
]


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    record(tmp_path, *ROWS)
    return open_table(ATTEMPTS.location(TableSettings(), tmp_path))


def test_rows_are_those_that_pyarrow_finds(table: DeltaTable) -> None:
    names: list[list[str]] = [["n1"], ["n1", "n2"], ["' OR 1 = 1 --"], ["N1"], []]
    for column, values in (*(("notification", each) for each in names), ("subscription", ["it's"])):
        expected = ATTEMPTS.read(table, where=ds.field(column).isin(values)).to_pylist() if values else []
        found = rows_with(table, column, values)
        assert sorted(found, key=lambda row: row["push"]) == sorted(expected, key=lambda row: row["push"])
    assert list(attempt_rows(ROWS)) == rows_of(attempts.encode(ROWS)).to_pylist(), "rows of the log are alike"


def test_the_newest_row_and_a_damaged_file(table: DeltaTable) -> None:
    assert newest(table, ATTEMPTS.time) == NOON + timedelta(milliseconds=62)
    assert newest(table, "detail of nothing") is None
    for file in Path(table.table_uri.removeprefix("file://")).rglob("*.parquet"):
        file.write_bytes(b"nothing")
    with pytest.raises(DeltaError, match="damaged"):
        rows_with(table, "notification", ["n1"])
