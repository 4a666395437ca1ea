"""Tables that were merged into, read with conditions: what delta-rs writes then pyarrow reads only with help."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from arborcast.dispatch.logs import attempts
from arborcast.dispatch.recording.attempts_tables import EndedDeliveries
from arborcast.dispatch.recording.state_tables import RowChanges
from arborcast.dispatch.recording.upkeep import Upkeep
from arborcast.dispatch.settings import TableSettings
from arborcast.dispatch.tables import DEAD_LETTERS, DELIVERIES, RETRIES, SUBSCRIPTIONS, TOPICS
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, rows_of
from arborcast.dispatch.tables.spec import TableSpec
from tests.support.table_rows import attempt, fill, record


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


def test_delivery_that_ended_again_does_not_stand_in_the_way_of_the_next(tmp_path: Path) -> None:
    """A dead letter that was sent again is merged into the table; then others of that time come."""
    record(tmp_path, *(attempt(f"n{number}", "s", "dead", batch=1) for number in range(3)))
    deliveries = EndedDeliveries(DELIVERIES.location(TableSettings(), tmp_path))
    for number in range(3):
        again = attempt(f"n{number}", "s", "delivered", 99, number=2, batch=-1)
        deliveries.append(rows_of(attempts.encode([again])), {})

    rows = DeltaTable(DELIVERIES.location(TableSettings(), tmp_path)).to_pyarrow_table().to_pylist()
    assert sorted((row["notification"], row["state"]) for row in rows) == [
        (f"n{number}", "delivered") for number in range(3)
    ]
