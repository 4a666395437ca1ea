"""The lines of docs/tables.md that read the tables, over tables whose answers are known. Spark's are run by
tests/integration/dispatch/test_tables.py."""

from __future__ import annotations

import ast
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import arborcast.analysis
from arborcast.cli.reference import EXAMPLES
from arborcast.dispatch.recording.state_tables import RowChanges
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.tables import TABLES, TOPICS
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from tests.support.table_rows import attempt, fill, neutral, record

EXPECTED = {"delivered": 3, "parked": 2, "dead": 1}

without_duckdb = pytest.mark.skipif(find_spec("duckdb") is None, reason="duckdb is not installed")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine's data directory where the commands look for one: below the current folder."""
    now_ms = int(time.time() * 1000)
    made = [
        attempt(f"n{number}", "s", state, accepted_ms=now_ms, started_ms=now_ms)
        for state, count in EXPECTED.items()
        for number in range(count)
    ]
    home = tmp_path / ".arborcast"
    record(home, *made)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arborcast.analysis.tables, "_settings", None)
    return home


def result_of(code: str) -> Any:
    """What the last expression comes to, as in a notebook."""
    tree = ast.parse(code)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    names: dict[str, Any] = {}
    exec(compile(tree, "docs/tables.md", "exec"), names)  # noqa: S102  # the very lines of the documentation
    return eval(compile(ast.Expression(last.value), "docs/tables.md", "eval"), names)  # noqa: S307


def by_state(result: Any) -> dict[str, int]:
    if isinstance(result, pd.Series):
        return dict(result)
    frame = result if isinstance(result, pd.DataFrame) else pa.table(result).to_pandas()
    if len(frame.columns) > 2:
        return dict(frame.groupby("state").size())
    return dict(zip(*(frame[column] for column in frame.columns), strict=True))


@pytest.mark.parametrize(
    "title",
    [
        pytest.param(title, marks=[without_duckdb] if "DuckDB" in title else [])
        for title in EXAMPLES
        if "Spark" not in title
    ],
)
def test_an_example_of_the_documentation(home: Path, title: str) -> None:
    assert by_state(result_of(EXAMPLES[title])) == EXPECTED


@without_duckdb
def test_duckdb_reads_every_type_of_column_and_merged_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times with their zone, bytes, days and nulls; rows that a merge has written, found by their texts."""
    import duckdb
    from deltalake import DeltaTable

    for spec in TABLES:
        fill(tmp_path, spec, [{}])
        there = DeltaTable(spec.location(TableSettings(), tmp_path)).to_pyarrow_dataset()
        answer = duckdb.sql("select * from there")
        assert answer is not None
        found = pa.table(answer.arrow())
        expected = spec.arrow_schema()
        assert found.column_names == expected.names
        assert found.cast(expected).equals(there.to_table().cast(expected))

    changes = RowChanges(TOPICS)
    changes.put("b", neutral(TOPICS, topic="b"))
    DeltaTableWriter(TOPICS, TOPICS.location(TableSettings(), tmp_path)).merge(changes.arrow(), {"w": 1})
    monkeypatch.setenv("ARBORCAST_HOME", str(tmp_path))
    topics = arborcast.analysis.Tables().topics.dataset()  # noqa: F841  # named in the query
    answer = duckdb.sql("select topic from topics where topic >= 'b' and topic in ('b', 'c')")
    assert answer is not None
    assert answer.fetchall() == [("b",)]
