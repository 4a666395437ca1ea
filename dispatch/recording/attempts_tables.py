"""The tables `attempts` and `deliveries`, from the `attempts` log.

They follow the log from Kafka in short steps. The commits have the offsets: repeated records are recognised, and a
repaired or deleted table continues at its position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.core.settings import KafkaSettings
from arborcast.core.wall_clock import CLOCKS_APART_MS
from arborcast.dispatch.logs.attempts import RUN_NUMBERS
from arborcast.dispatch.recording.follower import GatheringFollower
from arborcast.dispatch.tables import ATTEMPTS, DELIVERIES
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, as_progress, rows_of
from arborcast.dispatch.tables.spec import quoted

# The batches up to this one have been recorded, at least in part.
_NEWEST = "newest-batch"

# Notifications accepted until this time (ms since the epoch) may also have been delivered under an older checkpoint.
_CHECKPOINT = "newest-checkpoint-ms"

_Key = tuple[str, str]

_State = tuple[str, int]

# Lengths of a common beginning of ids (their time in ms, hexadecimal) in one range: five hours, three days, 50 days.
_PREFIXES = (6, 5, 4, 0)

_MOST_RANGES = 16


class EndedDeliveries:
    """Writes the `deliveries` table from the rows of `attempts`: one row per ended delivery.

    Rows are appended, not merged: at 1,000/s a month has 2.6 billion, and a merge costs the size of the table. Only a
    repeated batch, the redelivery, or a checkpoint far back in the log can write a second end; only those rows are
    looked up first. Ids sort by time, so one or two files are read: 26 ms for 1,000 ids in a table of 2 million.
    """

    def __init__(self, location: str) -> None:
        self.table = DeltaTableWriter(DELIVERIES, location)

    def append(self, attempts: pa.Table, progress: Mapping[str, int]) -> None:
        """Write the deliveries that ended with these attempts, with the progress. May be repeated after a crash at any
        point."""
        ended = delivery_rows(attempts)
        keys = _keys(ended)
        batches, states, errors = ended["batch"].to_pylist(), _states(ended), ended["error"].to_pylist()
        newest, checkpoint_ms = self.table.progress(_NEWEST), self.table.progress(_CHECKPOINT) or 0
        latest = max([newest or 0, *batches])
        if newest is not None and latest // RUN_NUMBERS > newest // RUN_NUMBERS:
            checkpoint_ms = max(_ms(ended["ended_at"])) + CLOCKS_APART_MS
        doubtful = [
            key
            for key, number, accepted_ms in zip(keys, batches, _ms(ended["accepted_at"]), strict=True)
            if newest is not None and (number <= newest or accepted_ms <= checkpoint_ms)
        ]
        known = self._states(doubtful) if doubtful else {}
        # The row of a purge is no other end.
        changed = [
            row
            for row, key in enumerate(keys)
            if key in known and known[key] != states[row] and errors[row] != "purged"
        ]
        if changed:
            # Mostly redriven dead letters.
            self._overwrite(ended.take(changed))
        fresh = [row for row, key in enumerate(keys) if key not in known]
        self.table.extend(
            ended.take(pa.array(fresh, pa.int64())), {**progress, _NEWEST: latest, _CHECKPOINT: checkpoint_ms}
        )

    def _states(self, keys: Sequence[_Key]) -> dict[_Key, _State]:
        """The states of the deliveries that the table has."""
        notifications = sorted({notification for notification, _ in keys})
        table = self.table.open()
        # Compaction by another writer may have moved rows into other files.
        table.update_incremental()
        columns = ["notification", "subscription", "state", "ended_at"]
        where = ds.field("notification").isin(notifications)
        found = DELIVERIES.read(table, columns, where, _files_with(notifications))
        requested = set(keys)
        return {key: state for key, state in zip(_keys(found), _states(found), strict=True) if key in requested}

    def _overwrite(self, changed: pa.Table) -> None:
        changed = changed.sort_by("notification")
        first = 0
        # A merge keeps all rows between its first and last id in memory: one merge for dead letters of a month would
        # keep the month.
        for _, some in groupby(changed["notification"].to_pylist(), itemgetter(slice(_PREFIXES[0]))):
            ids = list(some)
            self.table.overwrite(
                changed.slice(first, len(ids)),
                "t.notification = s.notification and t.subscription = s.subscription "
                f"and t.notification >= {quoted(ids[0])} and t.notification <= {quoted(ids[-1])}",
            )
            first += len(ids)


def delivery_rows(attempts: pa.Table) -> pa.Table:
    """Rows of `deliveries` for the rows of `attempts` that end one: one per delivery, of its last row."""
    ended = attempts.filter(pc.not_equal(attempts["state"], "parked"))
    last = {key: row for row, key in enumerate(_keys(ended))}
    ended = ended.take(pa.array(last.values(), pa.int64()))
    microseconds = pc.round(pc.multiply(ended["duration_ms"], 1000.0)).cast(pa.int64())
    ended_at = pc.add(ended["started_at"], microseconds.cast(pa.duration("us")))
    gap = pc.subtract(ended["started_at"].cast(pa.int64()), ended["accepted_at"].cast(pa.int64()))
    # The gateway's clock may be ahead of this one.
    waited = pc.divide(pc.max_element_wise(gap, 0).cast(pa.float64()), 1000.0)
    made = {
        "day": ended_at.cast(pa.date32()),
        "attempts": ended["number"],
        "ended_at": ended_at,
        "waited_ms": waited,
        "push_ms": ended["duration_ms"],
        "latency_ms": pc.add(waited, ended["duration_ms"]),
    }
    schema = DELIVERIES.arrow_schema()
    columns = [(made[each.name] if each.name in made else ended[each.name]).cast(each.type) for each in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _files_with(ids: Sequence[str]) -> str:
    """The condition of files that may have these sorted ids: few ranges, so that an old id beside new ones does not
    select the files of all the time between."""
    ranges: list[list[str]] = []
    for prefix in _PREFIXES:
        ranges = [list(some) for _, some in groupby(ids, itemgetter(slice(prefix)))]
        if len(ranges) <= _MOST_RANGES:
            break
    return " or ".join(f"(notification between {quoted(each[0])} and {quoted(each[-1])})" for each in ranges)


def _keys(rows: pa.Table) -> list[_Key]:
    return list(zip(rows["notification"].to_pylist(), rows["subscription"].to_pylist(), strict=True))


def _states(rows: pa.Table) -> list[_State]:
    """The states, of dead ones with the time: a redriven dead letter may die again."""
    states = zip(rows["state"].to_pylist(), _ms(rows["ended_at"]), strict=True)
    return [(state, at_ms if state == "dead" else 0) for state, at_ms in states]


def _ms(times: pa.ChunkedArray) -> list[int]:
    return [each // 1000 for each in times.cast(pa.int64()).to_pylist()]


LOG = "attempts"

# A full record has 64 KiB.
_BYTES_PER_STEP = 2 * 1024 * 1024


class _Gathering:
    """The rows that one of the tables lacks. Each table commits separately: after a crash between the two commits the
    records are read again, and only the second table adds them."""

    def __init__(self, table: DeltaTableWriter) -> None:
        self.table = table
        self.reached = self.table.positions(LOG)
        self.rows: list[pa.Table] = []

    def lacks(self, record: ConsumerRecord) -> bool:
        """Whether the record is at or after the table's position."""
        return record.offset >= self.reached.get(record.partition, 0)

    def advanced(self, positions: Mapping[int, int]) -> dict[str, int]:
        """The positions of the table with the gathered rows, for the commit that adds them."""
        partitions = range(max((*positions, *self.reached), default=-1) + 1)
        self.reached = {each: max(positions.get(each, 0), self.reached.get(each, 0)) for each in partitions}
        return as_progress(LOG, self.reached)


class AttemptsTables(GatheringFollower):
    """Writes the outcomes of pushes. `recorded` is called with the rows added to `attempts`."""

    def __init__(
        self,
        kafka: KafkaSettings,
        attempts: str,
        deliveries: str,
        interval_s: float = 0.0,
        *,
        recorded: Callable[[pa.Table], None] = lambda rows: None,
    ) -> None:
        self._ended = EndedDeliveries(deliveries)
        tables = [DeltaTableWriter(ATTEMPTS, attempts), self._ended.table]
        super().__init__(kafka, LOG, tables, interval_s, _BYTES_PER_STEP)
        self._recorded = recorded
        self._gathering: list[_Gathering] = []

    def take(self, records: Sequence[ConsumerRecord]) -> None:
        everything: pa.Table | None = None
        for each in self._gatherings():
            lacking = [record.value for record in records if record.value is not None and each.lacks(record)]
            if len(lacking) < len(records):
                rows = rows_of(lacking)
            else:
                # Both tables lack the same rows, except in the first step after a crash.
                rows = everything = rows_of(lacking) if everything is None else everything
            if lacking:
                each.rows.append(rows)

    def _gathered_bytes(self) -> int | None:
        sizes = [sum(rows.nbytes for rows in each.rows) for each in self._gatherings() if each.rows]
        return max(sizes, default=None)

    def _extend(self, positions: Mapping[int, int]) -> int:
        attempts, deliveries = self._gatherings()
        count = 0
        if attempts.rows:
            rows = pa.concat_tables(attempts.rows)
            attempts.table.extend(rows, attempts.advanced(positions) | self._topic)
            attempts.rows.clear()
            self._recorded(rows)
            count = rows.num_rows
        if deliveries.rows:
            self._ended.append(pa.concat_tables(deliveries.rows), deliveries.advanced(positions) | self._topic)
            deliveries.rows.clear()
        return count

    def _forget(self) -> None:
        super()._forget()
        self._gathering = []

    def _gatherings(self) -> Sequence[_Gathering]:
        """Those of `attempts` and `deliveries`."""
        self._gathering = self._gathering or [_Gathering(table) for table in self._tables]
        return self._gathering
