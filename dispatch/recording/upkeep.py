"""Upkeep of a table: compaction, removal of old rows and unused files."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable

from arborcast.dispatch.recording.compaction import Joiner, join_bytes, join_in_process
from arborcast.dispatch.recording.follower import Work
from arborcast.dispatch.tables.delta_table import COMMIT_TURNS, REWRITE_TURNS, append
from arborcast.dispatch.tables.repair import delete_removed
from arborcast.dispatch.tables.spec import TableSpec, open_table, table_exists

logger = logging.getLogger(__name__)

# A clock further ahead of the rows may be wrong: old days are deleted later.
_AHEAD = timedelta(days=2)
_POSTPONED_S = 86_400

# The name of the time (s) since which the clock is that far ahead, 0 if it is not. It is stored in the table: an engine
# may run for some hours a day.
_AHEAD_SINCE = "clock-ahead-since"

# A file of this size is not compacted.
TARGET_BYTES = 128 * 1024 * 1024

# For tables with changing rows: a change rewrites the files with these rows.
MERGED_TARGET_BYTES = 16 * 1024 * 1024


# With a commit every 5 s a day has 17,000 files; compacted they are a few dozen.
class Upkeep(Work):
    """The upkeep of one table. Concurrent appends and restarted writes are possible (`DeltaTableWriter.overwrite`);
    changes by key and snapshots of the same table are not."""

    def __init__(
        self,
        spec: TableSpec,
        location: str,
        joiner: Joiner | None = None,
        *,
        days: int | None = None,
        unused_hours: int = 24,
        old: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`days` is the retention of rows, None for ever. `old` is the condition of the rows to remove, with {} for a
        time; without it whole days are removed."""
        self.name = f"upkeep of {spec.name}"
        self._spec = spec
        self._location = location
        self._join = joiner or join_in_process
        self._days = days
        self._unused_hours = unused_hours
        self._old = old
        self._clock = clock
        self._deleted_at = -1  # the version after the last deletion
        self._again_at = 0.0  # the time of a further deletion at this version

    def step(self) -> bool:
        if not table_exists(self._location):
            return False
        with REWRITE_TURNS[self._location]:
            self._maintain()
        return False

    def _maintain(self) -> None:
        table = open_table(self._location)
        failures: list[Exception] = []
        for rewrite in self._rewrites(table):
            try:
                rewrite()
            except Exception as error:
                # A damaged file of one day stops neither the other days nor the deletion, which frees the disk.
                failures.append(error)
        self._delete_unused()
        delete_removed(self._spec, self._location, self._clock())
        if failures:
            raise failures[0]

    def _rewrites(self, table: DeltaTable) -> Iterator[Callable[[], None]]:
        if self._days is not None:
            yield partial(self._delete_old, table, self._days)
        for day, sizes in _file_sizes(table).items():
            if joined := join_bytes(sizes, MERGED_TARGET_BYTES if self._spec.key else TARGET_BYTES):
                yield partial(self._join, self._location, day, joined)

    def _now(self, table: DeltaTable, kept: int) -> datetime:
        """The time of the clock. While it is far ahead of the days of the table, that of these days, for a day. The
        newest day is not counted: its rows may be of the wrong clock."""
        at = int(self._clock())
        now = datetime.fromtimestamp(at, UTC)
        days = sorted(_days(table)) if self._spec.partition_by else []
        newest = days[-2:]
        since = table.transaction_version(_AHEAD_SINCE) or 0
        if not days or now.date() <= newest[0] + _AHEAD or now.date() <= days[0] + timedelta(days=kept):
            if since:
                self._note_ahead(table, 0)
            return now
        if not 0 < since <= at:
            since = at
            self._note_ahead(table, since)
            logger.warning(
                "%s: the clock shows %s, and the second newest day of the table is %s: older days are deleted after a "
                "day. Correct the clock if it is wrong",
                self.name,
                now.isoformat(timespec="seconds"),
                newest[0],
            )
        is_over = at >= since + _POSTPONED_S
        return now if is_over else datetime.combine(newest[0] + _AHEAD, datetime.min.time(), UTC)

    def _note_ahead(self, table: DeltaTable, since: int) -> None:
        with COMMIT_TURNS[self._location]:
            append(table, pa.schema(table.schema().to_arrow()).empty_table(), {_AHEAD_SINCE: since})

    def _delete_unused(self) -> None:
        # A listing costs the size of the table, a deletion two commits: after a change, and once more when the files
        # that the last change has removed are old enough.
        table, now = open_table(self._location), self._clock()
        changed = table.version() != self._deleted_at
        if changed or now > self._again_at:
            # A full listing also finds files of a killed writer.
            table.vacuum(self._unused_hours, dry_run=False, enforce_retention_duration=False, full=True)
            self._deleted_at = open_table(self._location).version()
            self._again_at = now + self._unused_hours * 3600 if changed else math.inf

    def _delete_old(self, table: DeltaTable, kept: int) -> None:
        before = self._now(table, kept) - timedelta(days=kept)
        if self._old:
            table.delete(self._old.format(before.isoformat()))
        elif any(day < before.date() for day in _days(table)):
            # Whole partitions: no file is read.
            table.delete(f"day < '{before.date().isoformat()}'")


def _days(table: DeltaTable) -> list[date]:
    return [date.fromisoformat(str(each["day"])) for each in table.partitions()]


def _file_sizes(table: DeltaTable) -> dict[str, list[int]]:
    """The sizes of the files, by day; under "" if the table has no days."""
    files = pa.table(table.get_add_actions(flatten=True))
    days = files["partition.day"].to_pylist() if "partition.day" in files.column_names else [None] * files.num_rows
    sizes: dict[str, list[int]] = defaultdict(list)
    for day, size in zip(days, files["size_bytes"].to_pylist(), strict=True):
        sizes[str(day or "")].append(size)
    return sizes
