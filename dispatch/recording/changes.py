"""What a stretch of a log comes to for a table of states: one change per row. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from dispatch.recording.held import OPERATION
from dispatch.tables import TableSpec

Row = Mapping[str, object]


class Changes:
    """Gathers changes in the order of the log; of several for a key, what they come to is kept."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._changes: dict[str, tuple[str, dict[str, object]]] = {}

    def __len__(self) -> int:
        return len(self._changes)

    def get(self, key: str, column: str) -> object:
        """What a column of a row is changed to, None when it is not changed."""
        return self._changes.get(key, ("", {}))[1].get(column)

    def put(self, key: str, row: Row) -> None:
        """The row is this from now on."""
        self._changes[key] = ("put", dict(row))

    def add(self, key: str, row: Row) -> None:
        """The row is this unless there is one already."""
        operation, known = self._changes.get(key, ("", {}))
        if operation in ("", "patch"):
            self._changes[key] = ("add", {**row, **known})
        elif operation == "drop":
            self.put(key, row)

    def patch(self, key: str, columns: Row) -> None:
        """These columns of the row, if it is there, are different from now on."""
        operation, known = self._changes.get(key, ("patch", {}))
        if operation != "drop":
            self._changes[key] = (operation, {**known, **columns})

    def drop(self, key: str) -> None:
        """There is no such row any more."""
        self._changes[key] = ("drop", {})

    def arrow(self) -> pa.Table:
        """The changes as `HeldTable.merge` wants them."""
        key = self._spec.key
        rows = [{**row, key: name, OPERATION: operation} for name, (operation, row) in self._changes.items()]
        fields = [pa.field(each.name, each.type) for each in self._spec.arrow_schema()]
        return pa.Table.from_pylist(rows, schema=pa.schema([*fields, pa.field(OPERATION, pa.string())]))
