"""A table of states as a fold over a compacted log: changed by key, with the positions in the same commit.

Applying a range of the log again has no effect, so a crash costs only time.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

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
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, as_progress
from arborcast.dispatch.tables.spec import Row, TableSpec
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
                    "subscription": route.subscription.id,
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


# Bound the driver's memory and the time of a step: a commit of this number of rows takes some seconds, and records of
# waiting deliveries and dead letters have their messages. Their rows have none: a changed row rewrites its file.
_RECORDS_PER_STEP = 20_000
_BYTES_PER_STEP = 16 * 1024 * 1024

# Nulls that a table has not read after this time may be compacted away.
_VALID_MS = CONTROL_HISTORY_MS // 2

# Interval of commits without rows that prove that the log was read.
_PROVED_MS = _VALID_MS // 4


class TableFold(ABC):
    """The changes of a table by a record of the log. `writer` is the name of its positions in the table, unique for
    each fold that writes into it. A patch sets the columns `patched`; an existing row that is put again keeps its
    columns `kept`. `mirrors` is a condition of the rows that the log has, too: they are removed before it is read from
    its beginning."""

    spec: TableSpec
    writer: str
    patched: Sequence[str] = ()
    kept: Sequence[str] = ()
    mirrors = "true"
    _latest = -1

    @abstractmethod
    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        """Collect the change. Raises InfrastructureError or UnicodeDecodeError for a damaged record."""

    def patches(self, row: Row, columns: Row) -> bool:
        """Whether a patch of these columns changes the existing row."""
        return True

    def is_first(self, record: ConsumerRecord) -> bool:
        """Whether this is the first call with the record: after a failure, records are applied again."""
        is_first = record.offset > self._latest
        self._latest = max(self._latest, record.offset)
        return is_first

    def restart(self) -> None:
        """The log was created again."""
        self._latest = -1


class RowChanges:
    """Collects changes in the order of the log, and combines those of one key."""

    def __init__(self, fold: TableFold) -> None:
        self._fold = fold
        self._changes: dict[str, tuple[str, Row]] = {}

    def __len__(self) -> int:
        return len(self._changes)

    def __iter__(self) -> Iterator[tuple[str, str, Row]]:
        """By key the operation (`put`, `add`, `patch` or `drop`) and its columns."""
        return ((key, operation, columns) for key, (operation, columns) in self._changes.items())

    def get(self, key: str, column: str) -> object:
        """The new value of a row's column, None if unchanged."""
        return self._changes.get(key, ("", {}))[1].get(column)

    def put(self, key: str, row: Row) -> None:
        self._changes[key] = ("put", row)

    def add(self, key: str, row: Row) -> None:
        """Set the row if it does not exist; patch it if it does."""
        operation, known = self._changes.get(key, ("", {}))
        if operation in ("", "patch"):
            self._changes[key] = ("add", {**row, **known})
        elif operation == "drop":
            self.put(key, row)

    def patch(self, key: str, columns: Row) -> None:
        """Change the patched columns of the row if it exists."""
        operation, known = self._changes.get(key, ("patch", {}))
        if operation != "drop":
            self._changes[key] = (operation, {**known, **columns})

    def drop(self, key: str) -> None:
        self._changes[key] = ("drop", {})

    def write(self, table: DeltaTableWriter, progress: Mapping[str, int]) -> None:
        table.change(self._changes, self._applied, progress)

    def _applied(self, existing: Mapping[str, Row]) -> Iterator[Row]:
        fold, names = self._fold, [each.name for each in self._fold.spec.columns]
        for key, operation, columns in self:
            row = existing.get(key)
            if operation == "put" or (operation == "add" and row is None):
                kept = {} if row is None else {name: row[name] for name in fold.kept}
                yield (row or {}) | dict.fromkeys(names) | columns | kept | {fold.spec.key: key}
            elif row is not None and operation != "drop":
                patched = fold.patched if fold.patches(row, columns) else ()
                yield row | {name: columns.get(name) for name in patched}


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
            progress = _progress(fold, log.positions) | self._topic
            changes = RowChanges(fold)
            for record in records:
                apply(fold, record, changes, self._log)
            if len(changes):
                changes.write(table, progress)
            elif records and not table.positions(fold.writer):
                # To distinguish "nothing yet" from "crashed before the first commit".
                table.extend(fold.spec.arrow([]), progress)
            else:
                continue
            if fold.mirrors != "false":
                self._read_ms = progress[_read_at(fold)]
        if not records and self._proof_ends(_PROVED_MS) and log.has_reached(log.ends()):
            fold, table = self._mirrors()[0]
            progress = _progress(fold, log.positions) | self._topic
            table.extend(fold.spec.arrow([]), progress)
            self._read_ms = progress[_read_at(fold)]
        return may_have_more(records, _RECORDS_PER_STEP, _BYTES_PER_STEP)

    def _restart(self) -> None:
        for fold, table in self._folds:
            fold.restart()
            beginning = dict.fromkeys(table.positions(fold.writer), 0)
            table.replace(fold.spec.arrow([]), _progress(fold, beginning) | self._topic, fold.mirrors)

    def _mirrors(self) -> list[tuple[TableFold, DeltaTableWriter]]:
        return [(fold, table) for fold, table in self._folds if fold.mirrors != "false"]

    def _proof_ends(self, valid_ms: int) -> bool:
        """Whether the newest commit is older than this; not without any."""
        return self._read_ms > 0 and is_due(self._read_ms + valid_ms, self._read_ms, time_ms())


def _read_at(fold: TableFold) -> str:
    return f"{fold.writer}-read-ms"


def _progress(fold: TableFold, positions: Mapping[int, int]) -> dict[str, int]:
    return as_progress(fold.writer, positions) | {_read_at(fold): time_ms()}
