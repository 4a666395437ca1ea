"""A table of states as a fold over a compacted log: merged by key, with the positions in the same commit.

Merging suits these tables: they have current states, no history. Applying a range of the log again has no effect, so a
crash costs only time.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.eventlog.consumer import Replaced
from arborcast.core.eventlog.damaged import unless_damaged
from arborcast.core.eventlog.follower import LogCursor
from arborcast.core.eventlog.topics import CONTROL_HISTORY_MS
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import is_due, time_ms
from arborcast.dispatch.recording.follower import TableFollower, Work, may_have_more
from arborcast.dispatch.tables import ROUTES
from arborcast.dispatch.tables.delta_table import OPERATION, DeltaTableWriter, as_progress
from arborcast.dispatch.tables.spec import TableSpec
from arborcast.topic_model.projections.suspensions import State
from arborcast.topic_model.routing.table import Route

logger = logging.getLogger(__name__)


class RoutesSnapshot(Work):
    """Writes the table when `version` has changed, and the routes with it: not after each renewal.

    A snapshot, not a fold: one wide subscription changes a row of every topic. It is bounded: a million
    topics with a hundred subscribers would be unreadable; `arborcast why` uses the routing table.
    """

    name = "routes"

    def __init__(
        self,
        location: str,
        limit: int,
        version: Callable[[], int],
        routes: Callable[[int], Sequence[tuple[Route, State]]],
    ) -> None:
        """`version` is a number that grows with each change, also across restarts; `routes` returns up to a number of
        routes."""
        self._table = DeltaTableWriter(ROUTES, location)
        self._limit = limit
        self._version = version
        self._routes = routes
        self._warned = False
        self._read: int | None = None  # the version of the last routes
        self._written = b""  # their hash, if this object has written them

    def step(self) -> bool:
        version = self._version()
        try:
            if version in (self._read, self._table.progress(self.name)):
                return False
            # Read after the version: changes in between are written again, not missed.
            routes = self._routes(self._limit)
            if len(routes) >= self._limit and not self._warned:
                logger.warning("there are more routes than the limit of the table: tables.max_routes = %d", self._limit)
                self._warned = True
            rows = [
                {
                    "topic": route.topic,
                    "subscription": route.subscription_id,
                    "expression": route.expression,
                    "state": state,
                    "endpoint": route.subscription.consumer.address,
                }
                for route, state in routes
            ]
            table = ROUTES.arrow(rows)
            if (found := _hash(table)) != self._written:
                self._table.replace(table, {self.name: version})
            self._read, self._written = version, found
        except BaseException:
            self._table.reopen()
            self._written = b""
            raise
        return False


def _hash(rows: pa.Table) -> bytes:
    found = hashlib.blake2b()
    for column in rows.itercolumns():
        for buffer in column.combine_chunks().buffers():
            found.update(buffer or b"")
    return found.digest()


Row = Mapping[str, object]


class RowChanges:
    """Collects changes in the order of the log, and combines those of one key."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._changes: dict[str, tuple[str, dict[str, object]]] = {}

    def __len__(self) -> int:
        return len(self._changes)

    def get(self, key: str, column: str) -> object:
        """The new value of a row's column, None if unchanged."""
        return self._changes.get(key, ("", {}))[1].get(column)

    def put(self, key: str, row: Row) -> None:
        self._changes[key] = ("put", dict(row))

    def add(self, key: str, row: Row) -> None:
        """Set the row if it does not exist."""
        operation, known = self._changes.get(key, ("", {}))
        if operation in ("", "patch"):
            self._changes[key] = ("add", {**row, **known})
        elif operation == "drop":
            self.put(key, row)

    def patch(self, key: str, columns: Row) -> None:
        """Change these columns of the row if it exists."""
        operation, known = self._changes.get(key, ("patch", {}))
        if operation != "drop":
            self._changes[key] = (operation, {**known, **columns})

    def drop(self, key: str) -> None:
        self._changes[key] = ("drop", {})

    def arrow(self) -> pa.Table:
        """The changes for `DeltaTableWriter.merge`."""
        key = self._spec.key
        rows = [{**row, key: name, OPERATION: operation} for name, (operation, row) in self._changes.items()]
        fields = [pa.field(each.name, each.type) for each in self._spec.arrow_schema()]
        return pa.Table.from_pylist(rows, schema=pa.schema([*fields, pa.field(OPERATION, pa.string())]))


# Bound the driver's memory and the time of a step: a merge of this number of rows takes a second or two, and records of
# waiting deliveries and dead letters have their messages. Their rows have none: a merge keeps a whole table in memory.
_RECORDS_PER_STEP = 20_000
_BYTES_PER_STEP = 16 * 1024 * 1024

# Nulls that a table has not read after this time may be compacted away.
_VALID_MS = CONTROL_HISTORY_MS // 2

# Interval of commits without rows that prove that the log was read.
_PROVED_MS = _VALID_MS // 4


class TableFold(ABC):
    """The changes of a table by a record of the log. `writer` is the name of its positions in the table, unique for
    each fold that writes into it. For `patched`, `guard` and `kept` see `DeltaTableWriter.merge`. `mirrors` is a
    condition of the rows that the log has, too: they are removed before it is read from its beginning."""

    spec: TableSpec
    writer: str
    patched: Sequence[str] = ()
    guard = ""
    kept: Sequence[str] = ()
    mirrors = "true"
    _latest = -1

    @abstractmethod
    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        """Collect the change. Raises InfrastructureError or UnicodeDecodeError for a damaged record."""

    def is_first(self, record: ConsumerRecord) -> bool:
        """Whether this is the first call with the record: after a failure, records are applied again."""
        is_first = record.offset > self._latest
        self._latest = max(self._latest, record.offset)
        return is_first

    def restart(self) -> None:
        """The log was created again."""
        self._latest = -1


def apply(fold: TableFold, record: ConsumerRecord, changes: RowChanges, log: str) -> None:
    """Collect the change. Damaged records are skipped. Raises RecordVersionError."""
    unless_damaged(log, (record.partition, record.offset), fold.apply, record, changes)


class FoldedTables(TableFollower):
    """The tables that follow one log. Without changes they have a commit every three hours."""

    def __init__(
        self, kafka: KafkaSettings, log: str, folds: Sequence[TableFold], location: Callable[[TableSpec], str]
    ) -> None:
        """`folds`: several for one table are applied in this order. `location` returns the location of a table."""
        self._folds = [(fold, DeltaTableWriter(fold.spec, location(fold.spec))) for fold in folds]
        self._is_old = False
        self._read_ms = 0  # of the newest commit that proves that the log was read; 0 without any
        super().__init__(kafka, log, [table for _, table in self._folds])

    def _opened(self) -> LogCursor:
        # A commit of one table proves that the log was read for all of them: a topic tree may not change for weeks.
        self._read_ms = max((table.progress(_read_at(fold)) or 0 for fold, table in self._mirrors()), default=0)
        self._is_old = self._proof_ends(_VALID_MS)
        return self._behind([table.positions(fold.writer) for fold, table in self._folds])

    def _write(self, log: LogCursor) -> bool:
        if self._is_old and not log.has_reached(log.ends()):
            raise Replaced(f"the {self._log} log may have been compacted since its tables were written")
        self._is_old = False
        records = log.read(_RECORDS_PER_STEP, _BYTES_PER_STEP)
        for fold, table in self._folds:
            progress = _progress(fold, log.positions)
            changes = RowChanges(fold.spec)
            for record in records:
                apply(fold, record, changes, self._log)
            if len(changes):
                table.merge(changes.arrow(), progress, fold.patched, fold.guard, fold.kept)
            elif records and not table.positions(fold.writer):
                # To distinguish "nothing yet" from "crashed before the first commit".
                table.extend(fold.spec.arrow([]), progress)
            else:
                continue
            if fold.mirrors != "false":
                self._read_ms = progress[_read_at(fold)]
        if not records and self._proof_ends(_PROVED_MS) and log.has_reached(log.ends()):
            fold, table = self._mirrors()[0]
            progress = _progress(fold, log.positions)
            table.extend(fold.spec.arrow([]), progress)
            self._read_ms = progress[_read_at(fold)]
        return may_have_more(records, _RECORDS_PER_STEP, _BYTES_PER_STEP)

    def _restart(self) -> None:
        for fold, table in self._folds:
            fold.restart()
            beginning = dict.fromkeys(table.positions(fold.writer), 0)
            table.replace(fold.spec.arrow([]), _progress(fold, beginning), fold.mirrors)

    def _mirrors(self) -> list[tuple[TableFold, DeltaTableWriter]]:
        return [(fold, table) for fold, table in self._folds if fold.mirrors != "false"]

    def _proof_ends(self, valid_ms: int) -> bool:
        """Whether the newest commit is older than this; not without any."""
        return self._read_ms > 0 and is_due(self._read_ms + valid_ms, self._read_ms, time_ms())


def _read_at(fold: TableFold) -> str:
    return f"{fold.writer}-read-ms"


def _progress(fold: TableFold, positions: Mapping[int, int]) -> dict[str, int]:
    return as_progress(fold.writer, positions) | {_read_at(fold): time_ms()}
