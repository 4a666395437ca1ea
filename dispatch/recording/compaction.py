"""Compaction: joins the small files of a table.

`python -m arborcast.dispatch.recording.compaction` is the process of low priority that compacts for the driver: in the
driver it would take CPU from pushes, and its memory for the time of a join. Its standard input is the request.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from arborcast.core.threads import Service
from arborcast.dispatch.tables.delta_table import COMMIT_TURNS, WRITER
from arborcast.dispatch.tables.spec import Location, open_table, options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Minimum number of small files for a compaction.
_FEWEST_FILES = 8

# A compaction ends after this time, for instance if the storage of the tables hangs: the next upkeep tries again.
_LONGEST_S = 4 * 3600.0

# A process with this nice value gets a tenth of the CPU time of one with the value 0.
_NICENESS = 10

Joiner = Callable[[str, str, int], None]
"""Joins the files of a day of the table at a location that are smaller than a number of bytes into files of up to this
number; of the whole table if the day is empty."""


def join_bytes(sizes: Iterable[int], target_bytes: int) -> int:
    """The number of bytes for a joiner, 0 if there is nothing to join. A file is joined with smaller ones if it is not
    larger than all of them together, so that each row is rewritten a logarithmic number of times."""
    joined: list[int] = []
    total = 0
    for size in sorted(each for each in sizes if each < target_bytes):
        if joined and size > total * (1 if len(joined) >= _FEWEST_FILES else _FEWEST_FILES // 2):
            break
        joined.append(size)
        total += size
    limit = min(total + 1, target_bytes)
    return limit if len(joined) >= _FEWEST_FILES and sum(joined[:2]) <= limit else 0


def join_in_process(location: str, day: str, target_bytes: int) -> None:
    """With delta-rs, in a process of low priority."""
    request = json.dumps([location, options_of(location), day, target_bytes])  # options have secrets: no arguments
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # with the bundle of spark-submit
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(  # noqa: S603  # this interpreter and this module, no shell
            command, input=request, stderr=subprocess.PIPE, text=True, env=environ, timeout=_LONGEST_S
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"compaction of {location} was stopped after {error.timeout:g} s") from error
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2] or f"its process ended with {done.returncode}"
        raise RuntimeError(f"compaction of {location} failed: {reason}")


def _join(location: str, options: dict[str, str], day: str, target_bytes: int) -> None:
    open_table(Location.of(location, options)).optimize.compact(
        partition_filters=[("day", "=", day)] if day else None,
        target_size=target_bytes,
        max_concurrent_tasks=1,
        writer_properties=WRITER,
    )


class SparkCompactor:
    """With delta-spark, as Spark jobs on the executors, which must reach the tables by the same path."""

    def __init__(self, spark: SparkSession, task_slots: int) -> None:
        """Uses up to a quarter of the task slots."""
        self._spark = spark.newSession()
        settings = {
            "spark.databricks.delta.optimize.maxThreads": str(max(task_slots // 4, 1)),
            "spark.sql.parquet.compression.codec": "zstd",
            # Hadoop writes a checksum beside each local file, which would not match later writes of delta-rs.
            "fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
            "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
            "fs.file.impl.disable.cache": "true",
        }
        for name, value in settings.items():
            self._spark.conf.set(name, value)

    def __call__(self, location: str, day: str, target_bytes: int) -> None:
        from delta.tables import DeltaTable as SparkTable

        for bound in ("max", "min"):
            self._spark.conf.set(f"spark.databricks.delta.optimize.{bound}FileSize", str(target_bytes))
        context, group = self._spark.sparkContext, f"compaction of {location}, up to {_LONGEST_S:g} s"
        context.setJobGroup(group, "compaction")

        def cancel() -> float:
            context.cancelJobGroup(group)
            return _LONGEST_S

        limit = Service("compaction-limit", cancel, delay_s=_LONGEST_S)
        # The two libraries do not know each other's pending commits: on a store that allows overwriting, a commit of
        # the writer would be lost.
        with COMMIT_TURNS[location]:
            limit.start()
            try:
                optimize = SparkTable.forPath(self._spark, location).optimize()
                (optimize.where(f"day = '{day}'") if day else optimize).executeCompaction()
            finally:
                limit.stop()


if __name__ == "__main__":
    os.nice(_NICENESS)
    _join(*json.load(sys.stdin))
