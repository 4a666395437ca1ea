"""One Delta table, kept open by its only writer: reading its state for each commit would cost more as the history
grows."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from arborcast.core.errors import InfrastructureError
from arborcast.dispatch.logs import attempts
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.tables import ATTEMPTS
from arborcast.dispatch.tables.repair import repair_table
from arborcast.dispatch.tables.spec import Row, TableSpec, one_of, rows_with

_DAY_MS = 86_400_000

Record = TypeVar("Record")

Build = Callable[[Sequence[Record]], pa.Array]


def times(milliseconds: Iterable[int | None]) -> pa.Array:
    """Milliseconds since the epoch as timestamps; None stays null."""
    return pc.multiply(pa.array(milliseconds, pa.int64()), 1000).cast(pa.timestamp("us", tz="UTC"))


def days(milliseconds: Iterable[int]) -> pa.Array:
    """The days (UTC) of milliseconds since the epoch."""
    return pa.array([each // _DAY_MS for each in milliseconds], pa.int32()).cast(pa.date32())


def build(spec: TableSpec, records: Sequence[Record], special: Mapping[str, Build[Record]]) -> pa.Table:
    """The table's rows: columns that are not in `special` are the records' attributes of the same name."""
    schema = spec.arrow_schema()
    columns = [
        special[each.name](records).cast(each.type)
        if each.name in special
        else pa.array([getattr(record, each.name) for record in records], type=each.type)
        for each in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def rows_of(values: Iterable[bytes]) -> pa.Table:
    """Rows of `attempts` for the values of Kafka records, in order. A damaged record is logged and skipped. Raises
    RecordVersionError."""
    return build(ATTEMPTS, [attempt for value in values for attempt in attempts.readable(value).attempts], _ATTEMPT)


_ATTEMPT: Mapping[str, Build[Attempt]] = {
    "day": lambda them: days(each.started_ms for each in them),
    "accepted_at": lambda them: times(each.accepted_ms for each in them),
    "started_at": lambda them: times(each.started_ms for each in them),
    "next_at": lambda them: times(each.next_ms or None for each in them),
}

# A third of the size of the default (snappy) for ids and XML, at no measurable cost.
WRITER = WriterProperties(compression="ZSTD", compression_level=1)

# Maximum number of tries: upkeep may commit in between, once for each day with small files.
_MOST_TRIES = 5

# Neutral values by type; for others an empty byte string.
_NEUTRAL: Sequence[tuple[Callable[[pa.DataType], bool], object]] = (
    (pa.types.is_temporal, datetime(1970, 1, 1, tzinfo=UTC)),
    (pa.types.is_boolean, False),
    (pa.types.is_integer, 0),
    (pa.types.is_floating, 0.0),
    (pa.types.is_string, ""),
    (pa.types.is_large_string, ""),
    (pa.types.is_string_view, ""),
)

COMMIT_TURNS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""By location of a table, the lock of a writer of this process while it commits."""

REWRITE_TURNS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""By location of a table, the lock of a thread of this process while it rewrites or joins rows: of two such commits one
fails."""


class DeltaTableWriter:
    """Each write is one commit, with the writer's position (a Delta application transaction), so a restarted writer
    can distinguish stored records from missing ones."""

    def __init__(self, spec: TableSpec, location: str) -> None:
        self.spec = spec
        self.location = location
        self._table: DeltaTable | None = None

    def open(self) -> DeltaTable:
        """The table in its last known state, created if missing, and repaired after a crash.

        Raises InfrastructureError if it cannot be read.
        """
        if self._table is None:
            try:
                repair_table(self.spec, self.location)
                self._table = self.spec.ensure(self.location)
            except DeltaError as error:
                raise InfrastructureError(
                    f"the table at {self.location} cannot be opened: {str(error).splitlines()[0]}. If it is damaged, "
                    "move it away, and it is rebuilt from its log"
                ) from error
        return self._table

    def reopen(self) -> None:
        """Read the table's state again before the next use."""
        self._table = None

    def progress(self, writer: str) -> int | None:
        """The position of this writer, None before its first write."""
        return self.open().transaction_version(writer)

    def positions(self, log: str) -> dict[int, int]:
        """The stored positions of a log: by partition the next offset. Empty without any."""
        return positions_in(self.open(), log)

    def extend(self, rows: pa.Table, progress: Mapping[str, int]) -> None:
        """Append new rows, possibly none: the writer has read its progress since its start."""
        self._write(lambda table: append(table, _aligned(rows, table), progress))

    def replace(self, rows: pa.Table, progress: Mapping[str, int], where: str | None = None) -> None:
        """Replace all rows, or those that fulfil a condition, by these."""
        self._write(lambda table: _overwrite(table, _aligned(rows, table), progress, where))

    def overwrite(self, rows: pa.Table, match: str) -> None:
        """Replace matching rows, by a condition on `t` (the table) and `s` (the row). Rows without a match have no
        effect. Idempotent."""

        def merge(table: DeltaTable) -> None:
            merger = table.merge(rows, match, source_alias="s", target_alias="t", writer_properties=WRITER)
            merger.when_matched_update(_assigned(rows.column_names)).execute()

        self._write(merge)

    def change(
        self,
        keys: Collection[str],
        changed: Callable[[Mapping[str, Row]], Iterable[Row]],
        progress: Mapping[str, int],
    ) -> None:
        """Replace the rows with these keys by those that `changed` returns for the existing ones, by key. Idempotent if
        `changed` is. Rewrites only the files with rows that differ; a merge of delta-rs would have the whole table in
        memory."""
        key = self.spec.key

        def replace(table: DeltaTable) -> None:
            existing = {row[key]: row for row in rows_with(table, key, keys)}
            found = {row[key]: row for row in changed(existing)}
            new = {name: row for name, row in found.items() if existing.get(name) != row}
            removed = [name for name in existing if name not in found or name in new]
            rows = self._rows(new.values(), table)
            if removed:
                _overwrite(table, rows, progress, one_of(key, {*new, *removed}))
            else:
                append(table, rows, progress)

        self._write(replace)

    def _rows(self, rows: Iterable[Row], table: DeltaTable) -> pa.Table:
        """The rows for the table, which may have columns of a newer version."""
        schema, names = pa.schema(table.schema().to_arrow()), {each.name for each in self.spec.columns}
        defaults = {each.name: _neutral(each, 1)[0].as_py() for each in schema if each.name not in names}
        return pa.Table.from_pylist([defaults | row for row in rows], schema=schema)

    def _write(self, write: Callable[[DeltaTable], None]) -> None:
        """Write, and repeat a write that was refused because upkeep has committed concurrently; a refresh costs a
        millisecond."""
        for tries_left in range(_MOST_TRIES, 0, -1):
            try:
                with COMMIT_TURNS[self.location]:
                    table = self.open()
                    table.update_incremental()
                    write(table)
                return
            except CommitFailedError:
                if tries_left == 1:
                    raise
                self.reopen()


def positions_in(table: DeltaTable, log: str) -> dict[int, int]:
    """As `DeltaTableWriter.positions`."""
    known: dict[int, int] = {}
    while (offset := table.transaction_version(f"{log}-{len(known)}")) is not None:
        known[len(known)] = offset
    return known


def as_progress(log: str, positions: Mapping[int, int]) -> dict[str, int]:
    """Positions in a log in the form of a commit; see `DeltaTableWriter.positions`."""
    return {f"{log}-{partition}": offset for partition, offset in positions.items()}


def _commit(progress: Mapping[str, int]) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(writer, batch) for writer, batch in progress.items()])


def append(table: DeltaTable, rows: pa.Table, progress: Mapping[str, int]) -> None:
    write_deltalake(table, rows, mode="append", writer_properties=WRITER, commit_properties=_commit(progress))


def _overwrite(table: DeltaTable, rows: pa.Table, progress: Mapping[str, int], where: str | None) -> None:
    written = _commit(progress)
    write_deltalake(table, rows, mode="overwrite", predicate=where, writer_properties=WRITER, commit_properties=written)


def _aligned(rows: pa.Table, table: DeltaTable) -> pa.Table:
    """Columns are matched by position; a table of a newer release has them in another order, and additional columns."""
    names = [each.name for each in table.schema().fields]
    if names == rows.column_names:
        return rows
    columns = [
        rows.column(each.name) if each.name in rows.column_names else _neutral(each, rows.num_rows)
        for each in pa.schema(table.schema().to_arrow())
    ]
    return pa.Table.from_arrays(columns, names=names)


def _assigned(names: Iterable[str]) -> dict[str, str]:
    """These columns of a merge, each with the value of the source."""
    return {f"`{name}`": f"s.`{name}`" for name in names}


def _neutral(field: pa.Field, count: int) -> pa.Array:
    """The value for an unknown column: null, or a neutral one if null is not allowed. Otherwise no row could be written
    after a rollback."""
    if field.nullable:
        return pa.nulls(count, field.type)
    value = next((value for is_type, value in _NEUTRAL if is_type(field.type)), b"")
    return pa.array([value] * count, field.type)
