"""What keeps a table usable for months: small files joined, old days taken out, unused files deleted.

At a commit every 5 s a day has 17,000 files; joined they are a few dozen. Joining reads and writes what came since the
last time, and nothing else: files that are large already stay.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable

from dispatch.tables import TableSpec
from dispatch.tables.delta_table import WRITER
from dispatch.tables.spec import is_there, open_table

logger = logging.getLogger(__name__)

# A file of this size is left as it is.
TARGET_BYTES = 128 * 1024 * 1024

# In tables that are merged into: each merge rewrites the files in which a row changes.
MERGED_TARGET_BYTES = 16 * 1024 * 1024

# Fewer small files than this are not worth the writing.
_WORTH_IT = 8


class Upkeep:
    """The upkeep of one table. Appends may go on beside it, and what begins again when we come between
    (`DeltaTableWriter.overwrite`); other merges and snapshots into the same table may not."""

    def __init__(
        self,
        spec: TableSpec,
        location: str,
        *,
        days: int | None = None,
        unused_hours: int = 24,
        old: Callable[[datetime], str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`days` is how long rows are kept, None for ever. `old` gives the condition on those to be taken out, by the
        time before which they are too old; without it they go by whole days."""
        self.name = f"upkeep of {spec.name}"
        self._spec = spec
        self._target_bytes = MERGED_TARGET_BYTES if spec.key else TARGET_BYTES
        self._location = location
        self._days = days
        self._unused_hours = unused_hours
        self._old = old
        self._clock = clock
        self._deleted_at = -1  # the version after that

    def step(self) -> bool:
        """Do what is due."""
        if not is_there(self._location):
            return False
        table = open_table(self._location)
        if self._days is not None:
            self._take_out(table, datetime.fromtimestamp(self._clock(), UTC) - timedelta(days=self._days))
        self._join(table)
        # Deleting makes two commits: not when nothing has happened since the last time.
        if table.version() != self._deleted_at:
            # A full listing finds what a killed writer has left, too.
            table.vacuum(self._unused_hours, dry_run=False, enforce_retention_duration=False, full=True)
            self._deleted_at = open_table(self._location).version()
        return False

    def close(self) -> None:
        """Nothing is held."""

    def _take_out(self, table: DeltaTable, before: datetime) -> None:
        if self._old is not None:
            table.delete(self._old(before))
        elif any(day < before.date() for day in _days(table)):
            # Whole partitions: nothing is read.
            table.delete(f"day < '{before.date().isoformat()}'")

    def _join(self, table: DeltaTable) -> None:
        if "day" in self._spec.partition_by:
            for day, files in _small_files(table, self._target_bytes).items():
                if files >= _WORTH_IT:
                    table.optimize.compact(
                        partition_filters=[("day", "=", day)],
                        target_size=self._target_bytes,
                        max_concurrent_tasks=1,
                        writer_properties=WRITER,
                    )
        elif sum(_small_files(table, self._target_bytes).values()) >= _WORTH_IT:
            table.optimize.compact(target_size=self._target_bytes, max_concurrent_tasks=1, writer_properties=WRITER)


def _days(table: DeltaTable) -> list[date]:
    return [date.fromisoformat(str(each["day"])) for each in table.partitions()]


def _small_files(table: DeltaTable, target_bytes: int) -> Counter[str]:
    """How many files below the target size there are, by day; of all days if the table has none."""
    files = pa.table(table.get_add_actions(flatten=True))
    days = files["partition.day"].to_pylist() if "partition.day" in files.column_names else [""] * files.num_rows
    small: Counter[str] = Counter()
    for day, size in zip(days, files["size_bytes"].to_pylist(), strict=True):
        small[str(day)] += size < target_bytes
    return small
