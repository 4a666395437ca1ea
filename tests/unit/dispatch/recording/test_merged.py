"""Tables that were merged into, read with conditions: what delta-rs writes then pyarrow reads only with help."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from arborcast.dispatch.recording.state_tables import RowChanges
from arborcast.dispatch.recording.upkeep import Upkeep
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.tables import DEAD_LETTERS, RETRIES, SUBSCRIPTIONS, TOPICS
from arborcast.dispatch.tables.delta_table import DeltaTableWriter
from arborcast.dispatch.tables.spec import TableSpec
from tests.support.table_rows import fill


@pytest.mark.parametrize("spec", [TOPICS, SUBSCRIPTIONS, RETRIES, DEAD_LETTERS], ids=lambda spec: spec.name)
def test_rows_of_a_merged_table_are_found_by_their_texts(tmp_path: Path, spec: TableSpec) -> None:
    """Before anything is joined, and after."""
    fill(tmp_path, spec, [{spec.key: f"k{number}"} for number in range(3)])
    location = spec.location(TableSettings(), tmp_path)
    table = DeltaTableWriter(spec, location)
    rows = {each[spec.key]: each for each in DeltaTable(location).to_pyarrow_table().to_pylist()}
    for number in range(1, 10):
        changes = RowChanges(spec)
        changes.put(f"k{number}", {**rows["k0"], spec.key: f"k{number}"})
        table.merge(changes.arrow(), {"w": number})
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
