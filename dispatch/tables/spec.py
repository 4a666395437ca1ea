"""The description of a Delta table: columns with meaning and unit, and its location."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable, Field, QueryBuilder, Schema
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from arborcast.core.errors import InfrastructureError
from arborcast.core.wall_clock import CLOCKS_APART_MS
from arborcast.dispatch.settings import TableSettings

if TYPE_CHECKING:
    # `rows_with` does not need it: loading takes several times as long as a look-up.
    import pyarrow as pa
    import pyarrow.dataset as ds
    from arro3.core import Table


class Location(str):
    """The path or URL, as text; its repr does not contain the options."""

    options: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def of(cls, path: str, options: Mapping[str, str]) -> Location:
        made = cls(path)
        made.options = MappingProxyType(dict(options))
        return made


def options_of(location: str) -> dict[str, str]:
    """The storage options; none for a path."""
    return dict(location.options) if isinstance(location, Location) else {}


def table_exists(location: str) -> bool:
    return DeltaTable.is_deltatable(location, storage_options=options_of(location))


def open_table(location: str) -> DeltaTable:
    return DeltaTable(location, storage_options=options_of(location))


# A checkpoint of the Delta log every 100 commits: with one commit per 5 s every 8 minutes. Only older versions need the
# earlier commits. Checkpoints also list the files removed within a day; by default within a week: 100,000 of a table.
_PROPERTIES: Mapping[str, str] = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 24 hours",
    "delta.deletedFileRetentionDuration": "interval 24 hours",
}


@dataclass(frozen=True)
class Column:
    """One column. `type` is a Delta primitive type; `optional` ones may be null."""

    name: str
    type: str
    help: str
    unit: str = ""
    optional: bool = False

    @property
    def comment(self) -> str:
        """Description with its unit, as stored in the table itself."""
        return f"{self.help} [{self.unit}]" if self.unit else self.help

    def as_field(self) -> Field:
        return Field(self.name, PrimitiveType(self.type), nullable=self.optional, metadata={"comment": self.comment})


@dataclass(frozen=True)
class TableSpec:
    """One table. `time` is the column for periods; with `partition_by` its day. `key` is the column that identifies a
    row, in tables with changing rows. `merged`: rows of this one may change, too."""

    name: str
    help: str
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = ()
    time: str = ""
    key: str = ""
    merged: bool = False

    def location(self, settings: TableSettings, home: Path) -> Location:
        """The table's location: below `tables.path`, or below the data directory if that is not set."""
        root = settings.path.rstrip("/") or str((home / "tables").absolute())
        return Location.of(f"{root}/{self.name}", settings.storage())

    def schema(self) -> Schema:
        return Schema([column.as_field() for column in self.columns])

    def arrow_schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(each.remove_metadata() for each in pa.schema(self.schema().to_arrow()))

    def arrow(self, rows: Sequence[Mapping[str, object]]) -> pa.Table:
        """These rows as an Arrow table; missing values are null."""
        import pyarrow as pa

        return pa.Table.from_pylist(rows, schema=self.arrow_schema())

    def dataset(self, table: DeltaTable, files: str | None = None) -> ds.Dataset:
        """The table for pyarrow, and readers of its datasets (DuckDB); with `files` only the files that may have rows
        of this SQL condition.

        In files of a merge or a delete, delta-rs stores texts as "views", which pyarrow cannot compare (nor DuckDB,
        which uses pyarrow for it). Read as dictionaries they can be compared, but pyarrow then excludes no file by
        the texts' bounds.
        """
        if not (self.merged or self.key):
            return table.to_pyarrow_dataset(file_pruning_predicate=files)
        import pyarrow as pa
        import pyarrow.dataset as ds

        schema = pa.schema(table.schema().to_arrow())
        texts = [each.name for each in schema if pa.types.is_string(each.type) and each.name not in self.partition_by]
        options = ds.ParquetReadOptions(dictionary_columns=texts)
        return table.to_pyarrow_dataset(schema=schema, parquet_read_options=options, file_pruning_predicate=files)

    def read(
        self,
        table: DeltaTable,
        columns: Sequence[str] | None = None,
        where: ds.Expression | None = None,
        files: str | None = None,
    ) -> pa.Table:
        """Rows as an Arrow table. Without `files` (see `dataset`) a table of a year takes seconds to open."""
        import pyarrow as pa

        scanned = list(columns) if columns else None
        found = self.dataset(table, files).scanner(columns=scanned, filter=where, batch_readahead=1)
        plain = pa.schema(
            each.with_type(each.type.value_type) if pa.types.is_dictionary(each.type) else each
            for each in found.projected_schema
        )
        # Each batch by itself: the dictionary of a few rows has all texts of their file.
        return pa.Table.from_batches([each.cast(plain) for each in found.to_batches() if each.num_rows], plain)

    def ensure(self, location: str) -> DeltaTable:
        """The table, created if missing, with missing optional columns added. Raises InfrastructureError if it lacks
        another column of this name and type."""
        table = DeltaTable.create(
            location,
            self.schema(),
            mode="ignore",
            partition_by=list(self.partition_by),
            name=self.name,
            description=self.help,
            configuration=dict(_PROPERTIES),
            storage_options=options_of(location),
        )
        existing = {each.name: each.type for each in table.schema().fields}
        added = [each.as_field() for each in self.columns if each.optional and each.name not in existing]
        if added:
            table.alter.add_columns(added)
            existing |= {each.name: each.type for each in added}
        for column in self.columns:
            found = existing.get(column.name)
            if found != PrimitiveType(column.type):
                which = f"no column {column.name}" if found is None else f"a column {column.name} of type {found}"
                raise InfrastructureError(
                    f"the table at {location} has {which}, this Arborcast writes {column.name} as {column.type}: "
                    "move the table away, it is built again from the logs"
                )
        return table


Row = dict[str, Any]
"""A row as plain Python values, by column."""

_QUERY = "SELECT * FROM data WHERE {}"


def rows_with(table: DeltaTable, column: str, values: Collection[str]) -> list[Row]:
    """The rows with one of these texts in the column. Files without such rows are not opened. Raises DeltaError if one
    cannot be read."""
    if not values:
        return []
    found = queried(table, _QUERY.format(one_of(column, values)))
    columns = [found.column(name).to_pylist() for name in found.column_names]
    return [dict(zip(found.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


# With a list of some ten thousand texts, DataFusion overflows its stack, which ends the process.
_TEXTS_PER_LIST = 200


def one_of(column: str, values: Collection[str]) -> str:
    """The SQL condition that the column has one of these texts, at least one."""
    texts = sorted(values)
    lists = [texts[first : first + _TEXTS_PER_LIST] for first in range(0, len(texts), _TEXTS_PER_LIST)]
    # Ranges, which DataFusion does not join to a single list again; a tree, for the depth of its recursion.
    conditions = [
        f'("{column}" BETWEEN {quoted(some[0])} AND {quoted(some[-1])} '
        f'AND "{column}" IN ({", ".join(map(quoted, some))}))'
        for some in lists
    ]
    while len(conditions) > 1:
        conditions = [f"({' OR '.join(conditions[at : at + 2])})" for at in range(0, len(conditions), 2)]
    return conditions[0]


def queried(table: DeltaTable, sql: str) -> Table:
    """The result of a query in SQL, in which the table has the name `data`. Raises DeltaError if a file cannot be
    read."""
    try:
        return QueryBuilder().register("data", table).execute(sql).read_all()
    except Exception as error:
        # Readers raise any Exception for a damaged file.
        raise DeltaError("one of its files is damaged, or was removed during the query") from error


def quoted(text: str) -> str:
    """The text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def newest(table: DeltaTable, column: str) -> datetime | None:
    """The latest time of a column, from its files' statistics; None without any. Times in the future, of a clock that
    was ahead, count only if there are no others."""
    files = table.get_add_actions(flatten=True)
    name = f"max.{column}"
    if name not in files.column_names:
        return None
    times: list[datetime] = [each for each in files.column(name).to_pylist() if each is not None]
    until = datetime.now(UTC) + timedelta(milliseconds=CLOCKS_APART_MS)
    return max((each for each in times if each <= until), default=max(times, default=None))
